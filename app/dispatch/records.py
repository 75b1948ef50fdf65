"""Dispatches by the run records alone: what is unfinished when it starts goes on. For one process."""

import asyncio
from bisect import insort
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import datetime

from typing_extensions import Unpack

from app.aio import TaskGroup, open_task_group
from app.dispatch.fair_queue import FairScheduler
from app.dispatch.placements import Placements, open_placements
from app.log import get_logger
from app.runs.model import Run, RunId, RunState
from app.runs.ports import AgainIn, EngineState, RunChanges, RunHandlers, RunStore

_log = get_logger(__name__)


@dataclass(slots=True, kw_only=True)
class _ThreadQueue:
    waiting: list[Run] = field(default_factory=list)
    """In the order of their messages."""
    is_busy: bool = False


class RecordDispatcher:
    """As durable as its store is."""

    def __init__(self, store: RunStore, *, capacity: int = 32, interval_s: float = 0.0) -> None:
        """`interval_s`: between two runs that begin."""
        self._store = store
        self._capacity = capacity
        self._interval_s = interval_s
        self._scheduler = FairScheduler(capacity=capacity)
        self._handlers: RunHandlers | None = None
        self._stack = AsyncExitStack()
        self._group: TaskGroup | None = None
        self._placements: Placements | None = None
        self._threads: dict[str, _ThreadQueue] = {}
        self._moving: dict[RunId, asyncio.Task[None] | None] = {}
        """None: an earlier run of its thread is going."""

    async def submit(self, run: Run) -> None:
        if await self._store.add(run) and self._placements is not None:
            self._placements.add(run)

    async def schedule(self, run: Run, **changes: Unpack[RunChanges]) -> Run:
        run = await self._store.update(run.id, **changes)
        self._enqueue(run)
        return run

    def wake(self, run_id: RunId) -> None:
        self._scheduler.wake(run_id)

    async def start(self, handlers: RunHandlers) -> None:
        self._handlers = handlers
        self._scheduler = FairScheduler(capacity=self._capacity, interval_s=self._interval_s)
        self._group = await self._stack.enter_async_context(open_task_group())
        self._placements = await self._stack.enter_async_context(open_placements(handlers))
        for run in await self._store.unfinished():
            if run.state is RunState.ACCEPTED:
                self._placements.add(run, resumed=True)
            else:
                self._enqueue(run)

    async def stop(self, *, grace_s: float) -> None:
        if self._placements is None:
            return
        placements, self._placements = self._placements, None
        self._handlers = None
        self._scheduler.close()
        await placements.close(grace_s=grace_s)
        tasks = [task for task in self._moving.values() if task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=grace_s)
        for task in tasks:
            task.cancel()
        await self._stack.aclose()
        self._threads.clear()
        self._moving.clear()

    async def engine_states(self, run_ids: Sequence[RunId]) -> Mapping[RunId, EngineState]:
        placing = self._placements or ()
        return {
            run_id: EngineState.MOVING
            if run_id in self._moving or run_id in placing
            else EngineState.ENDED
            for run_id in run_ids
        }

    async def forget(self, *, before: datetime, limit: int, keep: Collection[RunId]) -> int:
        """Removes nothing: there are no rows but the records."""
        del before, limit, keep
        return 0

    def _enqueue(self, run: Run) -> None:
        if run.id in self._moving or run.state.is_final or self._handlers is None:
            return
        self._moving[run.id] = None
        queue = self._threads.setdefault(run.thread.key, _ThreadQueue())
        insort(queue.waiting, run, key=lambda one: one.request.order_in_thread)
        self._go_on(run.thread.key)

    def _go_on(self, thread_key: str) -> None:
        queue = self._threads[thread_key]
        if queue.is_busy or self._handlers is None or self._group is None:
            return
        if not queue.waiting:
            del self._threads[thread_key]
            return
        run = queue.waiting.pop(0)
        queue.is_busy = True
        self._moving[run.id] = self._group.create_task(self._advance(run, self._handlers))

    async def _advance(self, run: Run, handlers: RunHandlers) -> None:
        try:
            async with self._scheduler.hold_slot(run.id, handlers.request_slot):
                while isinstance(again := await handlers.advance(run.id), AgainIn):  # noqa: ASYNC110 - told when, not polling
                    await asyncio.sleep(again.seconds)
        except Exception:  # noqa: BLE001 - one run must not end the others; the reconciler ends it
            _log.exception("run.advance_failed", run_id=run.id)
        finally:
            self._moving.pop(run.id, None)
            self._threads[run.thread.key].is_busy = False
            self._go_on(run.thread.key)
