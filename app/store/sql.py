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

from app.errors import ErrorCode
from app.runs.model import (
    FINAL_STATES,
    STARTED_STATES,
    UNFINISHED_STATES,
    WAITING_STATES,
    Changes,
    Resumption,
    Run,
    RunId,
    RunRequest,
    RunState,
    Standing,
    Thread,
    Usage,
)
from app.runs.ports import RunChanges
from app.store import schema
from app.store.columns import AnyText, UtcTime
from app.store.database import Database
from app.store.engines import POSTGRES_CONNECTIONS, postgres_engine, sqlite_engine
from app.store.files import SqlRunFiles, files_table
from app.store.queries import REFUSAL_CODES, position_of
from app.store.sessions import SqlSessionStore

REMOVED_AT_ONCE, REMOVAL_PAUSE_S = 100, 0.1
"""Old runs in one transaction, and the time left to others before the next."""

_runs = sa.Table(
    schema.RUNS_TABLE,
    schema.metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("thread_key", sa.String(128), nullable=False),
    sa.Column("team", sa.String(32), nullable=False),
    sa.Column("user", sa.String(32), nullable=False),
    sa.Column("message_ts", sa.String(32), nullable=False),
    sa.Column("request", sa.JSON, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Column("placed_at", UtcTime),
    sa.Column("started_at", UtcTime),
    sa.Column("deadline_at", UtcTime),
    sa.Column("ended_at", UtcTime),
    sa.Column("reply_ts", sa.String(32)),
    sa.Column("part_ts", sa.JSON, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("agent", sa.String(32), nullable=False),
    sa.Column("model", AnyText, nullable=False),
    sa.Column("provider", sa.String(32), nullable=False),
    sa.Column("sandbox_id", sa.String(128)),
    sa.Column("event_offset", sa.Integer, nullable=False),
    sa.Column("stop_requested_by", sa.String(32)),
    sa.Column("stop_requested_at", UtcTime),
    sa.Column("outcome", sa.String(16)),
    sa.Column("answer", AnyText, nullable=False),
    sa.Column("error_code", sa.String(64)),
    sa.Column("error_detail", AnyText, nullable=False),
    sa.Column("delivery", AnyText, nullable=False),
    sa.Column("usage", sa.JSON, nullable=False),
    sa.Column("changes", sa.JSON(none_as_null=True)),
    sa.Column("cost_usd", sa.Double),
    sa.Column("resumed", sa.String(16)),
    sa.Column("has_outside_effect", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("trace_id", sa.String(32), nullable=False),
    sa.Index("ix_orion_runs_thread", "thread_key", "message_ts"),
    sa.Index("ix_orion_runs_user", "team", "user", "created_at"),
    sa.Index("ix_orion_runs_state", "state"),
)
_REFUSALS = [code.value for code in REFUSAL_CODES]
_UNFINISHED = _runs.c.state.in_([state.value for state in UNFINISHED_STATES])
"""Named one by one, not as "not in": so the index on the state finds the few among all that are kept."""
_ENDED = _runs.c.state.in_([state.value for state in FINAL_STATES])


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
            existing = _select_one(connection, run.id)
            if existing is not None:
                return existing, False
            connection.execute(sa.insert(_runs).values(_to_row(run)))
            return run, True

        try:
            return await self._call(work)
        except sa.exc.IntegrityError:  # another thread or process was quicker
            return await self._call(work)

    async def get(self, run_id: RunId) -> Run | None:
        return await self._call(lambda connection: _select_one(connection, run_id))

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
                sa.update(_runs)
                .where(
                    _runs.c.id == run_id,
                    _in(_runs.c.state, UNFINISHED_STATES & frozenset(while_in)),
                )
                .values(values)
            )
            run = _select_one(connection, run_id)
            if run is None:
                raise KeyError(run_id)
            return run

        return await self._call(work)

    async def request_stop(self, run_id: RunId, *, user: str, at: datetime) -> bool:
        statement = (
            sa.update(_runs)
            .where(
                _runs.c.id == run_id,
                _UNFINISHED,
                _runs.c.outcome.is_(None),
                _runs.c.stop_requested_by.is_(None),
            )
            .values(stop_requested_by=user, stop_requested_at=at)
        )
        return await self._call(lambda connection: connection.execute(statement).rowcount == 1)

    async def stop_requested(self, run_ids: Sequence[RunId]) -> Mapping[RunId, str]:
        query = sa.select(_runs.c.id, _runs.c.stop_requested_by).where(
            _runs.c.id.in_(run_ids), _runs.c.stop_requested_by.is_not(None)
        )
        rows = await self._call(lambda connection: connection.execute(query).all())
        return {RunId(row.id): row.stop_requested_by for row in rows}

    async def amend(self, run_id: RunId, *, text: str) -> bool:
        def work(connection: sa.Connection) -> bool:
            run = _select_one(connection, run_id)
            if run is None or run.state not in WAITING_STATES:
                return False
            request = run.request.model_copy(update={"text": text}).model_dump(mode="json")
            statement = sa.update(_runs).where(
                _runs.c.id == run_id, _in(_runs.c.state, WAITING_STATES)
            )
            return connection.execute(statement.values(request=request)).rowcount == 1

        return await self._call(work)

    async def stopped_waiting(self) -> Sequence[Run]:
        return await self._select(
            sa.select(_runs).where(
                _UNFINISHED,
                _runs.c.stop_requested_by.is_not(None),
                _runs.c.attempt == 0,
                _runs.c.reply_ts.is_not(None),
            )
        )

    async def unfinished(self) -> Sequence[Run]:
        return await self._select(sa.select(_runs).where(_UNFINISHED).order_by(_runs.c.created_at))

    async def of_thread(self, thread: Thread) -> Sequence[Run]:
        return await self._select(
            sa.select(_runs).where(_runs.c.thread_key == thread.key).order_by(_runs.c.message_ts)
        )

    async def standing(self, run: Run, *, since: datetime, capacity: int) -> Standing:
        # Counted by the database, in one query: under load, reading all waiting runs for each new one took half of the
        # process's time.
        request = run.request
        of_user = (
            (_runs.c.team == request.team)
            & (_runs.c.user == request.user)
            & (_runs.c.created_at >= since)
            & sa.or_(_runs.c.error_code.is_(None), _runs.c.error_code.not_in(_REFUSALS))
        )
        other = _UNFINISHED & (_runs.c.id != run.id)
        in_thread = other & (
            (_runs.c.thread_key == run.thread.key) & (_runs.c.message_ts < request.message_ts)
        )
        query = sa.select(
            *(
                sa.func.count().filter(condition).label(name)
                for name, condition in (
                    ("of_user", of_user),
                    ("unfinished", _UNFINISHED),
                    ("in_thread", in_thread),
                )
            ),
            _count_elsewhere(run.id).label("elsewhere"),
        ).where(_UNFINISHED | of_user)
        row = await self._call(lambda connection: connection.execute(query).one())
        return Standing(
            runs_of_user=row.of_user,
            unfinished=row.unfinished,
            position=position_of(
                ahead_in_thread=row.in_thread, ahead_elsewhere=row.elsewhere, capacity=capacity
            ),
        )

    async def remove_ended(self, *, before: datetime, limit: int) -> int:
        ended_at = sa.func.coalesce(_runs.c.ended_at, _runs.c.created_at)
        query = sa.select(_runs.c.id).where(_ENDED, ended_at < before).order_by(ended_at)
        run_ids = await self._call(lambda connection: connection.scalars(query.limit(limit)).all())
        for start in range(0, len(run_ids), REMOVED_AT_ONCE):
            await self._remove(run_ids[start : start + REMOVED_AT_ONCE])
            await asyncio.sleep(REMOVAL_PAUSE_S)
        return len(run_ids)

    async def _remove(self, run_ids: Sequence[str]) -> None:
        ended = sa.select(_runs.c.id).where(_runs.c.id.in_(run_ids), _ENDED)

        def work(connection: sa.Connection) -> None:
            connection.execute(sa.delete(files_table).where(files_table.c.run_id.in_(ended)))
            connection.execute(sa.delete(_runs).where(_runs.c.id.in_(run_ids), _ENDED))

        await self._call(work)

    async def recent(self, *, limit: int) -> Sequence[Run]:
        return await self._select(sa.select(_runs).order_by(_runs.c.created_at.desc()).limit(limit))

    async def starting_with(self, prefix: str, *, limit: int = 10) -> Sequence[Run]:
        """Runs whose id begins like that."""
        query = sa.select(_runs).where(_runs.c.id.startswith(prefix, autoescape=True)).limit(limit)
        return await self._select(query)

    async def counts(self) -> Mapping[RunState, int]:
        """Runs by state, for metrics."""
        query = sa.select(_runs.c.state, sa.func.count()).group_by(_runs.c.state)
        rows = await self._call(lambda connection: connection.execute(query).all())
        return {RunState(state): int(count) for state, count in rows}

    async def deliveries(self) -> Mapping[str, int]:
        query = (
            sa.select(_runs.c.delivery, sa.func.count())
            .where(_runs.c.delivery != "")
            .group_by(_runs.c.delivery)
        )
        rows = await self._call(lambda connection: connection.execute(query).all())
        return {delivery: int(count) for delivery, count in rows}

    async def _select(self, query: sa.Select[Any]) -> Sequence[Run]:
        rows = await self._call(lambda connection: connection.execute(query).mappings().all())
        return [_from_row(dict(row)) for row in rows]


def _count_elsewhere(run_id: RunId) -> sa.ScalarSelect[int]:
    """Runs that go or come before this one when people take turns: `queries.position_among` in SQL."""
    is_waiting = _in(_runs.c.state, WAITING_STATES)
    ranked = (
        sa.select(
            _runs.c.id,
            _runs.c.state,
            _runs.c.created_at,
            sa.func.row_number()
            .over(
                partition_by=(_runs.c.team, _runs.c.user),
                order_by=(sa.case((is_waiting, 1), else_=0), _runs.c.created_at, _runs.c.id),
            )
            .label("round"),
        )
        .where(_UNFINISHED)
        .cte("ranked")
    )
    own = ranked.alias("own")
    comes_before = (ranked.c.round < own.c.round) | (
        (ranked.c.round == own.c.round) & (ranked.c.created_at < own.c.created_at)
    )
    return (
        sa.select(sa.func.count())
        .where(own.c.id == run_id, ranked.c.id != run_id)
        .where(
            _in(ranked.c.state, STARTED_STATES)
            | (_in(ranked.c.state, WAITING_STATES) & comes_before)
        )
        .scalar_subquery()
    )


def _in(column: sa.ColumnElement[str], states: Collection[RunState]) -> sa.ColumnElement[bool]:
    return column.in_([state.value for state in states])


def _select_one(connection: sa.Connection, run_id: RunId) -> Run | None:
    row = connection.execute(sa.select(_runs).where(_runs.c.id == run_id)).mappings().first()
    return None if row is None else _from_row(dict(row))


def _to_row(run: Run) -> dict[str, Any]:
    columns = {column.name for column in _runs.columns}
    row = {name: getattr(run, name) for name in columns if hasattr(run, name)}
    request = run.request
    return row | {
        "thread_key": run.thread.key,
        "team": request.team,
        "user": request.user,
        "message_ts": request.message_ts,
        "request": request.model_dump(mode="json"),
        "part_ts": list(run.part_ts),
        "usage": asdict(run.usage),
        "changes": asdict(run.changes) if run.changes else None,
    }


def _from_row(row: Mapping[str, Any]) -> Run:
    fields = dict(row)
    for name in ("thread_key", "team", "user", "message_ts"):
        del fields[name]
    return Run(
        **fields
        | {
            "id": RunId(row["id"]),
            "request": RunRequest.model_validate(row["request"]),
            "state": RunState(row["state"]),
            "outcome": RunState(row["outcome"]) if row["outcome"] else None,
            "error_code": ErrorCode(row["error_code"]) if row["error_code"] else None,
            "part_ts": tuple(row["part_ts"]),
            "usage": Usage(**row["usage"]),
            "resumed": Resumption(row["resumed"]) if row["resumed"] else None,
            "changes": Changes(**row["changes"]) if row["changes"] else None,
        }
    )
