"""How a write becomes durable before Slack is acknowledged: on a connection of its own, in one transaction with those that wait beside it."""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import sqlalchemy as sa

ACCEPT_TIMEOUT_S = 2.0
"""A store waits longer for a sick database, but Slack's acknowledgement is due after 3 s."""
BUSY_INTERVAL_S = 0.001
"""Between looks whether the write lock is free; the others hold it for a commit, about a millisecond."""

Write = Callable[[sa.Connection], bool]


@dataclass(slots=True, kw_only=True, eq=False)
class _Entry:
    write: Write
    result: bool | None = None
    """None: not committed."""


class GroupCommit:
    """Writes on a connection and thread of its own, those that wait together in one transaction.

    An acknowledgement waits for nothing else: on the store's connection it would queue behind every step of every run.
    """

    def __init__(self, engine: sa.Engine) -> None:
        """`engine`: of one connection, closed with this."""
        self._engine = engine
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="accept")
        self._lock = asyncio.Lock()
        self._waiting: list[_Entry] = []

    async def commit(self, write: Write) -> bool:
        """Returns what `write` does once that is as durable as the connection's commits. Whoever comes first writes for all who wait by then.

        Raises:
            OSError: not stored within 2 s, or refused; it may be repeated.
        """
        own = _Entry(write=write)
        try:
            async with asyncio.timeout(ACCEPT_TIMEOUT_S):
                return await self._commit(own)
        except sa.exc.SQLAlchemyError as exc:
            raise OSError(f"nothing could be stored: {type(exc).__name__}") from exc

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._engine.dispose)
        self._thread.shutdown(wait=False)

    async def _commit(self, own: _Entry) -> bool:
        self._waiting.append(own)
        try:
            async with self._lock:
                if own.result is None:
                    batch = [each for each in self._waiting if each.result is None]
                    try:
                        await self._write(batch)
                    except (sa.exc.SQLAlchemyError, ValueError):
                        if len(batch) == 1:
                            raise
                        await self._write([own])  # another one may have been the cause
            return bool(own.result)
        finally:
            self._waiting.remove(own)

    async def _write(self, batch: Sequence[_Entry]) -> None:
        def insert() -> list[bool]:
            with self._engine.begin() as connection:
                return [each.write(connection) for each in batch]

        def work() -> list[bool]:
            until = time.monotonic() + ACCEPT_TIMEOUT_S
            while True:
                try:
                    return insert()
                except sa.exc.OperationalError as exc:
                    if not _is_busy(exc) or time.monotonic() > until:
                        raise
                time.sleep(BUSY_INTERVAL_S)

        results = await asyncio.get_running_loop().run_in_executor(self._thread, work)
        for each, result in zip(batch, results, strict=True):
            each.result = result


def _is_busy(error: sa.exc.OperationalError) -> bool:
    """Whether another connection holds the write lock. Source: Python docs, sqlite3.Error.sqlite_errorcode."""
    code: int = getattr(error.orig, "sqlite_errorcode", 0)
    return code & 0xFF == sqlite3.SQLITE_BUSY
