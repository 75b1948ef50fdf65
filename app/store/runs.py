"""Run records in an SQLite file or PostgreSQL, through SQLAlchemy Core, with what goes when they go: their files and model calls."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from typing_extensions import Unpack

from app.aio import open_task_group
from app.errors import ErrorCode, LeaseLostError
from app.runs.budget import JUDGEMENTS, BudgetKey, SpentCall, charges, day_of, to_micro
from app.runs.model import (
    BEGINNING_STATES,
    FINAL_STATES,
    UNDECIDED,
    UNFINISHED_STATES,
    WAITING_STATES,
    QueueStats,
    Run,
    RunFileKind,
    RunState,
)
from app.runs.ports import RunChanges, RunCost
from app.runs.request import RunId, RunRequest, Thread
from app.store import migrations
from app.store.accounts import SqlAccountStore
from app.store.approvals import SqlApprovalStore
from app.store.audit import SqlAuditLog
from app.store.engine import (
    POSTGRES_CONNECTIONS,
    Database,
    accepting_connection,
    accepting_engine,
    close_engine,
    describe_server,
    limits_of,
    name_of,
    postgres_engine,
    refuse_network_file_system,
    sqlite_engine,
)
from app.store.grants import SqlGrantStore
from app.store.group_commit import ACCEPT_TIMEOUT_S, GroupCommit, Writer
from app.store.heard import SqlHeard
from app.store.installation import SqlInstallation
from app.store.leases import SqlLeases
from app.store.pull_requests import SqlPullRequestStore
from app.store.queue import count_queue
from app.store.sessions import SqlSessionStore
from app.store.settings import SqlChannelNoteStore, SqlDefaultStore, SqlOwnKeyStore, SqlWelcomeStore
from app.store.slack_facts import SqlSlackFacts
from app.store.tables import (
    approvals,
    in_states,
    insert_for,
    model_calls,
    pull_requests,
    run_files,
    run_of,
    runs,
    spent_days,
    values_of,
)
from app.store.threads import SqlThreadStore, forget_threads
from app.store.writers import PostgresWriter, SqliteWriter


class SqlRunFiles:
    """Implements RunFiles; `SqlRunStore.files` is one. Removing a run removes its files."""

    def __init__(self, database: Database, leases: SqlLeases) -> None:
        self._database = database
        self._leases = leases

    async def save(self, run_id: RunId, kind: RunFileKind, content: str) -> None:
        key = (run_files.c.run_id == run_id) & (run_files.c.kind == kind)
        is_others = (runs.c.id == run_id) & _UNFINISHED
        is_others &= runs.c.owner.is_distinct_from(self._leases.id)

        def work(connection: sa.Connection) -> None:
            if connection.scalar(sa.select(sa.exists().where(is_others))):
                raise LeaseLostError(run_id)
            connection.execute(sa.delete(run_files).where(key))
            connection.execute(
                sa.insert(run_files).values(run_id=run_id, kind=kind, content=content)
            )

        await self._database.call(work)

    async def append(self, run_id: RunId, kind: RunFileKind, line: str) -> None:
        values = {"run_id": run_id, "kind": kind, "content": line}

        def work(connection: sa.Connection) -> None:
            added = insert_for(connection, run_files).values(values)
            longer = run_files.c.content + "\n" + added.excluded.content
            keys = list(run_files.primary_key)
            connection.execute(
                added.on_conflict_do_update(index_elements=keys, set_={"content": longer})
            )

        await self._database.call(work)

    async def load(self, run_id: RunId, kind: RunFileKind) -> str:
        query = sa.select(run_files.c.content).where(
            run_files.c.run_id == run_id, run_files.c.kind == kind
        )
        return await self._database.call(lambda connection: connection.scalar(query)) or ""


class SqlSpendingStore:
    """Implements SpendingStore; `SqlRunStore.spending` is one. Removing a run removes its calls."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, calls: Sequence[SpentCall]) -> None:
        rows = [values_of(call) for call in calls]

        def work(connection: sa.Connection) -> None:
            # What is there already was carried out after all, though its time was over: it is in the sums.
            insert = insert_for(connection, model_calls).on_conflict_do_nothing()
            new = set(connection.scalars(insert.returning(model_calls.c.id), rows))
            if sums := _sums_of(call for call in calls if call.id in new):
                add = insert_for(connection, spent_days)
                added = spent_days.c.cost + add.excluded.cost
                keys = list(spent_days.primary_key)
                connection.execute(
                    add.on_conflict_do_update(index_elements=keys, set_={"cost": added}), sums
                )

        await self._database.call(work)

    async def sums(self, day: date) -> Mapping[BudgetKey, int]:
        query = sa.select(spent_days).where(spent_days.c.day == day.isoformat())
        rows = await self._database.call(lambda connection: connection.execute(query).all())
        return {(row.kind, row.team, row.name): row.cost for row in rows}

    async def of_run(self, run_id: RunId) -> Sequence[SpentCall]:
        return await self._select(sa.select(model_calls).where(model_calls.c.run_id == run_id))

    async def of_runs(self, since: datetime) -> Sequence[RunCost]:
        """Returns runs that began then or later, with what their records say."""
        columns = (runs.c.started_at, runs.c.user, runs.c.request, runs.c.agent, runs.c.model)
        query = sa.select(*columns, runs.c.outcome).where(runs.c.started_at >= since)
        rows = await self._database.call(lambda connection: connection.execute(query).all())
        return [
            RunCost(
                at=row.started_at,
                user=row.user,
                channel=row.request.channel,
                agent=row.agent,
                model=row.model,
                tokens=outcome.usage.tokens,
                cost=None if outcome.cost_usd is None else to_micro(outcome.cost_usd),
            )
            for row in rows
            for outcome in [row.outcome or UNDECIDED]
        ]

    async def _select(self, query: sa.Select[Any]) -> Sequence[SpentCall]:
        rows = await self._database.call(
            lambda connection: connection.execute(query).mappings().all()
        )
        return [SpentCall(**row) for row in rows]


