"""Which process has which run: processes are rows that say how long they live, a run names its owner, claims are short transactions.

    owner   due_at   claimed_at
    own     -        -            accepted: it is placed by the process that accepted it
    -       when     any          it waits to be claimed, from that time on
    own     when     any          borrowed: it waits, but nobody claims it
    own     -        when         it is advanced

All times are the database's.
"""

import os
import secrets
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TypeVar

import sqlalchemy as sa
from typing_extensions import Unpack

from app import __version__
from app.audit.records import AuditEntry
from app.errors import LeaseLostError
from app.runs.model import UNFINISHED_STATES, Process, ProcessId, Run, RunState
from app.runs.policy import MAX_ATTEMPTS
from app.runs.ports import RunChanges
from app.runs.request import RunId
from app.store.audit import add_entry
from app.store.engine import Database
from app.store.migrations import require_version
from app.store.tables import Now, UtcTime, in_states, processes, run_of, runs, values_of

LEASE_S = 14.0
"""How long a process that is not heard of keeps what it has, where others could take it over."""
SOLE_LEASE_S = 1e9
"""Where none can."""
TURNS_WINDOW = timedelta(hours=1)
"""Whoever was served longer ago is as good as never served."""
CLAIM_LOCK_KEY = 7_091_512
"""Any number, the same in all processes: whoever holds this advisory lock of PostgreSQL's claims."""
CLAIMED_AT_ONCE = 64
MAX_DRAINED = 10
"""Attempts of a run that do not count, as the process was told to end: there may be a reason in the run why they are."""
REMEMBERED = 5_000
"""More than go at once."""
EXACT_S = 1.0
"""Clocks that are off by less are taken for the same."""

T = TypeVar("T")

_PROCESS = [processes.c[field.name] for field in fields(Process)]
_NOW_S = sa.select(sa.type_coerce(Now(), sa.Double))
_UNFINISHED = in_states(runs, UNFINISHED_STATES)
_IS_UNPLACED = runs.c.due_at.is_(None) & runs.c.claimed_at.is_(None)
_IS_ADVANCED = runs.c.owner.is_not(None) & runs.c.due_at.is_(None) & runs.c.claimed_at.is_not(None)


def _this_process() -> Process:
    now = datetime.now(UTC)
    return Process(
        id=_new_id(),
        owner=f"p-{secrets.token_hex(16)}",
        name=f"{socket.gethostname()}:{os.getpid()}",
        place="",
        host=None,
        is_working=True,
        started_at=now,
        alive_until=now,
        version=__version__,
    )


def _new_id() -> ProcessId:
    return ProcessId(secrets.token_hex(8))


