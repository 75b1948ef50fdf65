"""How a row becomes durable before Slack is acknowledged: on a connection of its own, in one statement with those that wait beside it."""

import asyncio
import sqlite3
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql.dml import ReturningInsert

from app.store.engine import close_engine

ACCEPT_TIMEOUT_S = 2.0
"""A store waits longer for a sick database, but Slack's acknowledgement is due after 3 s."""
BUSY_INTERVAL_S = 0.001
"""Between looks whether the write lock is free; the others hold it for a commit, about a millisecond."""

Row = Mapping[str, Any]
Outcome = bool | Exception


Waiting = tuple[asyncio.Future[bool], Row]


class GroupCommit:
    """Inserts rows on a connection and thread of its own, those that wait together in one statement and one transaction.

    An acknowledgement waits for nothing else: on the store's connection it would queue behind every step of every run.
    """

    def __init__(
        self,
        engine: sa.Engine,
        insert: ReturningInsert[str],
        *,
        timeout_s: float = ACCEPT_TIMEOUT_S,
    ) -> None:
        """Makes one that is to be closed.

        Args:
            engine: of one connection, closed with this.
            insert: returns the `id` of a row that was not there, and nothing of one that was.
            timeout_s: for one row to be durable.
        """
        self._engine = engine
        self._insert = insert
        self._timeout_s = timeout_s
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="accept")
        self._waiting: dict[asyncio.Future[bool], Row] = {}
        self._is_writing = False

    async def add(self, row: Row) -> bool:
        """Returns whether the row was not there, once it is as durable as the connection's commits. Those that come during a commit share the next.

        Raises:
            OSError: not stored in time, or refused; it may be repeated.
        """
        committed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[committed] = row
        self._write_waiting()
        try:
            async with asyncio.timeout(self._timeout_s):
                return await committed
        except sa.exc.SQLAlchemyError as exc:
            raise OSError(f"nothing could be stored: {type(exc).__name__}") from exc
        finally:
            self._waiting.pop(committed, None)  # who has given up before its turn is not written

    async def close(self) -> None:
        await close_engine(self._engine, self._thread)

    def _write_waiting(self) -> None:
        if self._is_writing:
            return
        # Some may have given up in this moment.
        batch = [each for each in self._waiting.items() if not each[0].done()]
        self._waiting.clear()
        if batch:
            self._is_writing = True
            self._thread.submit(self._write_and_tell, batch, asyncio.get_running_loop())

    def _write_and_tell(self, batch: Sequence[Waiting], loop: asyncio.AbstractEventLoop) -> None:
        # A future of the executor's would take the loop one turn more, which others share.
        loop.call_soon_threadsafe(self._tell, batch, self._write(batch))

    def _tell(self, batch: Sequence[Waiting], outcomes: Sequence[Outcome]) -> None:
        for (committed, _), outcome in zip(batch, outcomes, strict=True):
            if committed.done():
                continue
            if isinstance(outcome, Exception):
                committed.set_exception(outcome)
            else:
                committed.set_result(outcome)
        # In the loop's next turn: what comes in this one goes along.
        asyncio.get_running_loop().call_soon(self._write_on)

    def _write_on(self) -> None:
        self._is_writing = False
        self._write_waiting()

    def _write(self, batch: Sequence[Waiting]) -> Sequence[Outcome]:
        try:
            return self._commit_all(batch)
        except (sa.exc.OperationalError, sa.exc.InterfaceError) as exc:
            return [exc] * len(batch)  # the database is to blame
        except Exception as exc:  # noqa: BLE001 - told to whom it belongs
            if len(batch) == 1:
                return [exc]
            return [outcome for each in batch for outcome in self._write([each])]  # one is to blame

    def _commit_all(self, batch: Sequence[Waiting]) -> Sequence[bool]:
        rows = [row for _, row in batch]
        until = time.monotonic() + self._timeout_s
        while True:
            try:
                with self._engine.begin() as connection:  # one row by itself takes a shorter way
                    new = set(connection.scalars(self._insert, rows if len(rows) > 1 else rows[0]))
            except sa.exc.OperationalError as exc:
                # The server may have dropped an idle connection: the next one is a new one.
                if not (_is_busy(exc) or exc.connection_invalidated) or time.monotonic() > until:
                    raise
            else:
                return [_take(new, row["id"]) for row in rows]
            time.sleep(BUSY_INTERVAL_S)


def _take(ids: set[str], row_id: str) -> bool:
    """Whether it is there, and is no more: of two equal rows the first one is new."""
    is_there = row_id in ids
    ids.discard(row_id)
    return is_there


def _is_busy(error: sa.exc.OperationalError) -> bool:
    """Whether another connection holds the write lock. Source: Python docs, sqlite3.Error.sqlite_errorcode."""
    code: int = getattr(error.orig, "sqlite_errorcode", 0)
    return code & 0xFF == sqlite3.SQLITE_BUSY
