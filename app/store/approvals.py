"""What waits for people's answers, in SQLite, in PostgreSQL, and in memory."""

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from app.approvals.records import (
    GIVEN_STATES,
    MAX_WAITING_OF_RUN,
    OPEN_STATES,
    TELLING_S,
    TOLD_AT_ONCE,
    Approval,
    ApprovalAnswer,
    ApprovalState,
    TooManyWaitingError,
    Unanswered,
)
from app.audit.records import AuditEntry, AuditLog
from app.errors import LeaseLostError
from app.runs.model import FINAL_STATES, Run
from app.runs.request import RunId
from app.store.audit import add_entry
from app.store.engine import Database
from app.store.leases import later
from app.store.tables import Now, approval_hits, approvals, in_states, insert_for, runs, values_of

ID_CHARS = 24


class SqlApprovalStore:
    """Implements ApprovalStore; `SqlRunStore.approvals` is one."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._call = database.call

    async def ask(self, approval: Approval, *, attempt: int | None = None) -> Approval:
        of_run = approvals.c.run_id == approval.run_id
        same = (
            sa.select(approvals)
            .where(of_run, approvals.c.digest == approval.digest)
            .order_by(approvals.c.number.desc())
            .limit(1)
        )
        is_waiting = (approvals.c.state == ApprovalState.WAITING) & (approvals.c.until > Now())
        counts = sa.select(
            sa.func.coalesce(sa.func.max(approvals.c.number), 0),
            sa.func.count().filter(is_waiting),
        ).where(of_run)

        # A run's own: two requests of it at once get two numbers, or one row where they want the same.
        lock = sa.select(runs.c.attempt).where(runs.c.id == approval.run_id).with_for_update()

        def work(connection: sa.Connection) -> Approval:
            current = connection.scalar(lock)
            if attempt is not None and attempt != current:
                raise LeaseLostError(approval.run_id)
            found = _first(connection, same)
            if found is not None and not _is_done(found):
                return found
            highest, waiting = connection.execute(counts).one()
            new = _numbered(approval, highest + 1, waiting=waiting)
            connection.execute(sa.insert(approvals).values(values_of(new)))
            return new

        return await self._database.insert(work)

    async def get(self, approval_id: str) -> Approval | None:
        query = sa.select(approvals).where(approvals.c.id == approval_id)
        return await self._call(lambda connection: _first(connection, query))

    async def get_all(self, approval_ids: Collection[str]) -> Mapping[str, Approval]:
        query = sa.select(approvals).where(approvals.c.id.in_(approval_ids))
        rows = await self._call(lambda connection: _all(connection, query))
        return {row.id: row for row in rows}

    async def answer(
        self,
        approval_id: str,
        answer: ApprovalAnswer,
        *,
        is_for_thread: bool,
        entry: AuditEntry | None = None,
    ) -> Approval | Unanswered:
        own = approvals.c.id == approval_id

        def work(connection: sa.Connection) -> Approval | Unanswered:
            # Taken before it is read, so that of two answers at once the later one knows the other.
            connection.execute(sa.update(approvals).where(own).values(id=approvals.c.id))
            found = _first(connection, sa.select(approvals).where(own))
            is_late = connection.scalar(sa.select(approvals.c.until <= Now()).where(own))
            answered = _answer(found, answer, is_late=bool(is_late), is_for_thread=is_for_thread)
            if isinstance(answered, Approval):
                connection.execute(sa.update(approvals).where(own).values(values_of(answered)))
                if entry is not None:
                    add_entry(connection, entry)
            return answered

        return await self._call(work)

    async def use(self, approval_id: str) -> bool:
        allowed = (approvals.c.id == approval_id) & (approvals.c.state == ApprovalState.ALLOWED)
        used = sa.update(approvals).where(allowed).values(state=ApprovalState.USED, is_told=False)
        return await self._call(lambda connection: connection.execute(used).rowcount == 1)

    async def is_allowed_in(self, thread_key: str, *, asker: str, rule: str, target: str) -> bool:
        query = (
            sa.select(approvals.c.id)
            .where(
                approvals.c.thread_key == thread_key,
                approvals.c.asker == asker,
                approvals.c.rule == rule,
                approvals.c.target == target,
                approvals.c.is_for_thread,
                approvals.c.state.in_(sorted(GIVEN_STATES)),
            )
            .limit(1)
        )
        return await self._call(lambda connection: connection.scalar(query)) is not None

    async def claim_telling(self, approval_id: str) -> bool:
        until = approvals.c.telling_until
        is_free = (approvals.c.id == approval_id) & (until.is_(None) | (until <= Now()))
        claimed = sa.update(approvals).where(is_free).values(telling_until=later(TELLING_S))
        return await self._call(lambda connection: connection.execute(claimed).rowcount == 1)

    async def release_telling(self, approval_id: str) -> None:
        own = sa.update(approvals).where(approvals.c.id == approval_id)
        await self._call(lambda connection: connection.execute(own.values(telling_until=None)))

    async def tell(self, approval: Approval, *, card_ts: str) -> bool:
        own = approvals.c.id == approval.id

        def work(connection: sa.Connection) -> bool:
            connection.execute(sa.update(approvals).where(own).values(telling_until=None))
            found = _first(connection, sa.select(approvals).where(own))
            if found is None:
                return True
            is_all = _as_told(found, card_ts) == _as_told(approval, card_ts)
            told = sa.update(approvals).where(own).values(card_ts=card_ts, is_told=is_all)
            connection.execute(told)
            return is_all

        return await self._call(work)

    async def close(self) -> Sequence[Approval]:
        is_open = approvals.c.state.in_(sorted(OPEN_STATES))
        is_over = sa.exists().where(runs.c.id == approvals.c.run_id, in_states(runs, FINAL_STATES))
        waits = approvals.c.state == ApprovalState.WAITING
        withdrawn = sa.update(approvals).where(is_open, is_over)
        expired = sa.update(approvals).where(waits, approvals.c.until <= Now())
        untold = (
            sa.select(approvals)
            .where(~approvals.c.is_told)
            .order_by(approvals.c.asked_at)
            .limit(TOLD_AT_ONCE)
        )

        def work(connection: sa.Connection) -> Sequence[Approval]:
            for ended, state in (
                (withdrawn, ApprovalState.WITHDRAWN),
                (expired, ApprovalState.EXPIRED),
            ):
                connection.execute(ended.values(state=state, ended_at=Now(), is_told=False))
            return _all(connection, untold)

        return await self._call(work)

    async def waiting(self, team: str) -> Sequence[Approval]:
        query = (
            sa.select(approvals)
            .where(approvals.c.team == team, approvals.c.state == ApprovalState.WAITING)
            .order_by(approvals.c.asked_at)
        )
        return await self._call(lambda connection: _all(connection, query))

    async def of_run(self, run_id: str) -> Sequence[Approval]:
        query = sa.select(approvals).where(approvals.c.run_id == run_id)
        ordered = query.order_by(approvals.c.number)
        return await self._call(lambda connection: _all(connection, ordered))

    async def count(self, decided: Mapping[str, int]) -> None:
        rows = [{"rule": rule, "hits": hits} for rule, hits in sorted(decided.items())]

        def work(connection: sa.Connection) -> None:
            first = insert_for(connection, approval_hits)
            more = {"hits": approval_hits.c.hits + first.excluded.hits}
            added = first.on_conflict_do_update(index_elements=["rule"], set_=more)
            connection.execute(added, rows)

        await self._call(work)

    async def hits(self) -> Mapping[str, int]:
        query = sa.select(approval_hits.c.rule, approval_hits.c.hits)
        rows = await self._call(lambda connection: connection.execute(query).all())
        return {row.rule: row.hits for row in rows}


class MemoryApprovalStore:
    """Implements ApprovalStore for as long as its process lives; `MemoryRunStore.approvals` is one."""

    def __init__(self, known: Mapping[RunId, Run], audit: AuditLog) -> None:
        """`known`: all runs."""
        self._runs = known
        self._audit = audit
        self._rows: dict[str, Approval] = {}
        self._telling_until: dict[str, datetime] = {}
        self._hits: Counter[str] = Counter()

    async def ask(self, approval: Approval, *, attempt: int | None = None) -> Approval:
        run = self._runs.get(RunId(approval.run_id))
        if attempt is not None and (run is None or run.attempt != attempt):
            raise LeaseLostError(approval.run_id)
        of_run = await self.of_run(approval.run_id)
        same = [one for one in of_run if one.digest == approval.digest]
        if same and not _is_done(same[-1]):
            return same[-1]
        now, waits = datetime.now(UTC), ApprovalState.WAITING
        waiting = sum(one.state is waits and one.until > now for one in of_run)
        new = _numbered(approval, len(of_run) + 1, waiting=waiting)
        self._rows[new.id] = new
        return new

    async def get(self, approval_id: str) -> Approval | None:
        return self._rows.get(approval_id)

    async def get_all(self, approval_ids: Collection[str]) -> Mapping[str, Approval]:
        return {one: self._rows[one] for one in approval_ids if one in self._rows}

    async def answer(
        self,
        approval_id: str,
        answer: ApprovalAnswer,
        *,
        is_for_thread: bool,
        entry: AuditEntry | None = None,
    ) -> Approval | Unanswered:
        found = self._rows.get(approval_id)
        is_late = found is not None and found.until <= datetime.now(UTC)
        result = _answer(found, answer, is_late=is_late, is_for_thread=is_for_thread)
        if isinstance(result, Approval):
            self._rows[approval_id] = result
            if entry is not None:
                await self._audit.add(entry)
        return result

    async def use(self, approval_id: str) -> bool:
        found = self._rows.get(approval_id)
        if found is None or found.state is not ApprovalState.ALLOWED:
            return False
        self._rows[approval_id] = replace(found, state=ApprovalState.USED, is_told=False)
        return True

    async def is_allowed_in(self, thread_key: str, *, asker: str, rule: str, target: str) -> bool:
        return any(
            (one.thread_key, one.asker, one.rule, one.target) == (thread_key, asker, rule, target)
            and one.is_for_thread
            and one.state in GIVEN_STATES
            for one in self._rows.values()
        )

    async def claim_telling(self, approval_id: str) -> bool:
        now = datetime.now(UTC)
        if approval_id not in self._rows or self._telling_until.get(approval_id, now) > now:
            return False
        self._telling_until[approval_id] = now + timedelta(seconds=TELLING_S)
        return True

    async def release_telling(self, approval_id: str) -> None:
        self._telling_until.pop(approval_id, None)

    async def tell(self, approval: Approval, *, card_ts: str) -> bool:
        self._telling_until.pop(approval.id, None)
        found = self._rows.get(approval.id)
        if found is None:
            return True
        is_all = _as_told(found, card_ts) == _as_told(approval, card_ts)
        self._rows[approval.id] = replace(found, card_ts=card_ts, is_told=is_all)
        return is_all

    async def close(self) -> Sequence[Approval]:
        now = datetime.now(UTC)
        for one in list(self._rows.values()):
            state = one.state
            run = self._runs.get(RunId(one.run_id))
            if state in OPEN_STATES and (run is None or run.state.is_final):
                state = ApprovalState.WITHDRAWN
            elif state is ApprovalState.WAITING and one.until <= now:
                state = ApprovalState.EXPIRED
            if state is not one.state:
                self._rows[one.id] = replace(one, state=state, ended_at=now, is_told=False)
        return [one for one in self._rows.values() if not one.is_told][:TOLD_AT_ONCE]

    async def waiting(self, team: str) -> Sequence[Approval]:
        waiting = ApprovalState.WAITING
        return [one for one in self._rows.values() if (one.team, one.state) == (team, waiting)]

    async def count(self, decided: Mapping[str, int]) -> None:
        self._hits.update(decided)

    async def hits(self) -> Mapping[str, int]:
        return self._hits

    async def of_run(self, run_id: str) -> Sequence[Approval]:
        return [one for one in self._rows.values() if one.run_id == run_id]


def _answer(
    found: Approval | None, answer: ApprovalAnswer, *, is_late: bool, is_for_thread: bool
) -> Approval | Unanswered:
    """Returns it with this answer, or why that does not count."""
    if found is None:
        return Unanswered.UNKNOWN
    if found.state is not ApprovalState.WAITING or is_late:
        return Unanswered.OVER
    if answer.is_allowed and any(one.user == answer.user for one in found.answers):
        return Unanswered.AGAIN
    answers = (*found.answers, replace(answer, is_for_thread=is_for_thread))
    is_decided = not answer.is_allowed or len(answers) >= found.people
    decided = ApprovalState.ALLOWED if answer.is_allowed else ApprovalState.DENIED
    return replace(
        found,
        answers=answers,
        state=decided if is_decided else ApprovalState.WAITING,
        # All who have said yes have said it for the thread.
        is_for_thread=is_decided and all(one.is_for_thread for one in answers),
        ended_at=answer.at if is_decided else None,
        is_told=False,
    )


def _numbered(approval: Approval, number: int, *, waiting: int) -> Approval:
    """Returns a run's new row. Raises: TooManyWaitingError."""
    if waiting >= MAX_WAITING_OF_RUN and not approval.is_orions:
        raise TooManyWaitingError
    return replace(approval, number=number, id=_id_of(approval.run_id, number))


def _is_done(found: Approval) -> bool:
    return found.state is ApprovalState.USED and found.is_once


def _as_told(approval: Approval, card_ts: str) -> Approval:
    return replace(approval, card_ts=card_ts, is_told=True)


def _id_of(run_id: str, number: int) -> str:
    return f"apv_{hashlib.sha256(f'{run_id} {number}'.encode()).hexdigest()[:ID_CHARS]}"


def _first(connection: sa.Connection, query: sa.Select[Any]) -> Approval | None:
    return next(iter(_all(connection, query)), None)


def _all(connection: sa.Connection, query: sa.Select[Any]) -> Sequence[Approval]:
    rows = connection.execute(query).mappings()
    return [Approval(**{name: row[name] for name in _FIELDS}) for row in rows]


_FIELDS = tuple(field.name for field in fields(Approval))
