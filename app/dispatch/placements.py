"""Accepted runs on their way to their thinking message, in this process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from app.aio import TaskGroup, open_task_group
from app.log import get_logger
from app.runs.model import Run, RunId
from app.runs.ports import RunHandlers

PLACED_AT_ONCE = 16
"""More would only queue for the store's connection, and for the interpreter's lock, which acknowledgements need as well."""

_log = get_logger(__name__)


class Placements:
    """Has runs placed, so many at once, in the order in which they come. Made by `open_placements`.

    One that cannot be placed stays accepted: the reconciler ends it, or the next start places it.
    """

    def __init__(self, handlers: RunHandlers, *, group: TaskGroup) -> None:
        self._handlers = handlers
        self._group = group
        self._slots = asyncio.Semaphore(PLACED_AT_ONCE)
        self._tasks: dict[RunId, asyncio.Task[None]] = {}
        self._is_closed = False

    def __contains__(self, run_id: RunId) -> bool:
        return run_id in self._tasks

    def add(self, run: Run, *, resumed: bool = False) -> None:
        """Has it placed soon; returns at once. `resumed`: that may have been begun before."""
        if self._is_closed or run.id in self._tasks:
            return
        task = self._group.create_task(self._place(run, resumed=resumed), name=f"place-{run.id}")
        self._tasks[run.id] = task
        task.add_done_callback(lambda _task: self._tasks.pop(run.id))

    async def close(self, *, grace_s: float) -> None:
        """Begins none any more, waits up to `grace_s` for those that have begun, and cancels them then."""
        self._is_closed = True
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=grace_s)
        for task in self._tasks.values():
            task.cancel()

    async def _place(self, run: Run, *, resumed: bool) -> None:
        async with self._slots:
            if self._is_closed:
                return
            try:
                await self._handlers.place(run, resumed=resumed)
            except Exception:  # noqa: BLE001 - one run that cannot be placed must not end the service
                _log.exception("run.placing_failed", run_id=run.id)


@asynccontextmanager
async def open_placements(handlers: RunHandlers) -> AsyncIterator[Placements]:
    """Opens them for the length of a block; at its end those that go on are cancelled."""
    async with open_task_group() as group:
        placements = Placements(handlers, group=group)
        try:
            yield placements
        finally:
            await placements.close(grace_s=0)
