"""Handlers that keep a journal of what a dispatcher asks of them, and a dispatcher started on them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from app.dispatch.dispatcher import RunDispatcher
from app.dispatch.lease import open_lease
from app.errors import ErrorCode
from app.runs.testing import (
    Advance,
    AgainIn,
    Dispatcher,
    Done,
    Outcome,
    Run,
    RunId,
    RunRequest,
    RunState,
    RunStore,
)
from app.store.memory import MemoryRunStore
from app.store.runs import SqlRunStore, open_store

CAPACITY = 4
WAIT_S = 20.0
WAITS_S = 1000.0
"""For a slot, before a run is over."""
POSTGRESQL = pytest.param("postgresql", marks=pytest.mark.postgresql)


class Handlers:
    """Places by scheduling, advances by a scripted wait; keeps a journal."""

    def __init__(self, dispatcher: Dispatcher, store: RunStore) -> None:
        self.dispatcher = dispatcher
        self.store = store
        self.placed: list[tuple[RunId, bool]] = []
        """And whether that was resumed."""
        self.started: list[RunId] = []
        self.ended: list[RunId] = []
        self.running = 0
        self.most_running = 0
        self.hold: Callable[[RunId], float] = lambda _run_id: 0.0
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.until_end: dict[RunId, asyncio.Event] = {}
        """Runs with an end of their own."""
        self.may_place = asyncio.Event()
        self.may_place.set()
        self.again: set[RunId] = set()
        self.broken: set[RunId] = set()
        """`advance` fails for them."""
        self.silent: set[RunId] = set()
        """Not for us, the first time that they are placed."""
        self.handed_over = 0
        self.closed: list[RunId] = []
        """Those that `end` was asked to end."""

    async def submit(self, request: RunRequest) -> None:
        now = datetime.now(UTC)
        await self.dispatcher.submit(Run(id=request.run_id, request=request, created_at=now))

    async def place(self, run: Run, *, resumed: bool) -> None:
        self.placed.append((run.id, resumed))
        if run.id in self.silent:
            self.silent.discard(run.id)
            assert await self.dispatcher.discard(run)
            return
        await self.may_place.wait()
        await self.dispatcher.schedule(run, state=RunState.PLACED)

    async def advance(self, run_id: RunId, *, until: datetime | None = None) -> Advance:
        del until
        self.started.append(run_id)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await self.may_end.wait()
            if run_id in self.until_end:
                await self.until_end[run_id].wait()
            await asyncio.sleep(self.hold(run_id))
        finally:
            self.running -= 1
        if run_id in self.again:
            self.again.discard(run_id)
            return AgainIn(seconds=0.05)
        if run_id in self.broken:
            raise ValueError(f"cannot advance {run_id}")
        await self.store.update(run_id, state=RunState.SUCCEEDED)
        self.ended.append(run_id)
        return Done()

    def hand_over(self) -> None:
        self.handed_over += 1

    async def end(self, run_id: RunId, code: ErrorCode) -> None:
        await self.store.update(
            run_id,
            state=RunState.FAILED,
            outcome=Outcome(state=RunState.FAILED, error_code=code),
        )
        self.closed.append(run_id)


@asynccontextmanager
async def started(
    store: MemoryRunStore | SqlRunStore,
    *,
    capacity: int = CAPACITY,
    grace_s: float = 1,
    may_end: bool = True,
    handlers_of: Callable[[Dispatcher, RunStore], Handlers] = Handlers,
) -> AsyncIterator[Handlers]:
    """A dispatcher at work. Unless they `may_end`, runs go on until the event of that name is set."""
    async with open_lease(store.leases) as lease:
        dispatcher = RunDispatcher(
            store, store.leases, lease, capacity=capacity, waits_s=WAITS_S, start_interval_s=0
        )
        handlers = handlers_of(dispatcher, store)
        if not may_end:
            handlers.may_end.clear()
        await dispatcher.start(handlers)
        try:
            yield handlers
        finally:
            await dispatcher.stop(grace_s=grace_s)


@asynccontextmanager
async def started_on(
    location: Path | str,
    *,
    capacity: int = CAPACITY,
    grace_s: float = 1,
    may_end: bool = True,
    handlers_of: Callable[[Dispatcher, RunStore], Handlers] = Handlers,
) -> AsyncIterator[Handlers]:
    """Starts one on a database as a process does, with a store of its own."""
    async with (
        open_store(location) as store,
        started(
            store, capacity=capacity, grace_s=grace_s, may_end=may_end, handlers_of=handlers_of
        ) as handlers,
    ):
        yield handlers
