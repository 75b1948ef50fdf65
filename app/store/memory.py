"""All stores in memory, for tests and the bench; the same contracts as the durable ones."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime

from typing_extensions import Unpack

from app.audit.records import AuditEntry
from app.runs.budget import BudgetKey, SpentCall, charges, day_of
from app.runs.model import (
    BEGINNING_STATES,
    STARTED_STATES,
    UNFINISHED_STATES,
    WAITING_STATES,
    ChannelChange,
    ChannelNote,
    ProcessId,
    QueuePosition,
    QueueStats,
    Run,
    RunFileKind,
    RunState,
)
from app.runs.options import DefaultChanges, Defaults
from app.runs.policy import MAX_ATTEMPTS
from app.runs.ports import RunChanges
from app.runs.request import RunId, RunRequest, Thread
from app.store.approvals import MemoryApprovalStore
from app.store.audit import MemoryAuditLog
from app.store.pull_requests import MemoryPullRequestStore
from app.store.queue import REFUSAL_CODES, position_of
from app.store.sessions import MemorySessionStore


class MemoryRunStore:
    def __init__(self) -> None:
        self._runs: dict[RunId, Run] = {}
        self._leases = MemoryLeases(self, self._runs)
        self.sessions = MemorySessionStore()
        self.files = MemoryRunFiles()
        self.defaults = MemoryDefaultStore()
        self.threads = MemoryThreadStore(self._runs)
        self.channel_notes = MemoryChannelNoteStore()
        self.spending = MemorySpendingStore()
        self.welcomes = MemoryWelcomeStore()
        self.audit = MemoryAuditLog()
        self.approvals = MemoryApprovalStore(self._runs, self.audit)
        self.pull_requests = MemoryPullRequestStore()

    @property
    def leases(self) -> "MemoryLeases":
        return self._leases

    async def add(self, run: Run) -> bool:
        is_new = run.id not in self._runs
        self._runs.setdefault(run.id, run)
        return is_new

    async def get(self, run_id: RunId) -> Run | None:
        return self._runs.get(run_id)

    def forget(self, run_id: RunId) -> None:
        self._runs.pop(run_id, None)

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
        if run is None or run.state.is_final or run.stop_requested_by is not None:
            return False
        if run.outcome is not None:
            self._runs[run_id] = replace(run, stop_requested_at=run.stop_requested_at or at)
            return False
        self._runs[run_id] = replace(run, stop_requested_by=user, stop_requested_at=at)
        return True

    async def stop_requested(self, run_ids: Sequence[RunId]) -> Mapping[RunId, str]:
        runs = (self._runs[run_id] for run_id in run_ids if run_id in self._runs)
        return {run.id: run.stop_requested_by for run in runs if run.stop_requested_by is not None}

    async def amend(self, run_id: RunId, change: Callable[[RunRequest], RunRequest]) -> bool:
        run = self._runs.get(run_id)
        if run is None or run.state not in WAITING_STATES:
            return False
        request = change(run.request)
        if request == run.request:
            return False
        self._runs[run_id] = replace(run, request=request, revision=run.revision + 1)
        return True

    async def waiting_in(self, thread_keys: Sequence[str]) -> Sequence[Run]:
        return [
            run
            for run in self._runs.values()
            if run.thread.key in thread_keys and run.state in WAITING_STATES
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

    async def recent_of(self, team: str, user: str, *, limit: int) -> Sequence[Run]:
        recent = await self.recent(limit=len(self._runs))
        return [one for one in recent if _person(one) == (team, user)][:limit]

    async def counts(self) -> Mapping[RunState, int]:
        totals: dict[RunState, int] = {}
        for run in self._runs.values():
            totals[run.state] = totals.get(run.state, 0) + 1
        return totals

    async def deliveries(self) -> Mapping[str, int]:
        return Counter(run.delivery for run in self._runs.values() if run.delivery)


@dataclass(slots=True, kw_only=True)
class _Hold:
    """Who has a run, when it is due and when it was claimed: what the columns of the same names are to `SqlLeases`."""

    is_owned: bool = True
    due_at: float | None = None
    claimed_at: float = 0.0

    @property
    def is_advanced(self) -> bool:
        return self.is_owned and self.due_at is None and self.claimed_at > 0


class MemoryLeases:
    """Leases over a `MemoryRunStore`: one process, which loses none of them. Runs come in the same order as with `SqlLeases`."""

    is_shared = False
    id = ProcessId("the only one")

    def __init__(self, store: MemoryRunStore, runs: MutableMapping[RunId, Run]) -> None:
        self._store = store
        self._runs = runs
        self._holds: dict[RunId, _Hold] = {}

    async def join(self) -> None:
        """Nothing to be known by."""

    async def renew(self) -> int:
        return 1

    async def lives(self, process: ProcessId) -> bool:
        return process == self.id

    async def late(self) -> int:
        return 0

    async def take_over(self, *, again: bool = False, late_s: float = 0) -> Sequence[Run]:
        del again, late_s
        accepted = []
        for run in await self._store.unfinished():
            hold = self._hold(run.id)
            if hold.due_at is None and not hold.claimed_at and run.state is RunState.ACCEPTED:
                accepted.append(run)
            elif hold.due_at is None:
                hold.is_owned, hold.due_at = False, 0.0
        return accepted

    async def unclaim(self, run_ids: Collection[RunId]) -> None:
        """There is nobody else."""

    async def leave(self, *, is_brief: bool = False) -> None:
        for run_id, hold in self._holds.items():
            run = self._runs[run_id]
            if hold.is_advanced and not run.state.is_final:
                hold.is_owned, hold.due_at = False, 0.0
                if run.attempt and run.checkpoint is None and not is_brief:
                    self._runs[run_id] = replace(run, drained=run.drained + 1)

    async def claim(self, *, slots: int, waits_s: float) -> Sequence[Run]:
        now_s = time.time()
        due = [
            run
            for run in self._due(now_s)
            if self._is_over(run, now_s - waits_s) or self._is_next(run)
        ]
        free = [
            run
            for run in due
            if self._is_over(run, now_s - waits_s)
            or not run.needs_slot
            or (run.failures >= MAX_ATTEMPTS and run.checkpoint is None)
        ]
        chosen = list(free)
        waiting = [run for run in due if run not in free]
        for _ in range(min(slots, len(waiting))):
            taken = Counter(_person(run) for run in self._advanced() if run.needs_slot)
            chosen.append(min(waiting, key=lambda run: self._rank(run, taken)))
            waiting.remove(chosen[-1])
            self._take(chosen[-1])
        for run in free:
            self._take(run)
        return chosen

    async def find_lost(self, known: Collection[RunId]) -> Sequence[Run]:
        return [run for run in self._advanced() if run.id not in known]

    async def holds(self, run_id: RunId) -> bool:
        hold, run = self._hold(run_id), self._runs.get(run_id)
        is_unplaced = hold.is_owned and hold.due_at is None and not hold.claimed_at
        return is_unplaced and run is not None and not run.state.is_final

    async def schedule(
        self, run_id: RunId, *, entry: AuditEntry | None = None, **changes: Unpack[RunChanges]
    ) -> None:
        if entry is not None:
            await self._store.audit.add(entry)
        await self._store.update(run_id, **changes)
        await self.release(run_id, after_s=0)

    async def discard(self, run: Run) -> bool:
        found = self._runs.get(run.id)
        is_same = found is not None and found.revision == run.revision
        if is_same and found is not None and found.state is RunState.ACCEPTED:
            self._store.forget(run.id)
            self._holds.pop(run.id, None)
            return True
        return found is None

    async def release(self, run_id: RunId, *, after_s: float) -> None:
        hold = self._hold(run_id)
        hold.is_owned, hold.due_at = False, time.time() + after_s

    async def overdue(self, *, after_s: float) -> Sequence[RunId]:
        return [run.id for run in self._due(time.time() - after_s)]

    async def borrow(self, run_id: RunId) -> Run | None:
        hold, run = self._hold(run_id), self._runs.get(run_id)
        if run is None or run.state.is_final or hold.is_owned or hold.due_at is None:
            return None
        hold.is_owned = True
        return run

    async def give_back(self, run_id: RunId) -> None:
        self._hold(run_id).is_owned = False

    def _hold(self, run_id: RunId) -> _Hold:
        return self._holds.setdefault(run_id, _Hold())

    def _due(self, now_s: float) -> Sequence[Run]:
        return [
            run
            for run in self._runs.values()
            for hold in [self._hold(run.id)]
            if not run.state.is_final
            and not hold.is_owned
            and hold.due_at is not None
            and hold.due_at <= now_s
        ]

    def _advanced(self) -> Sequence[Run]:
        return [
            run
            for run in self._runs.values()
            if not run.state.is_final and self._hold(run.id).is_advanced
        ]

    def _is_over(self, run: Run, waits_since: float) -> bool:
        is_late = run.attempt == 0 and run.created_at.timestamp() < waits_since
        return run.outcome is not None or run.stop_requested_by is not None or is_late

    def _is_next(self, run: Run) -> bool:
        return not any(
            other.thread == run.thread
            and other.id != run.id
            and not other.state.is_final
            and (_order(other) < _order(run) or self._hold(other.id).is_advanced)
            for other in self._runs.values()
        )

    def _rank(self, run: Run, taken: Mapping[tuple[str, str], int]) -> tuple[bool, int, float, str]:
        served = max(
            self._hold(other.id).claimed_at
            for other in self._runs.values()
            if _person(other) == _person(run)
        )
        return run.attempt == 0, taken[_person(run)], served, run.request.message_ts

    def _take(self, run: Run) -> None:
        hold = self._hold(run.id)
        hold.is_owned, hold.due_at, hold.claimed_at = True, None, time.time()


def _person(run: Run) -> tuple[str, str]:
    return run.request.team, run.request.user


def _order(run: Run) -> tuple[str, datetime, RunId]:
    return run.request.message_ts, run.created_at, run.id


class MemoryRunFiles:
    def __init__(self) -> None:
        self._files: dict[tuple[RunId, RunFileKind], str] = {}

    async def save(self, run_id: RunId, kind: RunFileKind, content: str) -> None:
        self._files[run_id, kind] = content

    async def append(self, run_id: RunId, kind: RunFileKind, line: str) -> None:
        key = (run_id, kind)
        self._files[key] = f"{self._files[key]}\n{line}" if key in self._files else line

    async def load(self, run_id: RunId, kind: RunFileKind) -> str:
        return self._files.get((run_id, kind), "")

    def forget(self, run_id: RunId) -> None:
        for kind in RunFileKind:
            self._files.pop((run_id, kind), None)


class MemorySpendingStore:
    def __init__(self) -> None:
        self._calls: dict[str, SpentCall] = {}

    async def add(self, calls: Sequence[SpentCall]) -> None:
        self._calls |= {call.id: call for call in calls}

    async def sums(self, day: date) -> Mapping[BudgetKey, int]:
        sums: Counter[BudgetKey] = Counter()
        for call in self._calls.values():
            if day_of(call.at) == day:
                sums.update(charges(call))
        return sums

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


class MemoryWelcomeStore:
    def __init__(self) -> None:
        self._welcomed: set[tuple[str, str]] = set()

    async def claim(self, team: str, person: str) -> bool:
        is_new = (team, person) not in self._welcomed
        self._welcomed.add((team, person))
        return is_new

    async def release(self, team: str, person: str) -> None:
        self._welcomed.discard((team, person))

    async def count(self) -> int:
        return len(self._welcomed)


class MemoryThreadStore:
    def __init__(self, runs: Mapping[RunId, Run]) -> None:
        self._runs = runs
        self._muted: dict[Thread, tuple[str, bool]] = {}

    async def has_run(self, thread: Thread) -> bool:
        return any(run.thread == thread for run in self._runs.values())

    async def mute(self, thread: Thread, *, user: str, ts: str, is_muted: bool) -> bool:
        del user
        is_new = self._muted.get(thread, ("", False))[0] < ts
        if is_new:
            self._muted[thread] = (ts, is_muted)
        return is_new

    async def is_muted(self, thread: Thread) -> bool:
        return self._muted.get(thread, ("", False))[1]


class MemoryChannelNoteStore:
    def __init__(self) -> None:
        self._notes: dict[str, ChannelNote] = {}

    async def of(self, team: str, channel: str) -> Sequence[ChannelNote]:
        return [note for note in self._of(team, channel) if not note.forgotten_by]

    async def add(self, note: ChannelNote) -> ChannelNote:
        number = len(self._of(note.team, note.channel)) + 1
        return self._notes.setdefault(note.run_id, replace(note, number=number))

    async def forget(
        self, team: str, channel: str, numbers: Collection[int], *, by: str
    ) -> Sequence[int]:
        for note in await self.of(team, channel):
            if note.number in numbers:
                gone = replace(note, forgotten_by=by, text="", user="", name="")
                self._notes[note.run_id] = gone
        return [note.number for note in self._of(team, channel) if note.forgotten_by == by]

    def _of(self, team: str, channel: str) -> Sequence[ChannelNote]:
        return [one for one in self._notes.values() if (one.team, one.channel) == (team, channel)]


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
        other.thread == run.thread
        and other.request.message_ts < run.request.message_ts
        and not other.request.is_candidate
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