def _sums_of(calls: Iterable[SpentCall]) -> Sequence[Mapping[str, object]]:
    """Returns rows to add to the sums, in an order that is the same for all processes: so none waits for another in a circle."""
    sums: Counter[tuple[str, str, str, str]] = Counter()
    for call in calls:
        for key, cost in charges(call).items():
            sums[day_of(call.at).isoformat(), *key] += cost
    names = ("day", "kind", "team", "name", "cost")
    return [dict(zip(names, (*key, cost), strict=True)) for key, cost in sorted(sums.items())]


REMOVED_AT_ONCE, REMOVAL_PAUSE_S = 100, 0.1
"""Old runs in one transaction, and the time left to others before the next."""
READ_AT_ONCE = 50
"""Rows made records before the loop may do something else."""
_UNFINISHED = in_states(runs, UNFINISHED_STATES)
"""Named one by one, not as "not in": so the index on the state finds the few among all that are kept."""
_ENDED = in_states(runs, FINAL_STATES)


@asynccontextmanager
async def open_store(location: Path | str) -> AsyncIterator["SqlRunStore"]:
    """Opens the store in this SQLite file, or in this PostgreSQL database (`postgresql://…`), which several processes may share.

    Tables are made on first use.

    Raises:
        UnreadableStoreError: it cannot be reached, or is no store that this Orion can use.
    """
    async with open_task_group() as group:
        writer: Writer
        if isinstance(location, Path):
            location.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            refuse_network_file_system(location)
            engine, threads = sqlite_engine(location), 1
            writer = SqliteWriter(accepting_engine(location), runs, timeout_s=ACCEPT_TIMEOUT_S)
        else:
            engine, threads = postgres_engine(location), POSTGRES_CONNECTIONS
            writer = PostgresWriter(
                accepting_connection(engine, timeout_s=ACCEPT_TIMEOUT_S),
                runs,
                dialect=engine.dialect,
                group=group,
                limit=limits_of(statement_timeout=ACCEPT_TIMEOUT_S),
            )
        name = name_of(location)
        executor = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="run-store")
        try:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(executor, migrations.prepare, engine, name)
            database = Database(engine=engine, executor=executor, name=name)
            yield SqlRunStore(database, GroupCommit(writer))
        finally:
            # One after the other: the last connection to an SQLite file puts its log into it, unless another is just being closed.
            try:
                await writer.close()
            finally:
                await close_engine(engine, executor)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunQuery:
    """Which runs are meant; what is empty or None is any."""

    state: RunState | None = None
    code: ErrorCode | None = None
    provider: str = ""
    agent: str = ""
    user: str = ""
    before: datetime | None = None
    """Accepted earlier than then."""
    limit: int = 50
    """1 to 1,000: all are read at once."""