class SqlLeases:
    """Implements `app.dispatch.lease.Leases`; `SqlRunStore.leases` is one."""

    def __init__(
        self,
        database: Database,
        *,
        is_shared: bool,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """`is_shared`: several processes may work on the database. `now_s`: this machine's clock."""
        self._database = database
        self._call = database.call
        self._now_s = now_s
        self._is_shared = is_shared
        self._lease_s = LEASE_S if is_shared else SOLE_LEASE_S
        self._process = _this_process()
        self._settings: Mapping[str, str] | None = None
        self._is_known = False
        self._skew_s = 0.0
        self._begun: dict[RunId, None] = {}
        """Runs of which this process has begun the last attempt, the last ones last."""

    @property
    def process(self) -> Process:
        return self._process

    def note_begun(self, run_id: RunId) -> None:
        """Notes that this process begins an attempt of a run, or goes on with one."""
        self._begun.pop(run_id, None)
        self._begun[run_id] = None
        if len(self._begun) > REMEMBERED:
            del self._begun[next(iter(self._begun))]

    def skew_s(self) -> float:
        """Returns by how many seconds the database's clock was ahead of this process's when its lease was renewed last; 0 on a database of its own, and for what a slow answer may explain."""
        return self._skew_s

    def describe(
        self,
        *,
        place: str,
        is_working: bool,
        host: str | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Says what this process is, before it joins; see `Process`. `settings`: hashes, by names, for others to compare; None = not told."""
        self._process = replace(self._process, place=place, host=host, is_working=is_working)
        self._settings = settings

    @property
    def id(self) -> ProcessId:
        return self._process.id

    @property
    def is_shared(self) -> bool:
        return self._is_shared

    async def join(self) -> None:
        comes_back = self._is_known
        if comes_back:
            self._process = replace(self._process, id=_new_id())
        self._is_known = True
        row = values_of(self._process) | {
            "alive_until": later(self._lease_s),
            "settings": self._settings,
        }

        def work(connection: sa.Connection) -> None:
            if comes_back:
                require_version(connection, self._database.name)
            if not self._is_shared:
                connection.execute(sa.delete(processes))
            self._compare_clocks(connection)
            connection.execute(sa.insert(processes).values(row))

        await self._call(work)

    async def renew(self) -> int:
        own = sa.update(processes).where(processes.c.id == self.id)
        renewed = own.values(alive_until=later(self._lease_s))
        count = sa.select(sa.func.count()).where(processes.c.alive_until >= Now())

        def work(connection: sa.Connection) -> int:
            self._compare_clocks(connection)
            lives = connection.execute(renewed).rowcount == 1
            return connection.execute(count).scalar_one() if lives else 0

        return await self._call(work)

    def _compare_clocks(self, connection: sa.Connection) -> None:
        if not self._is_shared:
            return
        before_s = self._now_s()
        told_s, after_s = connection.execute(_NOW_S).scalar_one(), self._now_s()
        if after_s - before_s < EXACT_S:
            ahead_s = told_s - (before_s + after_s) / 2
            self._skew_s = ahead_s if abs(ahead_s) > EXACT_S else 0.0

    async def living(self) -> Sequence[Process]:
        """Returns the processes whose own is their own, oldest first."""
        query = sa.select(*_PROCESS).where(processes.c.alive_until >= Now())
        ordered = query.order_by(processes.c.started_at)
        rows = await self._call(lambda connection: connection.execute(ordered).mappings().all())
        return [Process(**row) for row in rows]

    async def owned(self) -> Mapping[ProcessId, int]:
        """Returns how many unfinished runs each process has."""
        counted = sa.select(runs.c.owner, sa.func.count()).where(
            _UNFINISHED, runs.c.owner.is_not(None)
        )
        query = counted.group_by(runs.c.owner)
        rows = await self._call(lambda connection: connection.execute(query).all())
        return {ProcessId(owner): int(count) for owner, count in rows}

    async def settings_of_others(self) -> Mapping[str, Mapping[str, str]]:
        """Returns what `describe` was told of settings in the other living processes, by the processes' names."""
        told = (processes.c.alive_until >= Now()) & processes.c.settings.is_not(sa.null())
        columns = (processes.c.name, processes.c.settings)
        query = sa.select(*columns).where(told, processes.c.id != self.id)
        rows = await self._call(lambda connection: connection.execute(query).all())
        return {row.name: row.settings for row in rows}

    async def lives(self, process: ProcessId) -> bool:
        known = (processes.c.id == process) & (processes.c.alive_until >= Now())
        query = sa.select(processes.c.id).where(known)
        return await self._call(lambda connection: connection.scalar(query)) is not None

    async def leads(self) -> bool:
        """Whether this is the oldest living process that works: it does what one of them has to do."""
        if not self._is_shared:
            return True
        working = [process for process in await self.living() if process.is_working]
        return bool(working) and working[0].id == self.id

    async def late(self) -> int:
        query = sa.select(sa.func.count()).where(processes.c.alive_until < Now())
        return await self._call(lambda connection: connection.execute(query).scalar_one())

    async def take_over(self, *, again: bool = False, late_s: float = 0) -> Sequence[Run]:
        dead = sa.delete(processes).where(processes.c.alive_until < later(-late_s))
        owner_lives = sa.exists().where(processes.c.id == runs.c.owner)
        is_left = _UNFINISHED & runs.c.owner.is_not(None) & ~owner_lives
        freed = (
            sa.update(runs)
            .where(is_left, ~_IS_UNPLACED)
            .values(owner=None, due_at=sa.func.coalesce(runs.c.due_at, Now()))
        )
        is_free = runs.c.owner.is_(None) | ~owner_lives
        if again:
            is_free |= runs.c.owner == self.id
        left = sa.and_(_UNFINISHED, _IS_UNPLACED, is_free)
        taken = sa.update(runs).where(left).values(owner=self.id).returning(runs.c.id)

        def work(connection: sa.Connection) -> Sequence[Run]:
            connection.execute(dead)
            connection.execute(freed)
            ids = connection.scalars(taken).all()
            return sorted(_select(connection, ids), key=_asked)

        return await self._call(work)

    async def unclaim(self, run_ids: Collection[RunId]) -> None:
        own = runs.c.id.in_(run_ids) & (runs.c.owner == self.id)
        freed = sa.update(runs).where(own, _UNFINISHED, _IS_UNPLACED).values(owner=None)
        await self._call(lambda connection: connection.execute(freed))

    async def leave(self, *, is_brief: bool = False) -> None:
        own = _UNFINISHED & (runs.c.owner == self.id)
        advanced = sa.update(runs).where(own, _IS_ADVANCED)
        is_begun = runs.c.id.in_(self._begun) & runs.c.checkpoint.is_(sa.null())
        drained = sa.update(runs).where(own, _IS_ADVANCED, is_begun, runs.c.drained < MAX_DRAINED)
        drained = drained.values(drained=runs.c.drained + 1)

        def work(connection: sa.Connection) -> None:
            if self._begun and not is_brief:
                connection.execute(drained)
            connection.execute(advanced.values(due_at=Now()))
            connection.execute(sa.update(runs).where(own).values(owner=None))
            connection.execute(sa.delete(processes).where(processes.c.id == self.id))

        await self._call(work)

    async def claim(self, *, slots: int, waits_s: float) -> Sequence[Run]:
        values = {"waits_s": waits_s}

        def work(connection: sa.Connection) -> Sequence[Run]:
            if connection.dialect.name == "postgresql":
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(CLAIM_LOCK_KEY)))
            chosen = list(connection.scalars(_FREE, values))
            if slots:
                chosen += connection.scalars(_NEXT, values).all()[:slots]
            if not chosen:
                return []
            # Somebody may have borrowed one since it was chosen.
            waits = runs.c.id.in_(chosen) & runs.c.owner.is_(None) & runs.c.due_at.is_not(None)
            claimed = sa.update(runs).where(waits).values(_CLAIMED | {"owner": self.id})
            taken = set(connection.scalars(claimed.returning(runs.c.id)))
            return _select(connection, [run_id for run_id in chosen if run_id in taken])

        return await self._call(work)

    async def find_lost(self, known: Collection[RunId]) -> Sequence[Run]:
        own = (runs.c.owner == self.id) & _UNFINISHED & _IS_ADVANCED & runs.c.id.not_in(known)
        query = sa.select(runs.c.id).where(own).order_by(runs.c.message_ts)
        return await self._call(
            lambda connection: _select(connection, connection.scalars(query).all())
        )

    async def holds(self, run_id: RunId) -> bool:
        is_own = (runs.c.id == run_id) & _UNFINISHED & (runs.c.owner == self.id)
        query = sa.select(runs.c.id).where(is_own, _IS_UNPLACED)
        return await self._call(lambda connection: connection.scalar(query)) is not None

    async def schedule(
        self, run_id: RunId, *, entry: AuditEntry | None = None, **changes: Unpack[RunChanges]
    ) -> None:
        statement = _schedule(frozenset(changes))
        values = {f"new_{name}": value for name, value in changes.items()}
        values |= {"run_id": run_id, "process": self.id}

        def work(connection: sa.Connection) -> None:
            is_changed = connection.execute(statement, values).rowcount == 1
            if not is_changed and connection.scalar(_FIND_UNFINISHED, values) is not None:
                raise LeaseLostError(run_id)
            if entry is not None:
                add_entry(connection, entry)

        await self._call(work)

    async def discard(self, run: Run) -> bool:
        unplaced = (runs.c.id == run.id) & (runs.c.state == RunState.ACCEPTED) & _IS_UNPLACED
        as_read = unplaced & (runs.c.revision == run.revision) & (runs.c.owner == self.id)

        def work(connection: sa.Connection) -> bool:
            if connection.execute(sa.delete(runs).where(as_read)).rowcount == 1:
                return True
            owner = connection.scalar(sa.select(runs.c.owner).where(unplaced))
            if owner is not None and owner != self.id:
                raise LeaseLostError(run.id)
            return connection.scalar(sa.select(runs.c.id).where(runs.c.id == run.id)) is None

        return await self._call(work)

    async def release(self, run_id: RunId, *, after_s: float) -> None:
        own = (runs.c.id == run_id) & _UNFINISHED & (runs.c.owner == self.id)
        statement = sa.update(runs).where(own).values(owner=None, due_at=later(after_s))
        await self._call(lambda connection: connection.execute(statement))

    async def overdue(self, *, after_s: float) -> Sequence[RunId]:
        is_due = runs.c.due_at <= later(-after_s)
        is_unplaced = _IS_UNPLACED & (runs.c.created_at <= later(-after_s))
        query = (
            sa.select(runs.c.id)
            .where(_UNFINISHED, runs.c.owner.is_(None), is_due | is_unplaced)
            .order_by(runs.c.created_at)
            .limit(CLAIMED_AT_ONCE)
        )
        ids = await self._call(lambda connection: connection.scalars(query).all())
        return [RunId(run_id) for run_id in ids]

    async def borrow(self, run_id: RunId) -> Run | None:
        waits = (runs.c.id == run_id) & _UNFINISHED
        waits &= runs.c.owner.is_(None) & runs.c.due_at.is_not(None)
        statement = sa.update(runs).where(waits).values(owner=self.id)

        def work(connection: sa.Connection) -> Run | None:
            if connection.execute(statement).rowcount != 1:
                return None
            return next(iter(_select(connection, [run_id])), None)

        return await self._call(work)

    async def give_back(self, run_id: RunId) -> None:
        own = (runs.c.id == run_id) & (runs.c.owner == self.id) & runs.c.due_at.is_not(None)
        statement = sa.update(runs).where(own).values(owner=None)
        await self._call(lambda connection: connection.execute(statement))


