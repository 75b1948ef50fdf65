"""All stores in memory, for tests and the bench; the same contracts as the durable ones."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from typing_extensions import Unpack

from app.runs.budget import SpentCall
from app.runs.model import (
    BEGINNING_STATES,
    STARTED_STATES,
    UNFINISHED_STATES,
    WAITING_STATES,
    ChannelChange,
    QueuePosition,
    QueueStats,
    Run,
    RunFileKind,
    RunId,
    RunState,
    Thread,
)
from app.runs.options import DefaultChanges, Defaults
from app.runs.ports import RunChanges
from app.runs.session import NOT_KEPT, NameTakenError, Session, SessionChanges, SessionId
from app.store.runs import REFUSAL_CODES, position_of


class MemoryRunStore:
    def __init__(self) -> None:
        self._runs: dict[RunId, Run] = {}
        self.sessions = MemorySessionStore()
        self.files = MemoryRunFiles()
        self.defaults = MemoryDefaultStore()
        self.spending = MemorySpendingStore()

    async def add(self, run: Run) -> bool:
        is_new = run.id not in self._runs
        self._runs.setdefault(run.id, run)
        return is_new

    async def get(self, run_id: RunId) -> Run | None:
        return self._runs.get(run_id)

    async def update(
        self,
        run_id: RunId,
        *,
        while_in: Collection[RunState] = UNFINISHED_STATES,
        **changes: Unpack[RunChanges],
    ) -> Run:
        run = self._runs[run_id]
        if run.state in while_in and not run.state.is_final:
            run = self._runs[run_id] = replace(run, **changes)
        return run

    async def begin(self, run: Run, **changes: Unpack[RunChanges]) -> Run:
        found = self._runs[run.id]
        if found.state in BEGINNING_STATES and found.revision == run.revision:
            begun: RunChanges = {"state": RunState.RUNNING, "attempt": run.attempt + 1}
            found = self._runs[run.id] = replace(found, **begun | changes)
        return found

    async def request_stop(self, run_id: RunId, *, user: str, at: datetime) -> bool:
        run = self._runs.get(run_id)
        if run is None or run.state.is_final or run.outcome or run.stop_requested_by is not None:
            return False
        self._runs[run_id] = replace(run, stop_requested_by=user, stop_requested_at=at)
        return True

    async def stop_requested(self, run_ids: Sequence[RunId]) -> Mapping[RunId, str]:
        runs = (self._runs[run_id] for run_id in run_ids if run_id in self._runs)
        return {run.id: run.stop_requested_by for run in runs if run.stop_requested_by is not None}

    async def amend(self, run_id: RunId, *, text: str) -> bool:
        run = self._runs.get(run_id)
        if run is None or run.state not in WAITING_STATES:
            return False
        request = run.request.model_copy(update={"text": text})
        self._runs[run_id] = replace(run, request=request, revision=run.revision + 1)
        return True

    async def stopped_waiting(self) -> Sequence[Run]:
        return [
            run
            for run in await self.unfinished()
            if run.stop_requested_by and run.attempt == 0 and run.reply_ts is not None
        ]

    async def unfinished(self) -> Sequence[Run]:
        return sorted(
            (run for run in self._runs.values() if not run.state.is_final),
            key=lambda run: run.created_at,
        )

    async def of_thread(self, thread: Thread) -> Sequence[Run]:
        runs = (run for run in self._runs.values() if run.thread == thread)
        return sorted(runs, key=lambda run: run.request.message_ts)

    async def queue_stats(self, run: Run, *, since: datetime, capacity: int) -> QueueStats:
        unfinished = await self.unfinished()
        runs_of_user = sum(
            other.request.team == run.request.team
            and other.request.user == run.request.user
            and other.created_at >= since
            and (other.result.error_code not in REFUSAL_CODES or other.attempt > 0)
            for other in self._runs.values()
        )
        return QueueStats(
            runs_of_user=runs_of_user,
            unfinished=len(unfinished),
            position=_position_among(run, unfinished, capacity=capacity),
        )

    async def remove_ended(self, *, before: datetime, limit: int) -> int:
        ended = [
            (run.ended_at or run.created_at, run.id)
            for run in self._runs.values()
            if run.state.is_final
        ]
        removed = [run_id for at, run_id in sorted(ended) if at < before][:limit]
        for run_id in removed:
            del self._runs[run_id]
            self.files.forget(run_id)
        return len(removed)

    async def recent(self, *, limit: int) -> Sequence[Run]:
        return sorted(self._runs.values(), key=lambda run: run.created_at, reverse=True)[:limit]

    async def counts(self) -> Mapping[RunState, int]:
        totals: dict[RunState, int] = {}
        for run in self._runs.values():
            totals[run.state] = totals.get(run.state, 0) + 1
        return totals

    async def deliveries(self) -> Mapping[str, int]:
        return Counter(run.delivery for run in self._runs.values() if run.delivery)


class MemoryRunFiles:
    def __init__(self) -> None:
        self._files: dict[tuple[RunId, RunFileKind], str] = {}

    async def save(self, run_id: RunId, kind: RunFileKind, content: str) -> None:
        self._files[run_id, kind] = content

    async def load(self, run_id: RunId, kind: RunFileKind) -> str:
        return self._files.get((run_id, kind), "")

    def forget(self, run_id: RunId) -> None:
        for kind in RunFileKind:
            self._files.pop((run_id, kind), None)


class MemorySessionStore:
    def __init__(self) -> None:
        self._sessions: dict[SessionId, Session] = {}

    async def add(self, session: Session) -> Session:
        existing = self._sessions.get(session.id)
        if existing is None and any(
            other.name == session.name for other in self._sessions.values()
        ):
            raise NameTakenError(session.name)
        return self._sessions.setdefault(session.id, session)

    async def get(self, session_id: SessionId) -> Session | None:
        return self._sessions.get(session_id)

    async def update(
        self, session_id: SessionId, **changes: Unpack[SessionChanges]
    ) -> Session | None:
        if session_id in self._sessions:
            self._sessions[session_id] = replace(self._sessions[session_id], **changes)
        return self._sessions.get(session_id)

    async def take_kept(self, session_id: SessionId, *, by: str) -> bool:
        session = self._sessions.get(session_id)
        if session is None or not by or session.kept_by != by:
            return False
        self._sessions[session_id] = replace(session, **NOT_KEPT)
        return True

    async def find(self, text: str) -> Sequence[Session]:
        sessions = list(self._sessions.values())
        named = [session for session in sessions if session.name == text]
        return named or [one for one in sessions if text and one.id.startswith(text)][:10]

    async def all(self) -> Sequence[Session]:
        return sorted(self._sessions.values(), key=lambda one: one.used_at, reverse=True)

    async def unused_since(self, before: datetime, *, limit: int) -> Sequence[Session]:
        oldest_first = reversed(await self.all())
        return [session for session in oldest_first if session.used_at < before][:limit]

    async def remove(self, session_id: SessionId) -> None:
        self._sessions.pop(session_id, None)


class MemorySpendingStore:
    def __init__(self) -> None:
        self._calls: dict[str, SpentCall] = {}

    async def add(self, calls: Sequence[SpentCall]) -> None:
        self._calls |= {call.id: call for call in calls}

    async def since(self, at: datetime) -> Sequence[SpentCall]:
        return [call for call in self._calls.values() if call.at >= at]

    async def of_run(self, run_id: RunId) -> Sequence[SpentCall]:
        return [call for call in self._calls.values() if call.run_id == run_id]


class MemoryDefaultStore:
    def __init__(self) -> None:
        self._stored: dict[tuple[str, str], Defaults] = {}
        self._changes: dict[RunId, ChannelChange] = {}

    async def get(self, team: str, owner: str) -> Defaults:
        return self._stored.get((team, owner), Defaults())

    async def change(self, team: str, owner: str, **changes: Unpack[DefaultChanges]) -> None:
        self._stored[team, owner] = replace(await self.get(team, owner), **changes)

    async def reset(self, team: str, owner: str) -> None:
        self._stored.pop((team, owner), None)

    async def keep(self, change: ChannelChange) -> bool:
        is_new = change.run_id not in self._changes
        self._changes.setdefault(change.run_id, change)
        return is_new

    async def last_change(self, team: str, channel: str) -> ChannelChange | None:
        own = [one for one in self._changes.values() if (one.team, one.channel) == (team, channel)]
        return max(own, key=lambda one: one.at, default=None)


class MemoryOwnKeyStore:
    def __init__(self) -> None:
        self._keys: dict[tuple[str, str], dict[str, str]] = {}

    async def of(self, team: str, person: str) -> Mapping[str, str]:
        return dict(self._keys.get((team, person), {}))

    async def change(self, team: str, person: str, keys: Mapping[str, str]) -> None:
        changed = {**self._keys.get((team, person), {}), **keys}
        self._keys[team, person] = {name: key for name, key in changed.items() if key}


def _position_among(run: Run, unfinished: Iterable[Run], *, capacity: int) -> QueuePosition:
    """Returns what `run` waits for, given the unfinished runs (itself included)."""
    unfinished = list(unfinished)
    ahead_in_thread = sum(
        other.thread == run.thread and other.request.message_ts < run.request.message_ts
        for other in unfinished
    )
    ranks = _ranks(unfinished)
    elsewhere = sum(
        other.state in STARTED_STATES
        or (other.state in WAITING_STATES and ranks[other.id] < ranks[run.id])
        for other in unfinished
        if other.id != run.id
    )
    return position_of(
        ahead_in_thread=ahead_in_thread, ahead_elsewhere=elsewhere, capacity=capacity
    )


def _ranks(unfinished: Iterable[Run]) -> dict[RunId, tuple[int, datetime]]:
    """Selects in which round of turns each run goes or went, and since when it waits: a person's runs that go were the first ones.

    A guess at what the dispatcher will do, good enough to tell a person: who was served last is not in the records.
    """
    ranks: dict[RunId, tuple[int, datetime]] = {}
    rounds: Counter[tuple[str, str]] = Counter()
    for run in sorted(
        unfinished, key=lambda run: (run.state in WAITING_STATES, run.created_at, run.id)
    ):
        user = (run.request.team, run.request.user)
        ranks[run.id] = (rounds[user], run.created_at)
        rounds[user] += 1
    return ranks
