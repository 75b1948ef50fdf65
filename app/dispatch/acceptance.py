"""How a request becomes durable before Slack is acknowledged: one enqueue of its own, waiting for nothing else."""

import asyncio
import json
import sqlite3
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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


@dataclass(slots=True, kw_only=True)
class _Entry:
    options: EnqueueOptions
    argument: JsonValue
    is_stored: bool = False


class Enqueuer:
    """Enqueues on a connection and thread of its own, those that wait together in one transaction.

    An acknowledgement waits for nothing else: on the engine's connection it would queue behind every step of every run.
    """

    def __init__(self, engine: sa.Engine) -> None:
        """`engine`: of one connection, closed with this."""
        self._engine = engine
        self._client = DBOSClient(
            system_database_engine=self._engine,
            serializer=JsonSerializer(),
            lazy=True,
            retry_connection_errors=False,  # which would be without limit
        )
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="enqueue")
        self._lock = asyncio.Lock()
        self._waiting: list[_Entry] = []

    async def enqueue(self, options: EnqueueOptions, argument: JsonValue) -> None:
        """Stores it as durably as the connection's commits, before this returns. Whoever comes first writes for all who wait by then.

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

    async def hand_back(self, executor_id: str) -> None:
        """Queues again what an executor that has ended was at; by the queue's name, or it would leave its thread's order."""

        def work() -> None:
            for row in self._client.list_workflows(
                status="PENDING", executor_id=executor_id, load_input=False, load_output=False
            ):
                self._client.resume_workflow(row.workflow_id, queue_name=row.queue_name)

        await asyncio.get_running_loop().run_in_executor(self._thread, work)

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
