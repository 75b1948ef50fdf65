"""This process's lease: said anew every few seconds where others may take over what it has, and asked for before it acts."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Protocol

from typing_extensions import Unpack

from app.aio import open_task_group
from app.audit.records import AuditEntry
from app.errors import LeaseLostError, MustEndError
from app.log import get_logger
from app.runs.model import ProcessId, Run
from app.runs.ports import RunChanges
from app.runs.request import RunId

RENEW_INTERVAL_S = 4.0
"""A third of a lease, so that one that comes late costs nothing."""
SURE_S = 10.0
"""So long after it was renewed nobody can have taken it: a lease is 14 s, and the rest is for the effect itself."""
RETRY_INTERVAL_S = 0.5
CONFIRM_TIMEOUT_S = 300.0
PUNCTUAL_ROUNDS = 2
"""Renewals in time before others may be given up for dead: after an outage of the database all of them are late."""
SETTLE_S, SETTLE_INTERVAL_S = 12.0, 0.25
"""So long who starts waits for those that are late, for the same reason, and between two looks at them: a call that an outage has cut takes 10 s to fail."""
TAKE_OVER_TIMEOUT_S = 8.0
"""By a slow database: with what comes before the next renewal it is less than a lease."""

_log = get_logger(__name__)
_bound_to: ContextVar[int] = ContextVar("lease")


class Leases(Protocol):
    """Which process has which run; the dispatcher's side of a store.

    A run belongs to the process that accepted it until its message stands, then to nobody, then to whoever claims it. The
    store writes into an unfinished run only for the process that has it.
    """

    @property
    def is_shared(self) -> bool:
        """Whether several processes may work on the database."""
        ...

    @property
    def id(self) -> ProcessId:
        """Returns by what this process is known; another one each time it joins."""
        ...

    async def lives(self, process: ProcessId) -> bool:
        """Whether the process that was known so still is."""
        ...

    async def join(self) -> None:
        """Makes this process known, under a new id; on a database of one process, all others are dead.

        Raises:
            MustEndError: it was known before, and the database is none that it can use any more.
        """
        ...

    async def renew(self) -> int:
        """Says that this process lives; returns how many do, or 0 when it was given up for dead: nothing is its own any more."""
        ...

    async def late(self) -> int:
        """Returns how many processes are known whose time is over: they are dead, or have not reached the database."""
        ...

    async def take_over(self, *, again: bool = False, late_s: float = 0) -> Sequence[Run]:
        """Gives up dead processes: what they have becomes free; what they have not placed yet is this process's, and returned.

        Args:
            again: the last time failed, maybe only after it was committed: what this process has not placed is returned, too.
            late_s: who is late by no more than that may live.
        """
        ...

    async def unclaim(self, run_ids: Collection[RunId]) -> None:
        """Lets others place these, which this process has accepted and not begun to place."""
        ...

    async def leave(self, *, is_brief: bool = False) -> None:
        """Gives all back that this process has; it is known no more.

        `is_brief`: it ends as it always does after a while. Else it was told to end, and the attempts that end with it do not count.
        """
        ...

    async def claim(self, *, slots: int, waits_s: float) -> Sequence[Run]:
        """Takes runs that may be advanced: all that need no slot, and as many as `slots` that do, in order.

        Args:
            slots: 0 or more.
            waits_s: whoever has waited longer for a first slot needs none: it is over.
        """
        ...

    async def find_lost(self, known: Collection[RunId]) -> Sequence[Run]:
        """Returns the runs that this process has claimed beside those that it knows of: a claim may fail after it was committed."""
        ...

    async def holds(self, run_id: RunId) -> bool:
        """Whether this process accepted it, and its message does not stand yet."""
        ...

    async def schedule(
        self, run_id: RunId, *, entry: AuditEntry | None = None, **changes: Unpack[RunChanges]
    ) -> None:
        """See `Dispatcher.schedule`."""
        ...

    async def discard(self, run: Run) -> bool:
        """See `Dispatcher.discard`; True also when it is gone already."""
        ...

    async def release(self, run_id: RunId, *, after_s: float) -> None:
        """Gives a claimed run back, to be claimed again after this time."""
        ...

    async def overdue(self, *, after_s: float) -> Sequence[RunId]:
        """Returns runs, at most 64, that could have been claimed for so long, or that nobody has who would place them; oldest first."""
        ...

    async def borrow(self, run_id: RunId) -> Run | None:
        """Takes a run that waits to be claimed, which keeps its turn; None when it does not wait."""
        ...

    async def give_back(self, run_id: RunId) -> None:
        """Ends `borrow`."""
        ...


class Attendant(Protocol):
    """Who has runs by a lease."""

    async def drop_all(self) -> None:
        """Ends all work at them: they are another process's by now."""
        ...

    async def take_over(self) -> None:
        """Looks for what belongs to dead processes."""
        ...


