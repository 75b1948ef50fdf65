"""Brings a stop to the run it is meant for: at once in this process, within 0.5 s from another one."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

from app.log import get_logger
from app.runs.model import Run, RunId
from app.runs.ports import RunStore
from sandbox_runtime.task_group import open_task_group

_log = get_logger(__name__)

POLL_INTERVAL_S = 0.5
"""The CLI stops a run through its record; the owner must see it within this time."""


class RunStoppedError(Exception):
    """A person stopped the run before its agent had started."""


class StopRequest:
    """Lets a running run wait to be stopped."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._interrupt: Callable[[], None] | None = None
        self.began_s = time.monotonic()
        self.user: str | None = None

    def set(self, user: str) -> None:
        if self.user is None:
            self.user = user
            self._event.set()
            if self._interrupt is not None:
                self._interrupt()

    async def wait(self) -> None:
        await self._event.wait()

    @asynccontextmanager
    async def interrupt_on_stop(self) -> AsyncIterator[None]:
        """Cancels the block when the stop comes.

        Raises:
            RunStoppedError: it came.
        """
        block = asyncio.timeout(None)

        def interrupt() -> None:
            block.reschedule(asyncio.get_running_loop().time())

        try:
            async with block:
                self._interrupt = interrupt
                if self.user is not None:
                    interrupt()
                yield
        except TimeoutError as exc:
            if block.expired():
                raise RunStoppedError from exc
            raise
        finally:
            self._interrupt = None


class StopSignals:
    """The stop requests of this process's runs."""

    def __init__(self) -> None:
        self._watched: dict[RunId, StopRequest] = {}
        self._news = asyncio.Event()

    @contextmanager
    def watch(self, run_id: RunId) -> Iterator[StopRequest]:
        """Yields the stop request of a run, heard while inside."""
        request = self._watched.setdefault(run_id, StopRequest())
        try:
            yield request
        finally:
            self._watched.pop(run_id, None)

    def going_s(self, run_id: RunId) -> float | None:
        """Returns for how long this process has been at this run, by a clock that does not jump; None when it is not."""
        request = self._watched.get(run_id)
        return None if request is None else time.monotonic() - request.began_s

    def notify(self, run_id: RunId, user: str) -> None:
        """Passes on a stop that is in the record; a run that has not begun is ended by `listen_forever`."""
        if request := self._watched.get(run_id):
            request.set(user)
        else:
            self._news.set()

    async def listen_forever(
        self, store: RunStore, end_waiting: Callable[[Run], Awaitable[None]]
    ) -> None:
        """Hears of stops that other processes wrote into the records, and ends what has not begun."""
        ending: dict[RunId, asyncio.Task[None]] = {}
        async with open_task_group() as group:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_INTERVAL_S):
                        await self._news.wait()
                self._news.clear()
                try:
                    await self._hear(store)
                    waiting = await store.stopped_waiting()
                except Exception as exc:  # noqa: BLE001 - must outlive a sick database; the next look is 0.5 s away
                    _log.warning("stops.unheard", error=type(exc).__name__)
                    continue
                ending = {run_id: task for run_id, task in ending.items() if not task.done()}
                for run in waiting:
                    if run.id not in ending:
                        ending[run.id] = group.create_task(_quietly(end_waiting(run)))

    async def _hear(self, store: RunStore) -> None:
        watched = [run_id for run_id, request in self._watched.items() if request.user is None]
        if watched:
            for run_id, user in (await store.stop_requested(watched)).items():
                self.notify(run_id, user)


async def _quietly(ending: Awaitable[None]) -> None:
    try:
        await ending
    except Exception:  # noqa: BLE001 - one run's trouble is not the others'; it is looked at again
        _log.exception("stops.end_failed")
