"""Accepted runs on their way to their thinking message, in this process."""

import asyncio
from contextlib import suppress

from anyio import CapacityLimiter

from app.aio import TaskGroup
from app.errors import LeaseLostError
from app.log import get_logger
from app.runs.model import Run, RunId
from app.runs.ports import RunHandlers

PLACED_AT_ONCE, PLACED_AGAIN_AT_ONCE = 16, 4
"""Those that were begun before look for their message first, which Slack allows 50 times a minute: new ones do not wait behind them.

More would only queue for the store's connection."""
PLACED_MEANWHILE = 1
"""While an acknowledgement is under way, which needs the interpreter's lock as well and is due sooner."""
RETRY_INTERVAL_S = 5.0

_log = get_logger(__name__)


class Placements:
    """Has runs placed, so many at once, in the order in which they come.

    One that fails is tried again, as after a crash: whoever places it counts that, and gives it up some time.
    """

    def __init__(self, handlers: RunHandlers, *, group: TaskGroup) -> None:
        """`group`: in which they go on; it outlives them by `close`."""
        self._handlers = handlers
        self._group = group
        self._slots = CapacityLimiter(PLACED_AT_ONCE)
        self._slots_again = CapacityLimiter(PLACED_AGAIN_AT_ONCE)
        self._tasks: dict[RunId, asyncio.Task[None]] = {}
        self._closed = asyncio.Event()

    def add(self, run: Run, *, resumed: bool = False) -> None:
        """Has it placed soon; returns at once. `resumed`: that may have been begun before."""
        if self._closed.is_set() or run.id in self._tasks:
            return
        task = self._group.create_task(self._place(run, resumed=resumed), name=f"place-{run.id}")
        self._tasks[run.id] = task
        task.add_done_callback(lambda _task: self._tasks.pop(run.id))

    def give_way(self, *, is_accepting: bool) -> None:
        """Begins fewer while runs are accepted; those that have begun go on."""
        self._slots.total_tokens = PLACED_MEANWHILE if is_accepting else PLACED_AT_ONCE

    async def settle(self, *, timeout_s: float) -> None:
        """Waits so long for those that have begun."""
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=timeout_s)

    async def close(self, *, grace_s: float) -> None:
        """Begins none any more, waits up to `grace_s` for those that have begun, and cancels them then."""
        self._closed.set()
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=grace_s)
        for task in self._tasks.values():
            task.cancel()

    async def _place(self, run: Run, *, resumed: bool) -> None:
        while not await self._is_placed(run, resumed=resumed):
            with suppress(TimeoutError):
                async with asyncio.timeout(RETRY_INTERVAL_S):
                    await self._closed.wait()
            resumed = True

    async def _is_placed(self, run: Run, *, resumed: bool) -> bool:
        """Whether nothing is left to do here."""
        async with self._slots_again if resumed else self._slots:
            if self._closed.is_set():
                return True
            try:
                await self._handlers.place(run, resumed=resumed)
            except LeaseLostError:
                _log.warning("run.lease_lost", run_id=run.id)
            except Exception:  # noqa: BLE001 - one run that cannot be placed must not end the service
                _log.exception("run.placing_failed", run_id=run.id)
                return False
            return True