class ProcessLease:
    """Keeps the lease, and is the gate before effects: nothing is done for runs that another process may have by now."""

    def __init__(self, leases: Leases, *, is_brief: bool = False) -> None:
        """`is_brief`: of a process that is there for one request."""
        self._leases = leases
        self._is_brief = is_brief
        self._renewed_s = _now_s()
        self._number = 0
        """Of joins."""
        self._count = 1
        self._told: list[Callable[[int], None]] = []
        self._attendant: Attendant | None = None
        self._is_over = False
        self._lock = asyncio.Lock()

    async def confirm(self) -> None:
        """Returns when what this process has is its own; waits while the database is away, and ends nothing meanwhile.

        Raises:
            LeaseLostError: this process was given up for dead, or has given all back.
            TimeoutError: the database has been away for 300 s.
        """
        self._require_bound()
        if not self._leases.is_shared or _now_s() - self._renewed_s < SURE_S:
            return
        async with asyncio.timeout(CONFIRM_TIMEOUT_S):
            while True:
                try:
                    lives = await self._renew()
                except Exception as exc:  # noqa: BLE001 - whatever ails the database: it is asked again
                    _log.debug("lease.unconfirmed", error=type(exc).__name__)
                    await asyncio.sleep(RETRY_INTERVAL_S)
                    continue
                if not lives:
                    raise LeaseLostError("this process was given up for dead")
                self._require_bound()  # it may have come back meanwhile
                return

    def _require_bound(self) -> None:
        if _bound_to.get(self._number) != self._number:
            raise LeaseLostError("this process has given up what it had, and is another one now")

    def tell(self, hear: Callable[[int], None]) -> None:
        """Has `hear` called with the number of living processes whenever it has changed."""
        self._told.append(hear)

    def attend(self, attendant: Attendant) -> None:
        """Has this one told when the lease was lost, and when others' may be."""
        self._attendant = attendant

    def bind(self) -> None:
        """Binds the task that calls, and those it starts, to the lease as it is: when it is lost they do nothing more, though this process comes back."""
        _bound_to.set(self._number)

    async def join(self) -> None:
        """Makes this process known, under an id that it has not had before."""
        async with self._lock:
            self._number += 1
            started_s = _now_s()
            await self._leases.join()
            self._renewed_s = started_s

    async def settle(self) -> None:
        """Waits a while for processes that are late, so that after an outage of the database none that lives is taken for dead."""
        for _ in range(round(SETTLE_S / SETTLE_INTERVAL_S)):
            if not await self._leases.late():
                return
            await asyncio.sleep(SETTLE_INTERVAL_S)

    async def leave(self) -> None:
        """Gives all back; this process is known no more, and what is bound to its lease does nothing more."""
        self._is_over = True
        async with self._lock:
            self._number += 1
            await self._leases.leave(is_brief=self._is_brief)

    async def keep(self) -> None:
        """Renews it until it is left; comes back where it was lost.

        Raises:
            MustEndError: it cannot come back.
        """
        punctual = 0
        is_sick = False
        while True:
            await asyncio.sleep(RETRY_INTERVAL_S if is_sick else RENEW_INTERVAL_S)
            if self._is_over:
                return
            is_late = _now_s() - self._renewed_s > SURE_S
            try:
                if not await self._renew():
                    await self._come_back()
                    punctual = 0
                    continue
                punctual, is_sick = 0 if is_late else punctual + 1, False
                if punctual >= PUNCTUAL_ROUNDS and self._attendant is not None:
                    async with asyncio.timeout(TAKE_OVER_TIMEOUT_S):
                        await self._attendant.take_over()
            except MustEndError:
                raise
            except Exception as exc:  # noqa: BLE001 - must outlive a sick database
                if not is_sick:
                    _log.warning("lease.not_renewed", error=type(exc).__name__, reason=str(exc))
                punctual, is_sick = 0, True

    async def look_around(self) -> None:
        """Takes what the command line has had accepted, now and then: for a process that has no others, and no lease to renew."""
        is_sick = False
        while True:
            await asyncio.sleep(RENEW_INTERVAL_S)
            if self._is_over:
                return
            try:
                if self._attendant is not None:
                    async with asyncio.timeout(TAKE_OVER_TIMEOUT_S):
                        await self._attendant.take_over()
                is_sick = False
            except Exception as exc:  # noqa: BLE001 - must outlive a sick database
                if not is_sick:
                    _log.warning("lease.not_looked", error=type(exc).__name__, reason=str(exc))
                is_sick = True

    async def _come_back(self) -> None:
        if self._is_over:
            return
        _log.warning("lease.lost")
        if self._attendant is not None:
            await self._attendant.drop_all()
        await self.join()
        if self._attendant is not None:
            await self._attendant.take_over()

    async def _renew(self) -> bool:
        async with self._lock:
            started_s = _now_s()
            count = await self._leases.renew()
            if count:
                self._renewed_s = started_s
                if count != self._count:
                    self._count = count
                    for hear in self._told:
                        hear(count)
            return count > 0


def _now_s() -> float:
    """Seconds by a clock that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@asynccontextmanager
async def open_lease(leases: Leases, *, is_brief: bool = False) -> AsyncIterator[ProcessLease]:
    """Makes this process known while the block runs, which begins when no other one is late; unless it `is_brief`, and has no time for that.

    Raises:
        OSError: the database cannot be reached.
        MustEndError: it cannot come back to the database.
    """
    lease = ProcessLease(leases, is_brief=is_brief)
    await lease.join()
    keeping: asyncio.Task[None] | None = None
    try:
        async with open_task_group() as group:
            looking = lease.keep() if leases.is_shared else lease.look_around()
            keeping = group.create_task(looking, name="lease")
            try:
                if leases.is_shared and not is_brief:
                    await lease.settle()
                yield lease
            finally:
                if keeping is not None:
                    keeping.cancel()
                try:
                    await lease.leave()
                except Exception as exc:  # noqa: BLE001 - the others, or the next one, see it by themselves
                    _log.warning("lease.not_given_back", error=type(exc).__name__)
    except BaseExceptionGroup:
        if keeping is not None and keeping.done():
            keeping.result()  # why all has ended
        raise