class SqlRunStore:
    """Make it with `open_store`."""

    def __init__(self, database: Database, acceptances: GroupCommit) -> None:
        self._database = database
        self._call = database.call
        self._acceptances = acceptances
        self.leases = SqlLeases(database, is_shared=database.engine.dialect.name != "sqlite")
        self.sessions = SqlSessionStore(database)
        self.files = SqlRunFiles(database, self.leases)
        self.defaults = SqlDefaultStore(database)
        self.threads = SqlThreadStore(database)
        self.channel_notes = SqlChannelNoteStore(database)
        self.spending = SqlSpendingStore(database)
        self.grants = SqlGrantStore(database)
        self.welcomes = SqlWelcomeStore(database)
        self.installation = SqlInstallation(database)
        self.heard = SqlHeard(database, self.leases)
        self.slack_facts = SqlSlackFacts(database)
        self.approvals = SqlApprovalStore(database)
        self.audit = SqlAuditLog(database)
        self.pull_requests = SqlPullRequestStore(database, self.leases)

    def own_keys(self, secrets: Sequence[str]) -> SqlOwnKeyStore:
        """Returns the store of people's own keys, sealed with these."""
        return SqlOwnKeyStore(self._database, secrets=secrets)

    def accounts(self, secrets: Sequence[str]) -> SqlAccountStore:
        """Returns the store of linked accounts, sealed with these."""
        return SqlAccountStore(self._database, secrets=secrets)

    async def examine(self) -> None:
        """Looks for damage in the whole database, however long it takes.

        Raises:
            UnreadableStoreError
        """
        database = self._database
        await asyncio.get_running_loop().run_in_executor(
            database.executor, migrations.examine, database.engine, database.name
        )

    async def describe_server(self) -> str:
        """Returns what the database is, for its operator."""
        return await self._call(describe_server)

    async def add(self, run: Run) -> bool:
        return await self._acceptances.add(_to_row(run) | {"owner": self.leases.id})

    async def get(self, run_id: RunId) -> Run | None:
        return await self._call(lambda connection: _select_one(connection, run_id))

    async def update(
        self,
        run_id: RunId,
        *,
        while_in: Collection[RunState] = UNFINISHED_STATES,
        **changes: Unpack[RunChanges],
    ) -> Run:
        is_there = in_states(runs, UNFINISHED_STATES & frozenset(while_in))
        changed = await self._change(run_id, is_there, changes)
        if "checkpoint" in changes and changes["checkpoint"] is None:
            self.leases.note_begun(run_id)
        return changed

    async def begin(self, run: Run, **changes: Unpack[RunChanges]) -> Run:
        as_checked = in_states(runs, BEGINNING_STATES) & (runs.c.revision == run.revision)
        begun: RunChanges = {"state": RunState.RUNNING, "attempt": run.attempt + 1}
        changed = await self._change(run.id, as_checked, begun | changes)
        if changed.attempt > run.attempt:  # else it was edited or stopped meanwhile
            self.leases.note_begun(run.id)
        return changed

    async def _change(
        self, run_id: RunId, condition: sa.ColumnElement[bool], changes: RunChanges
    ) -> Run:
        values: dict[str, object] = {**changes}
        if "outcome" in changes:
            values["error_code"] = changes["outcome"].error_code
        key = (runs.c.id == run_id) & condition
        statement = sa.update(runs).where(key, runs.c.owner == self.leases.id).values(**values)

        def work(connection: sa.Connection) -> Run:
            is_changed = not values or connection.execute(statement).rowcount == 1
            if not is_changed and connection.scalar(sa.select(runs.c.id).where(key)) is not None:
                raise LeaseLostError(run_id)
            run = _select_one(connection, run_id)
            if run is None:
                raise KeyError(run_id)
            return run

        return await self._call(work)

    async def request_stop(self, run_id: RunId, *, user: str, at: datetime) -> bool:
        of_run = sa.update(runs).where(
            runs.c.id == run_id, _UNFINISHED, runs.c.stop_requested_at.is_(None)
        )
        is_decided = runs.c.outcome.is_not(sa.null())
        stopped = of_run.where(~is_decided).values(stop_requested_by=user, stop_requested_at=at)
        noted = of_run.where(is_decided).values(stop_requested_at=at)

        def work(connection: sa.Connection) -> bool:
            is_new = connection.execute(stopped).rowcount == 1
            if not is_new:
                connection.execute(noted)
            return is_new

        return await self._call(work)

    async def stop_requested(self, run_ids: Sequence[RunId]) -> Mapping[RunId, str]:
        query = sa.select(runs.c.id, runs.c.stop_requested_by).where(
            runs.c.id.in_(run_ids), runs.c.stop_requested_by.is_not(None)
        )
        rows = await self._call(lambda connection: connection.execute(query).all())
        return {row.id: row.stop_requested_by for row in rows}

    async def amend(self, run_id: RunId, change: Callable[[RunRequest], RunRequest]) -> bool:
        def work(connection: sa.Connection) -> bool:
            run = _select_one(connection, run_id)
            if run is None or (request := change(run.request)) == run.request:
                return False
            statement = sa.update(runs).where(runs.c.id == run_id, in_states(runs, WAITING_STATES))
            amended = statement.values(
                request=request,
                revision=runs.c.revision + 1,
                needs_slot=not request.is_command,
            )
            return connection.execute(amended).rowcount == 1

        return await self._call(work)

    async def unfinished(self) -> Sequence[Run]:
        return await self._select(sa.select(runs).where(_UNFINISHED).order_by(runs.c.created_at))

    async def of_thread(self, thread: Thread) -> Sequence[Run]:
        return await self._select(
            sa.select(runs).where(runs.c.thread_key == thread.key).order_by(runs.c.message_ts)
        )

    async def waiting_in(self, thread_keys: Sequence[str]) -> Sequence[Run]:
        waiting = in_states(runs, WAITING_STATES)
        return await self._select(
            sa.select(runs).where(runs.c.thread_key.in_(thread_keys), waiting)
        )

    async def queue_stats(self, run: Run, *, since: datetime, capacity: int) -> QueueStats:
        return await self._call(
            lambda connection: count_queue(connection, run, since=since, capacity=capacity)
        )

    async def remove_ended(self, *, before: datetime, limit: int) -> int:
        await self._call(lambda connection: _forget(connection, before=before))
        ended_at = sa.func.coalesce(runs.c.ended_at, runs.c.created_at)
        query = sa.select(runs.c.id).where(_ENDED, ended_at < before).order_by(ended_at)
        run_ids = await self._call(lambda connection: connection.scalars(query.limit(limit)).all())
        for start in range(0, len(run_ids), REMOVED_AT_ONCE):
            await self._remove(run_ids[start : start + REMOVED_AT_ONCE])
            await asyncio.sleep(REMOVAL_PAUSE_S)
        return len(run_ids)

    async def _remove(self, run_ids: Sequence[str]) -> None:
        ended = sa.select(runs.c.id).where(runs.c.id.in_(run_ids), _ENDED)

        def work(connection: sa.Connection) -> None:
            for table in (run_files, model_calls, approvals, pull_requests):
                connection.execute(sa.delete(table).where(table.c.run_id.in_(ended)))
            connection.execute(sa.delete(runs).where(runs.c.id.in_(run_ids), _ENDED))

        await self._call(work)

    async def recent(self, *, limit: int) -> Sequence[Run]:
        return await self._select(sa.select(runs).order_by(runs.c.created_at.desc()).limit(limit))

    async def starting_with(self, prefix: str, *, limit: int = 10) -> Sequence[Run]:
        """Returns runs whose id begins like that."""
        query = sa.select(runs).where(runs.c.id.startswith(prefix, autoescape=True)).limit(limit)
        return await self._select(query)

    async def find(self, query: RunQuery) -> Sequence[Run]:
        """Returns the runs that are meant, the newest first."""
        meant = {"state": query.state, "error_code": query.code, "provider": query.provider}
        meant |= {"agent": query.agent, "user": query.user}
        found = sa.select(runs).where(
            *(runs.c[name] == said for name, said in meant.items() if said)
        )
        if query.before is not None:
            found = found.where(runs.c.created_at < query.before)
        return await self._select(found.order_by(runs.c.created_at.desc()).limit(query.limit))

    async def errors(self, since: datetime) -> Sequence[tuple[ErrorCode, int, Run]]:
        """Returns how many of the runs accepted since then ended in each code, with the last of them; the most frequent first."""
        is_meant = runs.c.error_code.is_not(sa.null()) & (runs.c.created_at >= since)
        last = sa.func.max(runs.c.created_at).label("last")
        counted = (
            sa.select(runs.c.error_code, sa.func.count().label("times"), last)
            .where(is_meant)
            .group_by(runs.c.error_code)
            .order_by(sa.desc("times"))
        )
        rows = await self._call(lambda connection: connection.execute(counted).all())
        return [
            (row.error_code, int(row.times), run)
            for row in rows
            for run in await self.find(RunQuery(code=row.error_code, limit=1))
        ]

    async def recent_of(self, team: str, user: str, *, limit: int) -> Sequence[Run]:
        query = sa.select(runs).where(runs.c.team == team, runs.c.user == user)
        return await self._select(query.order_by(runs.c.created_at.desc()).limit(limit))

    async def counts(self) -> Mapping[RunState, int]:
        query = sa.select(runs.c.state, sa.func.count()).group_by(runs.c.state)
        rows = await self._call(lambda connection: connection.execute(query).all())
        return {state: int(count) for state, count in rows}

    async def deliveries(self) -> Mapping[str, int]:
        query = (
            sa.select(runs.c.delivery, sa.func.count())
            .where(runs.c.delivery != sa.literal_column("''"))  # as its index has it
            .group_by(runs.c.delivery)
        )
        rows = await self._call(lambda connection: connection.execute(query).all())
        return {delivery: int(count) for delivery, count in rows}

    async def _select(self, query: sa.Select[Any]) -> Sequence[Run]:
        rows = await self._call(lambda connection: connection.execute(query).mappings().all())
        found: list[Run] = []
        for row in rows:
            if len(found) % READ_AT_ONCE == READ_AT_ONCE - 1:
                await asyncio.sleep(0)
            found.append(run_of(row))
        return found


def _forget(connection: sa.Connection, *, before: datetime) -> None:
    """Removes what is old and hangs on no run."""
    is_old = (model_calls.c.run_id == JUDGEMENTS) & (model_calls.c.at < before)
    connection.execute(sa.delete(model_calls).where(is_old))
    old_day = spent_days.c.day < day_of(before).isoformat()
    connection.execute(sa.delete(spent_days).where(old_day))
    forget_threads(connection, before=before)


def _select_one(connection: sa.Connection, run_id: RunId) -> Run | None:
    row = connection.execute(sa.select(runs).where(runs.c.id == run_id)).mappings().first()
    return None if row is None else run_of(row)


def _to_row(run: Run) -> dict[str, Any]:
    request = run.request
    return values_of(run) | {
        "error_code": run.result.error_code,
        "thread_key": run.thread.key,
        "team": request.team,
        "user": request.user,
        "message_ts": request.message_ts,
        "needs_slot": run.needs_slot,
    }
