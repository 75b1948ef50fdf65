"""Places and advances runs where no process goes on after its answer: each invocation is a process of its own that does a part.

Every unfinished run has two messages on their way that wake somebody for it, a slice apart: whoever takes one sends the next two
before it works, of which one mostly is on its way already. So a crash at any line is taken up by the next one, also before anything
was sent: the platform brings back the message of an invocation that died after minutes. The row decides what is done; a message
that comes twice, late or for nothing finds nothing to do.
"""

import asyncio
import time
from typing import Protocol

from typing_extensions import Unpack, override

from app.audit.records import AuditEntry
from app.dispatch.dispatcher import RunDispatcher
from app.dispatch.lease import SETTLE_S, Leases, ProcessLease
from app.log import get_logger
from app.runs.model import ProcessId, Run
from app.runs.ports import RunChanges, RunStore
from app.runs.request import RunId

GAP_S = 2.0
"""From the end of a slice to the next message: by then its run is free."""
MIN_LEFT_S = 1.0
"""Of a slice, for another run to begin in it."""
SEND_TIMEOUT_S = 5.0
OVERDUE_S = 120.0
"""Whoever waits longer for a message has none on its way: each is sent anew within a slice."""
ANYBODY = RunId("")

_log = get_logger(__name__)


class WakeUps(Protocol):
    """Messages of a durable queue that have an invocation work; delivered at least once."""

    async def send(self, run_id: RunId, *, number: int, after_s: float = 0) -> None:
        """Returns when it is durable; the same number for the same run is one message.

        Args:
            run_id: for whom somebody is woken; `ANYBODY` = whoever is due.
            number: of the run's messages; each names the next one.
            after_s: not before, 0 to 86,400 s.

        Raises:
            OSError: the queue does not take it.
        """
        ...


class SliceDispatcher(RunDispatcher):
    """For the length of one invocation; nothing of it goes on after `stop`."""

    def __init__(
        self,
        store: RunStore,
        leases: Leases,
        lease: ProcessLease,
        *,
        wake_ups: WakeUps,
        waits_s: float,
        slice_s: float,
    ) -> None:
        """Makes one that is to be started; see `RunDispatcher`. `slice_s`: for which an invocation works."""
        super().__init__(store, leases, lease, capacity=0, waits_s=waits_s)
        self._slice_s = slice_s
        self._wake_ups = wake_ups
        self._owed: dict[RunId, int] = {}
        """Messages that are to be sent before this ends."""

    _late_s = SETTLE_S
    """An invocation has no time to wait for those that an outage has made late."""

    @property
    @override
    def process(self) -> ProcessId:
        """Each invocation ends after its slice, and what agents ask for goes by none that works."""
        return ProcessId("")

    @override
    async def submit(self, run: Run) -> bool:
        is_new = await super().submit(run)
        # Not new: whoever accepted it places it, and sends its message, unless they have died in between.
        self._owed.setdefault(run.id, 0 if is_new else 1)
        return is_new

    @override
    async def schedule(
        self, run: Run, *, entry: AuditEntry | None = None, **changes: Unpack[RunChanges]
    ) -> None:
        self._owed.setdefault(run.id, 1)  # also one that a dead process had accepted
        await super().schedule(run, entry=entry, **changes)
        await self._send_two(run.id, number=1, after_s=0)
        self._owed.pop(run.id, None)

    @override
    async def discard(self, run: Run) -> bool:
        is_gone = await super().discard(run)
        if is_gone:
            self._owed.pop(run.id, None)
        return is_gone

    @override
    def wake(self) -> None:
        self._owed[ANYBODY] = time.time_ns()

    @override
    async def stop(self, *, grace_s: float) -> None:
        """Also sends what is owed: an accepted run that could not be placed is the next invocation's.

        Raises:
            OSError: it could not be sent.
        """
        await super().stop(grace_s=grace_s)
        while self._owed:
            run_id, number = self._owed.popitem()
            await self._send(run_id, number=number)

    async def work(self, run_id: RunId, *, number: int) -> None:
        """Does a slice of whatever is due, woken for one run by its message of that number.

        A run begins within a slice, so this takes twice as long at most, and the end of a run.

        Raises:
            OSError: the next messages could not be sent; nothing was done.
        """
        run = await self._store.get(run_id) if run_id else None
        if run is not None and not run.state.is_final:
            await self._send_two(run_id, number=number + 1, after_s=self._slice_s + GAP_S)
        until_s = time.monotonic() + self._slice_s
        if self._placements is not None:  # what dead processes have accepted
            await self._placements.settle(timeout_s=self._slice_s)
        while until_s - time.monotonic() > MIN_LEFT_S and await self._has_begun():
            await asyncio.wait(list(self._going.values()))

    async def sweep(self, *, after_s: float = OVERDUE_S) -> int:
        """Wakes somebody for each run that nobody has worked on for so long since it was due; how many there were."""
        overdue = await self._leases.overdue(after_s=after_s)
        for run_id in overdue:
            # Above all numbers that its slices have had, which are longer than a second.
            await self._send(run_id, number=int(time.time()))
        if overdue:
            _log.warning("dispatch.swept", runs=len(overdue))
        return len(overdue)

    async def _has_begun(self) -> bool:
        if self._group is None or self._handlers is None:
            return False
        self._capacity = 1
        await self._claim(self._handlers, self._group)
        return bool(self._going)

    async def _send_two(self, run_id: RunId, *, number: int, after_s: float) -> None:
        """The later one first: whoever dies in between leaves no run without any, for what called it comes again."""
        await self._send(run_id, number=number + 1, after_s=after_s + self._slice_s + GAP_S)
        await self._send(run_id, number=number, after_s=after_s)

    async def _send(self, run_id: RunId, *, number: int, after_s: float = 0) -> None:
        async with asyncio.timeout(SEND_TIMEOUT_S):
            await self._wake_ups.send(run_id, number=number, after_s=after_s)
