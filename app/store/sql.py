"""Run records in SQLite (the engine's own file) or PostgreSQL, through SQLAlchemy Core."""

import asyncio
import functools
import sqlite3
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from typing_extensions import Unpack, override

from app.errors import ErrorCode
from app.runs.model import (
    UNFINISHED_STATES,
    WAITING_STATES,
    Run,
    RunId,
    RunRequest,
    RunState,
    Standing,
    Thread,
    Usage,
)
from app.runs.ports import RunChanges
from app.store.queries import REFUSAL_CODES, STARTED_STATES, position_of

T = TypeVar("T")

CALL_TIMEOUT_S = 10.0
"""For one store call; SQLite's own wait for the write lock is half of it."""


class _UtcTime(sa.TypeDecorator[datetime]):
    """Aware UTC times as seconds since the epoch: the same on both databases, microseconds kept."""

    impl = sa.Double
    cache_ok = True

    @override
    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> float | None:
        return None if value is None else value.timestamp()

    @override
    def process_result_value(self, value: Any | None, dialect: sa.Dialect) -> datetime | None:
        return None if value is None else datetime.fromtimestamp(value, UTC)


_metadata = sa.MetaData()
_runs = sa.Table(
    "orion_runs",
    _metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("thread_key", sa.String(128), nullable=False),
    sa.Column("team", sa.String(32), nullable=False),
    sa.Column("user", sa.String(32), nullable=False),
    sa.Column("message_ts", sa.String(32), nullable=False),
    sa.Column("request", sa.JSON, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("created_at", _UtcTime, nullable=False),
    sa.Column("placed_at", _UtcTime),
    sa.Column("started_at", _UtcTime),
    sa.Column("deadline_at", _UtcTime),
    sa.Column("ended_at", _UtcTime),
    sa.Column("reply_ts", sa.String(32)),
    sa.Column("part_ts", sa.JSON, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("agent", sa.String(32), nullable=False),
    sa.Column("model", sa.String(128), nullable=False),
    sa.Column("provider", sa.String(32), nullable=False),
    sa.Column("sandbox_id", sa.String(128)),
    sa.Column("event_offset", sa.Integer, nullable=False),
    sa.Column("stop_requested_by", sa.String(32)),
    sa.Column("stop_requested_at", _UtcTime),
    sa.Column("outcome", sa.String(16)),
    sa.Column("answer", sa.Text, nullable=False),
    sa.Column("error_code", sa.String(64)),
    sa.Column("error_detail", sa.Text, nullable=False),
    sa.Column("delivery", sa.String(64), nullable=False),
    sa.Column("usage", sa.JSON, nullable=False),
    sa.Column("trace_id", sa.String(32), nullable=False),
    sa.Index("ix_orion_runs_thread", "thread_key", "message_ts"),
    sa.Index("ix_orion_runs_user", "team", "user", "created_at"),
    sa.Index("ix_orion_runs_state", "state"),
)
_REFUSALS = [code.value for code in REFUSAL_CODES]
_UNFINISHED = _runs.c.state.in_([state.value for state in UNFINISHED_STATES])
"""Named one by one, not as "not in": so the index on the state finds the few among all that are kept."""


def sqlite_connect(path: Path, *, busy_timeout_s: float = CALL_TIMEOUT_S / 2) -> sqlite3.Connection:
    """A connection in WAL mode: a commit survives kill -9, and a power loss from the next acceptance of a message on."""
    connection = sqlite3.connect(path, timeout=busy_timeout_s, check_same_thread=False)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    return connection


@asynccontextmanager
async def open_sqlite_store(path: Path) -> AsyncIterator["SqlRunStore"]:
    """The store in this file, tables made on first use.

    One connection and one thread: more would only fight for SQLite's one write lock.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    engine = sa.create_engine(
        "sqlite://", creator=functools.partial(sqlite_connect, path), poolclass=sa.pool.StaticPool
    )
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="run-store") as executor:
        store = SqlRunStore(engine, executor)
        try:
            await store.migrate()
            yield store
        finally:
            await asyncio.get_running_loop().run_in_executor(executor, engine.dispose)


class SqlRunStore:
    """Make it with `open_sqlite_store`."""

    def __init__(self, engine: sa.Engine, executor: ThreadPoolExecutor) -> None:
        self._engine = engine
        self._executor = executor

    async def migrate(self) -> None:
        await self._call(_metadata.create_all)

    async def add(self, run: Run) -> tuple[Run, bool]:
        def work(connection: sa.Connection) -> tuple[Run, bool]:
            existing = _select_one(connection, run.id)
            if existing is not None:
                return existing, False
            connection.execute(sa.insert(_runs).values(_to_row(run)))
            return run, True

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
        if "part_ts" in changes:
            values["part_ts"] = list(changes["part_ts"])

        def work(connection: sa.Connection) -> Run:
            connection.execute(
                sa.update(_runs)
                .where(_runs.c.id == run_id, _in(UNFINISHED_STATES & frozenset(while_in)))
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
            statement = sa.update(_runs).where(_runs.c.id == run_id, _in(WAITING_STATES))
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
        elsewhere = other & (
            _in(STARTED_STATES) | (_in(WAITING_STATES) & (_runs.c.created_at < run.created_at))
        )
        query = sa.select(
            *(
                sa.func.count().filter(condition).label(name)
                for name, condition in (
                    ("of_user", of_user),
                    ("unfinished", _UNFINISHED),
                    ("in_thread", in_thread),
                    ("elsewhere", elsewhere),
                )
            )
        ).where(_UNFINISHED | of_user)
        row = await self._call(lambda connection: connection.execute(query).one())
        return Standing(
            runs_of_user=row.of_user,
            unfinished=row.unfinished,
            position=position_of(
                ahead_in_thread=row.in_thread, ahead_elsewhere=row.elsewhere, capacity=capacity
            ),
        )

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

    async def _select(self, query: sa.Select[Any]) -> Sequence[Run]:
        rows = await self._call(lambda connection: connection.execute(query).mappings().all())
        return [_from_row(dict(row)) for row in rows]

    async def _call(self, work: Callable[[sa.Connection], T]) -> T:
        def in_transaction() -> T:
            with self._engine.begin() as connection:
                return work(connection)

        async with asyncio.timeout(CALL_TIMEOUT_S):
            return await asyncio.get_running_loop().run_in_executor(self._executor, in_transaction)


def _in(states: Collection[RunState]) -> sa.ColumnElement[bool]:
    return _runs.c.state.in_([state.value for state in states])


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
        }
    )
