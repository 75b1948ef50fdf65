"""How a request becomes durable before Slack is acknowledged: one enqueue of its own, waiting for nothing else."""

import asyncio
import json
import sqlite3
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from dbos import DBOSClient, EnqueueOptions, Serializer
from pydantic import JsonValue
from typing_extensions import override

SUBMIT_TIMEOUT_S = 2.0
"""DBOS waits for a lost database without limit, but Slack's acknowledgement is due after 3 s."""
BUSY_INTERVAL_S = 0.001
"""Between looks whether the write lock is free; the others hold it for a commit, about a millisecond."""


class JsonSerializer(Serializer):
    """Instead of pickle, with which whoever can write the database could run code.

    Errors become text: an error that cannot be encoded would fail its workflow a second time.
    """

    @override
    def serialize(self, data: Any) -> str:
        return json.dumps(data, default=_encode)

    @override
    def deserialize(self, serialized_data: str) -> Any:
        data = json.loads(serialized_data)
        if isinstance(data, dict) and set(data) == {"__error__"}:
            return RuntimeError(data["__error__"])
        return data

    @override
    def name(self) -> str:
        return "orion_json"


def _encode(value: object) -> object:
    if isinstance(value, BaseException):
        return {"__error__": f"{type(value).__name__}: {value}"}
    raise TypeError(f"not JSON: {type(value).__name__}")


class WalConnection(sqlite3.Connection):
    """SQLite's default journal is two to three times slower.

    With this sync a commit survives kill -9; through a power loss it is kept from the next acceptance or checkpoint on.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - sqlite3's own signature
        super().__init__(*args, **kwargs)
        self.execute("PRAGMA journal_mode=WAL")
        self.execute("PRAGMA synchronous=NORMAL")


class _AcceptingConnection(WalConnection):
    """Keeps what was acknowledged through a power loss, and waits for nobody.

    Without a busy timeout SQLite says at once that the write lock is taken; with one it would sleep up to 0.1 s between
    looks, and be overtaken meanwhile. Checkpoints, which may take a slow disk half a second, are left to the others.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - sqlite3's own signature
        super().__init__(*args, **kwargs)
        self.execute("PRAGMA synchronous=FULL")
        self.execute("PRAGMA busy_timeout=0")
        self.execute("PRAGMA wal_autocheckpoint=0")


@dataclass(slots=True, kw_only=True)
class _Entry:
    options: EnqueueOptions
    argument: JsonValue
    is_stored: bool = False


class Acceptor:
    """Enqueues on a connection and thread of its own, those that wait together in one transaction.

    An acknowledgement waits for nothing else: on the engine's connection it would queue behind every step of every run.
    """

    def __init__(self, path: Path) -> None:
        self._engine = sa.create_engine(
            f"sqlite:///{path}",
            connect_args={"factory": _AcceptingConnection, "check_same_thread": False},
            poolclass=sa.pool.StaticPool,
        )
        self._client = DBOSClient(
            system_database_engine=self._engine, serializer=JsonSerializer(), lazy=True
        )
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="accept")
        self._lock = asyncio.Lock()
        self._waiting: list[_Entry] = []

    async def enqueue(self, options: EnqueueOptions, argument: JsonValue) -> None:
        """Durable when this returns. Whoever comes first writes for all who wait by then.

        Raises:
            OSError: not stored within 2 s, or refused; it may be repeated.
        """
        try:
            async with asyncio.timeout(SUBMIT_TIMEOUT_S):
                await self._enqueue(_Entry(options=options, argument=argument))
        except sa.exc.SQLAlchemyError as exc:
            workflow_id = options.get("workflow_id")
            raise OSError(f"{workflow_id} could not be stored: {type(exc).__name__}") from exc

    async def _enqueue(self, own: _Entry) -> None:
        self._waiting.append(own)
        try:
            async with self._lock:
                if own.is_stored:
                    return
                batch = [each for each in self._waiting if not each.is_stored]
                try:
                    await self._write(batch)
                except (sa.exc.SQLAlchemyError, ValueError):
                    if len(batch) == 1:
                        raise
                    await self._write([own])  # another one may have been the cause
        finally:
            self._waiting.remove(own)

    async def close(self) -> None:
        def work() -> None:
            self._client.destroy()
            self._engine.dispose()

        await asyncio.get_running_loop().run_in_executor(self._thread, work)
        self._thread.shutdown(wait=False)

    async def _write(self, batch: Sequence[_Entry]) -> None:
        def insert() -> None:
            with self._engine.begin() as connection:
                for each in batch:
                    self._client.enqueue_in_transaction(connection, each.options, each.argument)

        def work() -> None:
            until = time.monotonic() + SUBMIT_TIMEOUT_S
            while True:
                try:
                    return insert()
                except sa.exc.OperationalError as exc:
                    if not _is_busy(exc) or time.monotonic() > until:
                        raise
                time.sleep(BUSY_INTERVAL_S)

        await asyncio.get_running_loop().run_in_executor(self._thread, work)
        for each in batch:
            each.is_stored = True


def _is_busy(error: sa.exc.OperationalError) -> bool:
    """Whether another connection holds the write lock. Source: Python docs, sqlite3.Error.sqlite_errorcode."""
    code: int = getattr(error.orig, "sqlite_errorcode", 0)
    return code & 0xFF == sqlite3.SQLITE_BUSY