_CLAIMED = {"due_at": None, "claimed_at": Now()}
_OF_RUN = (runs.c.id == sa.bindparam("run_id")) & _UNFINISHED
_FIND_UNFINISHED = sa.select(runs.c.id).where(_OF_RUN)


@lru_cache
def _schedule(names: frozenset[str]) -> sa.Update:
    """Returns the statement for changes of these columns: to compose it takes longer than to carry it out."""
    changes: dict[str, object] = {name: sa.bindparam(f"new_{name}") for name in names}
    own = sa.update(runs).where(_OF_RUN, runs.c.owner == sa.bindparam("process"))
    return own.values({**changes, "owner": None, "due_at": Now()})


def later(seconds: float) -> sa.ColumnElement[datetime]:
    """Returns the time in so many seconds, by the database's clock."""
    return sa.type_coerce(sa.type_coerce(Now(), sa.Double) + seconds, UtcTime())


def _select(connection: sa.Connection, run_ids: Sequence[str]) -> Sequence[Run]:
    """Returns these runs in this order."""
    if not run_ids:
        return []
    rows = connection.execute(sa.select(runs).where(runs.c.id.in_(run_ids))).mappings()
    found = {row["id"]: run_of(row) for row in rows}
    return [found[RunId(run_id)] for run_id in run_ids if run_id in found]


