"""Hands runs out by their records: in one process on a file, in several on one server.

There is no queue beside the records. Whoever accepts a run places it; then it waits until a process claims it, in a
transaction that knows whose turn it is. A process says every few seconds that it lives; what belongs to one that does not
goes on in another.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial

from typing_extensions import Unpack

from app.aio import TaskGroup, open_task_group, together
from app.audit.records import AuditEntry
from app.dispatch.lease import Leases, ProcessLease
from app.dispatch.placements import Placements
from app.errors import ErrorCode, LeaseLostError
from app.log import get_logger
from app.runs.model import ProcessId, Run
from app.runs.ports import AgainIn, RunChanges, RunHandlers, RunStore, StoppingError
from app.runs.request import RunId

POLL_INTERVAL_S = 0.5
"""Between two looks for what other processes let wait, the command line among them; of its own a process knows at once."""
START_INTERVAL_S = 0.1
"""Between two runs that begin: a start takes a second of processor, which acknowledgements need as well."""
QUIET_WITHIN_S = 2.0
"""A run that is to begin waits so long for a moment without an acknowledgement; such moments come until a thousand a second are asked for."""
RELEASE_PAUSE_S = 1.0
RETURN_WITHIN_S = 10.0
"""A run that comes back waits so long for a slot, and then goes on beside the others."""
MAX_FAILURES, RETRY_AFTER_S = 3, 1.0
"""Of `advance` for one run in this process, and the time between them."""
ENDING_PAUSE_S = 30.0
"""Before a run that cannot be ended is tried again."""
HAND_OVER_TIMEOUT_S = 2.0
CLEANUP_TIMEOUT_S = 20.0
"""For cancelled runs to release their sandboxes."""
SICK_AFTER_S = 10.0
DOUBTED_TIMES, DOUBT_INTERVAL_S = 60, 1.0
"""A minute: no statement that accepts runs takes longer."""
REMEMBERED = 10_000
"""Accepted runs: of some minutes at the highest rate."""

_log = get_logger(__name__)


class RunDispatcher:
    """As durable as its store is."""

    _late_s: float = 0
    """Processes whose lease is over by no more than that may live."""

    def __init__(
        self,
        store: RunStore,
        leases: Leases,
        lease: ProcessLease,
        *,
        capacity: int,
        waits_s: float,
        start_interval_s: float = START_INTERVAL_S,
        poll_interval_s: float = POLL_INTERVAL_S,
    ) -> None:
        """Makes one that is to be started.

        Args:
            store: of the records.
            leases: the same store's.
            lease: of this process.
            capacity: 0 = places runs, and lets other processes advance them.
            waits_s: whoever has waited longer is told so.
            start_interval_s: between two runs that begin.
            poll_interval_s: between two looks for what other processes let wait.
        """
        self._store = store
        self._leases = leases
        self._lease = lease
        self._capacity = capacity
        self._waits_s = waits_s
        self._start_interval_s = start_interval_s
        self._poll_interval_s = poll_interval_s
        self._stack = AsyncExitStack()
        self._group: TaskGroup | None = None
        self._open_placements: Callable[[], Placements] | None = None
        self._placements: Placements | None = None
        self._working: asyncio.Task[None] | None = None
        self._is_open = False
        self._handlers: RunHandlers | None = None
        self._going: dict[RunId, asyncio.Task[None]] = {}
        self._slots: set[RunId] = set()
        """Those of them that have one."""
        self._returning: set[RunId] = set()
        """Those that gave theirs away for a while, and come back."""
        self._freed = asyncio.Event()
        self._is_take_over_doubtful = False
        """The last one has failed, maybe only after it was committed."""
        self._is_claim_doubtful = False
        """The same of one of the claims since it was looked for what they have taken."""
        self._doubtful_loans: set[RunId] = set()
        """Runs whose borrowing or giving back has failed, maybe only after it was committed."""
        self._failures: Counter[RunId] = Counter()
        self._news = asyncio.Event()
        self._looked_s = time.monotonic()
        self._accepting = 0
        self._is_quiet = asyncio.Event()
        self._is_quiet.set()
        self._doubted: dict[RunId, asyncio.Task[None]] = {}
        """Runs of which nobody knows whether they were accepted, with who looks."""
        self._accepted: dict[RunId, None] = {}
        """The last ones: each mention comes as two events, and the second one needs no write."""

    async def submit(self, run: Run) -> bool:
        if not self._is_open:
            raise StoppingError(f"run {run.id} is not stored: the service is stopping")
        if self._placements is None:
            raise OSError(f"run {run.id} is not stored: others take this process for dead")
        if run.id in self._accepted:
            return False
        with self._giving_way():
            try:
                is_new = await self._store.add(run)
            except Exception:
                self._doubt(run)
                raise
        # Not new: maybe committed after whoever waited for it had given up, so that nobody places it.
        is_ours = is_new or (run.id not in self._accepted and await self._leases.holds(run.id))
        if run.id in self._accepted:
            return False  # another delivery of it, or a take-over, was quicker
        self._remember(run.id)
        if is_ours:
            self._place([run], resumed=False)
        return is_new

    def _doubt(self, run: Run) -> None:
        """Looks for a while whether a run is there after all: its next delivery may come to another process, which leaves it to this one."""
        if self._group is not None and run.id not in self._doubted:
            self._doubted[run.id] = self._group.create_task(
                self._place_if_there(run), name=f"doubt-{run.id}"
            )

    async def _place_if_there(self, run: Run) -> None:
        try:
            for _ in range(DOUBTED_TIMES):
                await asyncio.sleep(DOUBT_INTERVAL_S)
                if run.id in self._accepted:
                    return
                with suppress(Exception):  # the database may be away
                    if await self._leases.holds(run.id):
                        self._place([run], resumed=False)
                        return
        finally:
            self._doubted.pop(run.id, None)

    def _remember(self, run_id: RunId) -> None:
        self._accepted[run_id] = None
        if len(self._accepted) > REMEMBERED:
            del self._accepted[next(iter(self._accepted))]

    @contextmanager
    def _giving_way(self) -> Iterator[None]:
        """Lets fewer runs be placed, and none begin, while one is accepted."""
        self._accepting += 1
        self._is_quiet.clear()
        self._give_way()
        try:
            yield
        finally:
            self._accepting -= 1
            if self._accepting == 0:
                self._is_quiet.set()
            self._give_way()

    async def _until_quiet(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(QUIET_WITHIN_S):
                await self._is_quiet.wait()

    def _give_way(self) -> None:
        if self._placements is not None:
            self._placements.give_way(is_accepting=self._accepting > 0)

    async def schedule(
        self, run: Run, *, entry: AuditEntry | None = None, **changes: Unpack[RunChanges]
    ) -> None:
        await self._leases.schedule(run.id, entry=entry, **changes)
        # With all slots taken a look would find nothing, but for what needs none.
        if len(self._slots) < self._capacity or run.outcome is not None or not run.needs_slot:
            self._news.set()

    async def discard(self, run: Run) -> bool:
        is_gone = await self._leases.discard(run)
        if is_gone:  # another event of the message may still say that it is for us
            self._accepted.pop(run.id, None)
            if self._placements is not None:
                self._placements.forget(run.id)
            self._news.set()  # whoever is behind it in its thread need not wait
        return is_gone

    @asynccontextmanager
    async def borrow(self, run_id: RunId) -> AsyncIterator[Run | None]:
        try:
            run = await self._leases.borrow(run_id)
        except BaseException:
            self._doubtful_loans.add(run_id)
            raise
        try:
            yield run
        finally:
            if run is not None:
                await self._give_back(run_id)

    async def _give_back(self, run_id: RunId) -> None:
        try:
            await self._leases.give_back(run_id)
        except BaseException:
            self._doubtful_loans.add(run_id)
            raise
        self._doubtful_loans.discard(run_id)

    @asynccontextmanager
    async def parked(self, run_id: RunId) -> AsyncIterator[None]:
        if run_id not in self._slots:
            yield
            return
        self._free(run_id)
        self._news.set()
        try:
            yield
            self._returning.add(run_id)
            with suppress(TimeoutError):
                async with asyncio.timeout(RETURN_WITHIN_S):
                    while len(self._slots) >= self._capacity:
                        self._freed.clear()
                        await self._freed.wait()
        finally:
            self._returning.discard(run_id)
            if run_id in self._going:
                self._slots.add(run_id)

    def _free(self, run_id: RunId) -> None:
        self._slots.discard(run_id)
        self._freed.set()

    @property
    def process(self) -> ProcessId:
        return self._leases.id

    async def has_ended(self, process: ProcessId) -> bool:
        return bool(process) and not await self._leases.lives(process)

    def wake(self) -> None:
        self._news.set()

    def probe(self) -> str:
        silent_s = time.monotonic() - self._looked_s
        if self._working is not None and silent_s > SICK_AFTER_S:
            raise OSError(f"has not seen for {silent_s:.0f} s which runs wait")
        return f"{len(self._going)} runs"

    async def start(self, handlers: RunHandlers) -> None:
        self._is_open, self._handlers = True, handlers
        group = self._group = await self._stack.enter_async_context(open_task_group())
        self._open_placements = partial(Placements, handlers, group=group, bind=self._lease.bind)
        self._placements = self._open_placements()
        self._lease.attend(self)
        await self.take_over()
        if self._capacity:
            self._working = group.create_task(self._work(handlers, group), name="dispatch")

    async def stop(self, *, grace_s: float) -> None:
        if not self._is_open:
            return
        self._is_open = False
        placements, self._placements = self._placements, None
        for task in (self._working, *self._doubted.values()):
            if task is not None:
                task.cancel()
        if placements is not None:
            if waiting := placements.end_waiting():
                with suppress(Exception):  # they are given back with all else then
                    await self._leases.unclaim(waiting)
            await together(placements.close(grace_s=grace_s), self._hand_over(grace_s=grace_s))
            await self._cancel_all()
        try:
            await self._lease.leave()
        except Exception as exc:  # noqa: BLE001 - the others, or the next one, see it by themselves
            _log.warning("lease.not_given_back", error=type(exc).__name__)
        await self._stack.aclose()

    async def take_over(self) -> None:
        """See `Attendant`."""
        if not self._is_open:
            return
        again, self._is_take_over_doubtful = self._is_take_over_doubtful, True
        left = await self._leases.take_over(again=again, late_s=self._late_s)
        self._is_take_over_doubtful = False
        if self._placements is None and self._open_placements is not None and self._is_open:
            self._placements = self._open_placements()
        self._place(left, resumed=True)

    def _place(self, accepted: Sequence[Run], *, resumed: bool) -> None:
        if self._placements is not None:
            for run in accepted:
                self._remember(run.id)
                self._placements.add(run, resumed=resumed)

    async def drop_all(self) -> None:
        """See `Attendant`. Until `take_over` is called again, nothing is accepted."""
        placements, self._placements = self._placements, None
        if placements is not None:
            await placements.close(grace_s=0)
            await self._cancel_all()

    async def _hand_over(self, *, grace_s: float) -> None:
        """Waits so long for what goes on to end, and then, not long, until other processes can go on with it."""
        if self._going:
            await asyncio.wait(list(self._going.values()), timeout=grace_s)
        if self._going and self._handlers is not None:
            self._handlers.hand_over()
            await asyncio.wait(list(self._going.values()), timeout=HAND_OVER_TIMEOUT_S)

    async def _cancel_all(self) -> None:
        tasks = list(self._going.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLEANUP_TIMEOUT_S)

    # -- claiming ------------------------------------------------------------------------------------------------------

    async def _work(self, handlers: RunHandlers, group: TaskGroup) -> None:
        is_sick = False
        while True:
            await self._until_quiet()
            self._news.clear()
            started = False
            try:
                if self._placements is not None:  # else this process is known no more
                    started = await self._claim(handlers, group)
                self._looked_s, is_sick = time.monotonic(), False
            except Exception as exc:  # noqa: BLE001 - must outlive a sick database; it is looked at again
                if not is_sick:
                    _log.warning("dispatch.unreadable", error=type(exc).__name__)
                is_sick = True
            if started:
                await asyncio.sleep(self._start_interval_s)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(self._poll_interval_s):
                    await self._news.wait()

    async def _claim(self, handlers: RunHandlers, group: TaskGroup) -> bool:
        """Begins what may be; returns whether it has a slot, so that there may be another."""
        await self._settle_doubts(handlers, group)
        at_once = 1 if self._start_interval_s else self._capacity
        taken = len(self._slots) + len(self._returning)
        slots = max(0, min(at_once, self._capacity - taken))
        try:
            runs = await self._leases.claim(slots=slots, waits_s=self._waits_s)
        except Exception:
            self._is_claim_doubtful = True
            raise
        self._begin(runs, handlers, group)
        return any(run.id in self._slots for run in runs)

    async def _settle_doubts(self, handlers: RunHandlers, group: TaskGroup) -> None:
        """Takes up what is this process's though it was not told so: a call that takes too long, or that a frozen process has not heard the end of, may have done its work."""
        for run_id in list(self._doubtful_loans):
            await self._give_back(run_id)
        if self._is_claim_doubtful:
            lost = await self._leases.find_lost(list(self._going))
            self._is_claim_doubtful = False
            self._begin(lost, handlers, group)

    def _begin(self, runs: Sequence[Run], handlers: RunHandlers, group: TaskGroup) -> None:
        for run in runs:
            is_over = run.outcome is not None or run.stop_requested_by is not None
            if run.needs_slot and not is_over:
                self._slots.add(run.id)
            self._going[run.id] = group.create_task(
                self._advance(run.id, handlers), name=f"run-{run.id}"
            )

    async def _advance(self, run_id: RunId, handlers: RunHandlers) -> None:
        self._lease.bind()
        try:
            again = await handlers.advance(run_id)
            self._free(run_id)
            self._failures.pop(run_id, None)
            if isinstance(again, AgainIn):
                await self._release(run_id, after_s=again.seconds)
        except LeaseLostError:
            _log.warning("run.lease_lost", run_id=run_id)
        except Exception:  # noqa: BLE001 - one run must not end the others
            _log.exception("run.advance_failed", run_id=run_id)
            self._free(run_id)
            await self._try_again(run_id, handlers)
        finally:
            self._free(run_id)
            if self._going.get(run_id) is asyncio.current_task():  # else it was claimed anew
                del self._going[run_id]
            self._news.set()

    async def _try_again(self, run_id: RunId, handlers: RunHandlers) -> None:
        """Gives it back, as the database may have been away; ends it when that has not helped."""
        self._failures[run_id] += 1
        if self._failures[run_id] < MAX_FAILURES:
            await self._release(run_id, after_s=RETRY_AFTER_S)
        else:
            del self._failures[run_id]
            await self._end(run_id, handlers)

    async def _release(self, run_id: RunId, *, after_s: float) -> None:
        while True:
            try:
                await self._lease.confirm()
                await self._leases.release(run_id, after_s=after_s)
            except LeaseLostError:
                return  # it is another's, or this process has it anew
            except Exception as exc:  # noqa: BLE001 - whatever ails the database: nobody else can have it
                _log.debug("run.not_released", run_id=run_id, error=type(exc).__name__)
                await asyncio.sleep(RELEASE_PAUSE_S)
            else:
                return

    async def _end(self, run_id: RunId, handlers: RunHandlers) -> None:
        """Ends it, however long that takes: as long as this process has it, nobody else does."""
        while True:
            try:
                await handlers.end(run_id, ErrorCode.INTERRUPTED)
            except LeaseLostError:
                return
            except Exception:  # noqa: BLE001 - tried again, as nobody else will
                _log.exception("run.end_failed", run_id=run_id)
                await asyncio.sleep(ENDING_PAUSE_S)
            else:
                return
