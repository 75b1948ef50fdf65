"""What writes acknowledged rows: for SQLite a thread of its own, for PostgreSQL the loop, as its driver waits for the server there."""

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

from app.aio import TaskGroup
from app.store.engine import CLOSE_TIMEOUT_S, close_engine
from app.store.group_commit import Outcome, Row

if TYPE_CHECKING:
    import psycopg

BUSY_INTERVAL_S = 0.001
"""Between looks whether the write lock is free; the others hold it for a commit, about a millisecond."""

Tell = Callable[[Sequence[Outcome]], None]


class SqliteWriter:
    """Writes on a thread, since a sync may take a slow disk long."""

    def __init__(self, engine: sa.Engine, table: sa.Table, *, timeout_s: float) -> None:
        """Makes one that is to be closed.

        Args:
            engine: of one connection, closed with this.
            table: its rows have an `id`.
            timeout_s: for the write lock.
        """
        self._engine = engine
        self._insert = sqlite.insert(table).on_conflict_do_nothing().returning(table.c.id)
        self._timeout_s = timeout_s
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="accept")

    def begin(self, rows: Sequence[Row], tell: Tell) -> None:
        self._thread.submit(self._write_and_tell, rows, tell, asyncio.get_running_loop())

    async def close(self) -> None:
        await close_engine(self._engine, self._thread)

    def _write_and_tell(
        self, rows: Sequence[Row], tell: Tell, loop: asyncio.AbstractEventLoop
    ) -> None:
        # A future of the executor's would take the loop one turn more, which others share.
        loop.call_soon_threadsafe(tell, self._write(rows))

    def _write(self, rows: Sequence[Row]) -> Sequence[Outcome]:
        try:
            return self._commit_all(rows)
        except (sa.exc.OperationalError, sa.exc.InterfaceError) as exc:
            return [_refusal(exc)] * len(rows)  # the database is to blame
        except Exception as exc:  # noqa: BLE001 - told to whom it belongs
            if len(rows) == 1:
                return [_refusal(exc)]
            return [outcome for row in rows for outcome in self._write([row])]  # one is to blame

    def _commit_all(self, rows: Sequence[Row]) -> Sequence[bool]:
        until = time.monotonic() + self._timeout_s
        while True:
            try:
                with self._engine.begin() as connection:  # one row by itself takes a shorter way
                    new = connection.scalars(self._insert, rows if len(rows) > 1 else rows[0])
                    ids = set(new)
            except sa.exc.OperationalError as exc:
                if not _is_busy(exc) or time.monotonic() > until:
                    raise
            else:
                return _take(ids, rows)
            time.sleep(BUSY_INTERVAL_S)


class PostgresWriter:
    """Writes from the loop, in one round trip: a thread would have to be woken, and wait for the interpreter's lock, at each step.

    The statement is composed here, as SQLAlchemy looks at one anew for each call, which takes as long as all else.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable["psycopg.AsyncConnection[Any]"]],
        table: sa.Table,
        *,
        dialect: sa.Dialect,
        group: TaskGroup,
        limit: str,
    ) -> None:
        """Makes one that is to be closed.

        Args:
            connect: returns a connection in autocommit mode whose cursors write values into statements.
            table: its rows have an `id`.
            dialect: SQLAlchemy's for the connection.
            group: in which it writes; outlives this.
            limit: a statement that limits the next one.
        """
        from psycopg import sql  # noqa: PLC0415 - an extra

        kinds = {column.name: column.type.dialect_impl(dialect) for column in table.columns}
        self._connect = connect
        self._group = group
        self._processes = {name: kind.bind_processor(dialect) for name, kind in kinds.items()}
        # Source: PostgreSQL docs, 55.2.2.1, Multiple Statements in a Simple Query: they are one transaction.
        insert = sql.SQL("INSERT INTO {} ({}) VALUES ").format(
            sql.Identifier(table.name), sql.SQL(", ").join(map(sql.Identifier, kinds))
        )
        self._before = f"{limit}; {insert.as_string()}"
        self._marks = f"({', '.join(['%s'] * len(kinds))})"
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._writing: asyncio.Task[None] | None = None

    def begin(self, rows: Sequence[Row], tell: Tell) -> None:
        self._writing = self._group.create_task(self._write_and_tell(rows, tell), name="accept")

    async def close(self) -> None:
        if self._writing is not None:
            await asyncio.wait([self._writing], timeout=CLOSE_TIMEOUT_S)
        if self._connection is not None:
            await self._connection.close()
        if self._writing is not None:
            self._writing.cancel()  # with a connection the driver would ask the server first, which may be frozen

    async def _write_and_tell(self, rows: Sequence[Row], tell: Tell) -> None:
        tell(await self._write(rows))

    async def _write(self, rows: Sequence[Row]) -> Sequence[Outcome]:
        import psycopg  # noqa: PLC0415 - an extra

        try:
            return await self._commit_all(rows)
        except (psycopg.OperationalError, psycopg.InterfaceError) as exc:
            return [_refusal(exc)] * len(rows)  # the database is to blame
        except Exception as exc:  # noqa: BLE001 - told to whom it belongs
            if len(rows) == 1:
                return [_refusal(exc)]
            return [
                outcome for row in rows for outcome in await self._write([row])
            ]  # one is to blame

    async def _commit_all(self, rows: Sequence[Row]) -> Sequence[bool]:
        import psycopg  # noqa: PLC0415 - an extra

        # In one order at all processes: two that insert the same rows would wait for each other, for ever.
        ordered = sorted(rows, key=lambda row: str(row["id"]))
        values = [
            row.get(name) if process is None else process(row.get(name))
            for row in ordered
            for name, process in self._processes.items()
        ]
        marks = ", ".join([self._marks] * len(rows))
        text = f"{self._before}{marks} ON CONFLICT DO NOTHING RETURNING id"
        is_new = self._connection is None
        connection = self._connection = self._connection or await self._connect()
        try:
            cursor = await connection.execute(text.encode(), values)
        except psycopg.OperationalError:
            if not connection.closed:
                raise
            self._connection = None
            # The server may have dropped it while it was idle: the next one is a new one.
            if is_new:
                raise
            return await self._commit_all(rows)
        cursor.nextset()  # the limit has no result
        return _take({row[0] for row in await cursor.fetchall()}, rows)


def _take(ids: set[str], rows: Sequence[Row]) -> Sequence[bool]:
    """Whether each was new: of two equal rows the first one is."""
    outcomes = []
    for row in rows:
        outcomes.append(row["id"] in ids)
        ids.discard(row["id"])
    return outcomes


def _refusal(exc: Exception) -> OSError:
    refusal = OSError(f"nothing could be stored: {type(exc).__name__}")
    refusal.__cause__ = exc
    return refusal


def _is_busy(error: sa.exc.OperationalError) -> bool:
    """Whether another connection holds the write lock. Source: Python docs, sqlite3.Error.sqlite_errorcode."""
    code: int = getattr(error.orig, "sqlite_errorcode", 0)
    return code & 0xFF == sqlite3.SQLITE_BUSY
