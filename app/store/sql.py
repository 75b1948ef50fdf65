"""Run records in SQLite (the engine's own file) or PostgreSQL, through SQLAlchemy Core."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from typing_extensions import Unpack

from app.runs.model import (
    UNFINISHED_STATES,
    WAITING_STATES,
    Run,
    RunId,
    RunState,
    Standing,
    Thread,
)
from app.runs.run_store import RunChanges
from app.store import schema
from app.store.database import Database
from app.store.defaults import SqlDefaultStore
from app.store.engines import POSTGRES_CONNECTIONS, postgres_engine, sqlite_engine
from app.store.files import SqlRunFiles, files_table
from app.store.own_keys import SqlOwnKeyStore
from app.store.queries import REFUSAL_CODES, position_of
from app.store.run_rows import (
    ENDED,
    UNFINISHED,
    count_elsewhere,
    from_row,
    in_states,
    runs,
    select_one,
    to_row,
)
from app.store.sessions import SqlSessionStore
from app.store.spending import SqlSpendingStore, spending_table

REMOVED_AT_ONCE, REMOVAL_PAUSE_S = 100, 0.1
"""Old runs in one transaction, and the time left to others before the next."""
READ_AT_ONCE = 50
"""Rows made records before the loop may do something else: a thousand take it for 0.07 s (measured)."""

_REFUSALS = [code.value for code in REFUSAL_CODES]


def migrate_store(engine: sa.Engine, name: str) -> tuple[int, int]:
    """Raise the tables behind an engine, which is disposed, to this Orion's version; the versions before and after.

    Raises:
        UnreadableStoreError: nothing has been changed.
    """
    try:
        return schema.migrate(engine, name)
    finally:
        engine.dispose()


@asynccontextmanager
async def open_sqlite_store(path: Path) -> AsyncIterator["SqlRunStore"]:
    """The store in this file, tables made on first use.

    Raises:
        UnreadableStoreError: the file is no store that this Orion can use.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    async with _open(sqlite_engine(path), name=str(path), threads=1) as store:
        yield store


@asynccontextmanager
async def open_postgres_store(url: str) -> AsyncIterator["SqlRunStore"]:
    """The store in this database (`postgresql://…`), tables made on first use; several processes may share it.

    Raises:
        UnreadableStoreError: it cannot be reached, or is no store that this Orion can use.
    """
    name = sa.make_url(url).render_as_string(hide_password=True)
    async with _open(postgres_engine(url), name=name, threads=POSTGRES_CONNECTIONS) as store:
        yield store


@asynccontextmanager
async def _open(engine: sa.Engine, *, name: str, threads: int) -> AsyncIterator["SqlRunStore"]:
    with ThreadPoolExecutor(max_workers=threads, thread_name_prefix="run-store") as executor:
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(executor, schema.prepare, engine, name)
            yield SqlRunStore(Database(engine=engine, executor=executor, name=name))
        finally:
            await loop.run_in_executor(executor, engine.dispose)


