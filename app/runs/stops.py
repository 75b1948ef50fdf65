"""Brings the wish to stop to the run that is going: at once in this process, within 0.5 s from another one."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from app.runs.model import RunId
from app.runs.ports import Clock, RunStore

POLL_INTERVAL_S = 0.5
"""The CLI stops a run through its record; the owner must see it within this time."""


class RunStoppedError(Exception):
    """A person stopped the run before its agent had started."""


class StopRequest:
    """What a running run waits on."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._interrupt: Callable[[], None] | None = None
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
    async def interrupting(self) -> AsyncIterator[None]:
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
    """One per process."""

    def __init__(self) -> None:
        self._watched: dict[RunId, StopRequest] = {}

    @contextmanager
    def watch(self, run_id: RunId) -> Iterator[StopRequest]:
        """The stop request of a run, heard while inside."""
        request = self._watched.setdefault(run_id, StopRequest())
        try:
            yield request
        finally:
            self._watched.pop(run_id, None)

    def notify(self, run_id: RunId, user: str) -> None:
        if request := self._watched.get(run_id):
            request.set(user)

    async def poll_forever(self, store: RunStore, clock: Clock) -> None:
        """Hear of wishes that other processes wrote into the records."""
        while True:
            await clock.sleep(POLL_INTERVAL_S)
            watched = [run_id for run_id, request in self._watched.items() if request.user is None]
            if watched:
                for run_id, user in (await store.stop_requested(watched)).items():
                    self.notify(run_id, user)