def _asked(run: Run) -> tuple[datetime, datetime]:
    return run.request.asked_at, run.created_at


_WAITS = sa.type_coerce(Now(), sa.Double) - sa.bindparam("waits_s", type_=sa.Double)
_IS_OVER = (
    runs.c.outcome.is_not(sa.null())
    | runs.c.stop_requested_by.is_not(None)
    | ((runs.c.attempt == 0) & (sa.type_coerce(runs.c.created_at, sa.Double) < _WAITS))
)
"""There is only something to tell: neither its thread nor a slot is waited for."""
_IS_FREE = (
    _IS_OVER
    | ~runs.c.needs_slot
    | ((runs.c.attempt - runs.c.drained >= MAX_ATTEMPTS) & runs.c.checkpoint.is_(sa.null()))
)
_IS_DUE = _UNFINISHED & (runs.c.due_at <= Now()) & runs.c.owner.is_(None)


def _must_wait() -> sa.ColumnElement[bool]:
    """Whether another run of its thread comes first, or is advanced."""
    other = runs.alias("other")
    comes_first = sa.tuple_(other.c.message_ts, other.c.created_at, other.c.id) < sa.tuple_(
        runs.c.message_ts, runs.c.created_at, runs.c.id
    )
    is_advanced = (
        other.c.owner.is_not(None) & other.c.due_at.is_(None) & other.c.claimed_at.is_not(None)
    )
    return (
        sa.exists()
        .where(
            other.c.thread_key == runs.c.thread_key,
            other.c.id != runs.c.id,
            in_states(other, UNFINISHED_STATES),
            comes_first | is_advanced,
        )
        .correlate(runs)
    )