class SqlRunStore:
    """Make it with `open_sqlite_store` or `open_postgres_store`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._call = database.call
        self.sessions = SqlSessionStore(database)
        self.files = SqlRunFiles(database)
        self.defaults = SqlDefaultStore(database)
        self.spending = SqlSpendingStore(database)

    def own_keys(self, secrets: Sequence[str]) -> SqlOwnKeyStore:
        """People's own keys, sealed with these."""
        return SqlOwnKeyStore(self._database, secrets=secrets)

    async def examine(self) -> None:
        """Look for damage in the whole database, however long it takes.

        Raises:
            UnreadableStoreError
        """
        database = self._database
        await asyncio.get_running_loop().run_in_executor(
            database.executor, schema.examine, database.engine, database.name
        )

    async def add(self, run: Run) -> tuple[Run, bool]:
        def work(connection: sa.Connection) -> tuple[Run, bool]:
            existing = select_one(connection, run.id)
            if existing is not None:
                return existing, False
            connection.execute(sa.insert(runs).values(to_row(run)))
            return run, True

        try:
            return await self._call(work)
        except sa.exc.IntegrityError:  # another thread or process was quicker
            return await self._call(work)

    async def get(self, run_id: RunId) -> Run | None:
        return await self._call(lambda connection: select_one(connection, run_id))

    async def update(
        self,
        run_id: RunId,
        *,
        while_in: Collection[RunState] = UNFINISHED_STATES,
        **changes: Unpack[RunChanges],
    ) -> Run:
        values: dict[str, Any] = dict(changes)
        if "usage" in changes:
            values["usage"] = asdict(changes["usage"])
        if changes.get("changes"):
            values["changes"] = asdict(values["changes"])
        if "part_ts" in changes:
            values["part_ts"] = list(changes["part_ts"])

        def work(connection: sa.Connection) -> Run:
            connection.execute(
                sa.update(runs)
                .where(
                    runs.c.id == run_id,
                    in_states(runs.c.state, UNFINISHED_STATES & frozenset(while_in)),
                )
                .values(values)
            )
            run = select_one(connection, run_id)
            if run is None:
                raise KeyError(run_id)
            return run

        return await self._call(work)

    async def request_stop(self, run_id: RunId, *, user: str, at: datetime) -> bool:
        statement = (
            sa.update(runs)
            .where(
                runs.c.id == run_id,
                UNFINISHED,
                runs.c.outcome.is_(None),
                runs.c.stop_requested_by.is_(None),
            )
            .values(stop_requested_by=user, stop_requested_at=at)
        )
        return await self._call(lambda connection: connection.execute(statement).rowcount == 1)

    async def stop_requested(self, run_ids: Sequence[RunId]) -> Mapping[RunId, str]:
        query = sa.select(runs.c.id, runs.c.stop_requested_by).where(
            runs.c.id.in_(run_ids), runs.c.stop_requested_by.is_not(None)
        )
        rows = await self._call(lambda connection: connection.execute(query).all())
        return {RunId(row.id): row.stop_requested_by for row in rows}

    async def amend(self, run_id: RunId, *, text: str) -> bool:
        def work(connection: sa.Connection) -> bool:
            run = select_one(connection, run_id)
            if run is None or run.state not in WAITING_STATES:
                return False
            request = run.request.model_copy(update={"text": text}).model_dump(mode="json")
            statement = sa.update(runs).where(
                runs.c.id == run_id, in_states(runs.c.state, WAITING_STATES)
            )
            return connection.execute(statement.values(request=request)).rowcount == 1

        return await self._call(work)

    async def stopped_waiting(self) -> Sequence[Run]:
        return await self._select(
            sa.select(runs).where(
                UNFINISHED,
                runs.c.stop_requested_by.is_not(None),
                runs.c.attempt == 0,
                runs.c.reply_ts.is_not(None),
            )
        )

    async def unfinished(self) -> Sequence[Run]:
        return await self._select(sa.select(runs).where(UNFINISHED).order_by(runs.c.created_at))

    async def of_thread(self, thread: Thread) -> Sequence[Run]:
        return await self._select(
            sa.select(runs).where(runs.c.thread_key == thread.key).order_by(runs.c.message_ts)
        )

    async def standing(self, run: Run, *, since: datetime, capacity: int) -> Standing:
        # Counted by the database, in one query: under load, reading all waiting runs for each new one took half of the
        # process's time.
        request = run.request
        of_user = (
            (runs.c.team == request.team)
            & (runs.c.user == request.user)
            & (runs.c.created_at >= since)
            & sa.or_(
                runs.c.error_code.is_(None),
                runs.c.error_code.not_in(_REFUSALS),
                runs.c.attempt > 0,
            )
        )
        other = UNFINISHED & (runs.c.id != run.id)
        in_thread = other & (
            (runs.c.thread_key == run.thread.key) & (runs.c.message_ts < request.message_ts)
        )
        query = sa.select(
            *(
                sa.func.count().filter(condition).label(name)
                for name, condition in (
                    ("of_user", of_user),
                    ("unfinished", UNFINISHED),
                    ("in_thread", in_thread),
                )
            ),
            count_elsewhere(run.id).label("elsewhere"),
        ).where(UNFINISHED | of_user)
        row = await self._call(lambda connection: connection.execute(query).one())
        return Standing(
            runs_of_user=row.of_user,
            unfinished=row.unfinished,
            position=position_of(
                ahead_in_thread=row.in_thread, ahead_elsewhere=row.elsewhere, capacity=capacity
            ),
        )

    async def remove_ended(self, *, before: datetime, limit: int) -> int:
        ended_at = sa.func.coalesce(runs.c.ended_at, runs.c.created_at)
        query = sa.select(runs.c.id).where(ENDED, ended_at < before).order_by(ended_at)
        run_ids = await self._call(lambda connection: connection.scalars(query.limit(limit)).all())
        for start in range(0, len(run_ids), REMOVED_AT_ONCE):
            await self._remove(run_ids[start : start + REMOVED_AT_ONCE])
            await asyncio.sleep(REMOVAL_PAUSE_S)
        return len(run_ids)

    async def _remove(self, run_ids: Sequence[str]) -> None:
        ended = sa.select(runs.c.id).where(runs.c.id.in_(run_ids), ENDED)

        def work(connection: sa.Connection) -> None:
            for table in (files_table, spending_table):
                connection.execute(sa.delete(table).where(table.c.run_id.in_(ended)))
            connection.execute(sa.delete(runs).where(runs.c.id.in_(run_ids), ENDED))

        await self._call(work)

    async def recent(self, *, limit: int) -> Sequence[Run]:
        return await self._select(sa.select(runs).order_by(runs.c.created_at.desc()).limit(limit))

    async def starting_with(self, prefix: str, *, limit: int = 10) -> Sequence[Run]:
        """Runs whose id begins like that."""
        query = sa.select(runs).where(runs.c.id.startswith(prefix, autoescape=True)).limit(limit)
        return await self._select(query)

    async def counts(self) -> Mapping[RunState, int]:
        """Runs by state, for metrics."""
        query = sa.select(runs.c.state, sa.func.count()).group_by(runs.c.state)
        rows = await self._call(lambda connection: connection.execute(query).all())
        return {RunState(state): int(count) for state, count in rows}

    async def deliveries(self) -> Mapping[str, int]:
        query = (
            sa.select(runs.c.delivery, sa.func.count())
            .where(runs.c.delivery != "")
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
            found.append(from_row(dict(row)))
        return found
