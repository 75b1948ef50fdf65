"""Handlers that keep a journal of what a dispatcher asks of them, and a dispatcher started on them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from pathlib import Path

import pytest

from app.dispatch.durable import DurableDispatcher
from app.runs.testing import (
    Advance,
    AgainIn,
    Dispatcher,
    Done,
    Run,
    RunId,
    RunRequest,
    RunState,
    SlotRequest,
)
from app.store.runs import SqlRunStore, open_postgres_store, open_sqlite_store
from tests.building import T0

CAPACITY = 4
WAIT_S = 20.0
POSTGRESQL = pytest.param("postgresql", marks=pytest.mark.postgresql)


class Handlers:
    """Places by scheduling, advances by a scripted wait; keeps a journal."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.dispatcher = dispatcher
        self.placed: list[tuple[RunId, bool]] = []
        """And whether that was resumed."""
        self.requests: dict[RunId, RunRequest] = {}
        self.asked: list[RunId] = []
        self.needless: set[RunId] = set()
        self.started: list[RunId] = []
        self.ended: list[RunId] = []
        self.running = 0
        self.most_running = 0
        self.hold: Callable[[RunId], float] = lambda _run_id: 0.0
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.again: set[RunId] = set()

    async def submit(self, request: RunRequest) -> None:
        await self.dispatcher.submit(Run(id=request.run_id, request=request, created_at=T0))

    async def place(self, run: Run, *, resumed: bool) -> None:
        self.placed.append((run.id, resumed))
        self.requests[run.id] = run.request
        await self.dispatcher.schedule(run, state=RunState.PLACED)

    async def request_slot(self, run_id: RunId) -> SlotRequest | None:
        self.asked.append(run_id)
        if run_id in self.needless:
            return None
        request = self.requests[run_id]
        return SlotRequest(user=request.user, order=request.order)

    async def advance(self, run_id: RunId, *, until: datetime | None = None) -> Advance:
        del until
        self.started.append(run_id)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await self.may_end.wait()
            await asyncio.sleep(self.hold(run_id))
        finally:
            self.running -= 1
        if run_id in self.again:
            self.again.discard(run_id)
            return AgainIn(seconds=0.05)
        self.ended.append(run_id)
        return Done()


@asynccontextmanager
async def started(
    dispatcher: Dispatcher,
    *,
    placed: Sequence[RunRequest] = (),
    grace_s: float = 1,
    may_end: bool = True,
) -> AsyncIterator[Handlers]:
    """`placed`: by an earlier process. Unless they `may_end`, runs go on until the event of that name is set."""
    handlers = Handlers(dispatcher)
    if not may_end:
        handlers.may_end.clear()
    handlers.requests = {request.run_id: request for request in placed}
    await dispatcher.start(handlers)
    try:
        yield handlers
    finally:
        await dispatcher.stop(grace_s=grace_s)


@asynccontextmanager
async def started_durable(
    location: Path | str,
    *,
    capacity: int = CAPACITY,
    placed: Sequence[RunRequest] = (),
    grace_s: float = 1,
    may_end: bool = True,
) -> AsyncIterator[Handlers]:
    """Starts one on a database as a process does, with a store of its own."""
    async with open_store(location) as store:
        dispatcher = DurableDispatcher(location, store, capacity=capacity)
        async with started(dispatcher, placed=placed, grace_s=grace_s, may_end=may_end) as handlers:
            yield handlers


def open_store(location: Path | str) -> AbstractAsyncContextManager[SqlRunStore]:
    if isinstance(location, Path):
        return open_sqlite_store(location)
    return open_postgres_store(location)
