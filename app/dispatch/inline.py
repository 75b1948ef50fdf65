"""Dispatches in this process's memory: for tests and the bench. What is submitted is lost with the process."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime

from app.aio import TaskGroup, open_task_group
from app.dispatch.fair_queue import FairScheduler
from app.runs.model import Run, RunId, RunRequest
from app.runs.ports import AgainIn, EngineState, RunHandlers


class InlineDispatcher:
    """A dispatcher with the promises of the durable one, but for durability."""

    def __init__(self, *, capacity: int = 32) -> None:
        self._capacity = capacity
        self._scheduler = FairScheduler(capacity=capacity)
        self._handlers: RunHandlers | None = None
        self._stack = AsyncExitStack()
        self._group: TaskGroup | None = None
        self._submitted: dict[RunId, RunRequest] = {}
        self._scheduled: dict[RunId, Run] = {}
        self._waiting: list[Run] = []
        self._busy_threads: set[str] = set()
        self._ended: set[RunId] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def submit(self, request: RunRequest) -> None:
        if request.run_id in self._submitted:
            return
        self._submitted[request.run_id] = request
        if self._group is not None and self._handlers is not None:
            self._start_task(self._handlers.place(request))

    async def schedule(self, run: Run) -> None:
        if run.id in self._scheduled:
            return
        self._scheduled[run.id] = run
        self._waiting.append(run)
        self._start_waiting()

    def wake(self, run_id: RunId) -> None:
        self._scheduler.wake(run_id)

    async def start(self, handlers: RunHandlers) -> None:
        self._handlers = handlers
        self._scheduler = FairScheduler(capacity=self._capacity)
        self._group = await self._stack.enter_async_context(open_task_group())
        for request in self._submitted.values():
            self._start_task(handlers.place(request))

    async def stop(self, *, grace_s: float) -> None:
        if self._group is None:
            return
        self._handlers = None
        self._scheduler.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace_s)
        for task in list(self._tasks):
            task.cancel()
        self._group = None
        await self._stack.aclose()

    async def engine_states(self, run_ids: Sequence[RunId]) -> Mapping[RunId, EngineState]:
        return {
            run_id: EngineState.ENDED if run_id in self._ended else EngineState.MOVING
            for run_id in run_ids
            if run_id in self._submitted
        }

    async def lost_placements(self) -> Sequence[RunRequest]:
        return ()

    async def forget(self, *, before: datetime, limit: int, keep: Collection[RunId]) -> int:
        """Removes nothing: what it remembers goes with the process."""
        del before, limit, keep
        return 0

    def _start_waiting(self) -> None:
        if self._handlers is None:
            return
        for run in sorted(
            self._waiting, key=lambda run: (run.request.order, run.request.order_in_thread)
        ):
            if run.thread.key not in self._busy_threads:
                self._waiting.remove(run)
                self._busy_threads.add(run.thread.key)
                self._start_task(self._advance(run, self._handlers))

    async def _advance(self, run: Run, handlers: RunHandlers) -> None:
        try:
            async with self._scheduler.hold_slot(run.id, handlers.request_slot):
                while isinstance(advance := await handlers.advance(run.id), AgainIn):  # noqa: ASYNC110 - not polling: told when
                    await asyncio.sleep(advance.seconds)
            self._ended.add(run.id)
        finally:
            self._busy_threads.discard(run.thread.key)
            self._start_waiting()

    def _start_task(self, work: "asyncio._CoroutineLike[None]") -> None:
        assert self._group is not None  # noqa: S101 - callers checked; narrows the type
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