def _next() -> sa.Select[tuple[str]]:
    """Selects the runs that may be given slots, in order."""
    waiting = (
        sa.select(
            *(runs.c.id, runs.c.team, runs.c.user, runs.c.message_ts),
            (runs.c.attempt > 0).label("has_begun"),
        )
        .where(_IS_DUE, ~_IS_FREE, ~_must_wait())
        .cte("waiting")
    )
    people = _people(waiting).cte("people")
    round_ = people.c.slots + sa.func.row_number().over(
        partition_by=(waiting.c.team, waiting.c.user), order_by=waiting.c.message_ts
    )
    return (
        sa.select(waiting.c.id)
        .join(people, (people.c.team == waiting.c.team) & (people.c.user == waiting.c.user))
        .order_by(
            waiting.c.has_begun.desc(),
            round_,
            sa.func.coalesce(people.c.served_at, 0.0),
            waiting.c.message_ts,
        )
        .limit(CLAIMED_AT_ONCE)
    )


def _people(waiting: sa.CTE) -> sa.Select[tuple[str, str, int, datetime]]:
    """Selects whose runs wait, with how many slots each has and when each was given one last."""
    person = sa.select(waiting.c.team, waiting.c.user).distinct().subquery("person")
    of_person = (runs.c.team == person.c.team) & (runs.c.user == person.c.user)
    of_person &= runs.c.created_at >= later(-TURNS_WINDOW.total_seconds())
    has_slot = _UNFINISHED & _IS_ADVANCED & runs.c.needs_slot
    # Grouped, so that it is done once for each person: SQLite would ask subqueries again for each run that waits.
    return (
        sa.select(
            person.c.team,
            person.c.user,
            sa.func.count(runs.c.id).filter(has_slot).label("slots"),
            sa.type_coerce(sa.func.max(runs.c.claimed_at), sa.Double).label("served_at"),
        )
        .select_from(person.outerjoin(runs, of_person))
        .group_by(person.c.team, person.c.user)
    )


_FREE = (
    sa.select(runs.c.id)
    .where(_IS_DUE, _IS_FREE, _IS_OVER | ~_must_wait())
    .order_by(runs.c.message_ts)
    .limit(CLAIMED_AT_ONCE)
)
"""The runs that may be claimed without a slot."""
_NEXT = _next()
