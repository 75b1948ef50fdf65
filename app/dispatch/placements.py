"""Accepted runs on their way to their thinking message, in this process."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from app.aio import TaskGroup
from app.errors import LeaseLostError
from app.log import get_logger
from app.runs.model import Run
from app.runs.ports import RunHandlers
from app.runs.request import RunId, RunRequest

PLACED_AT_ONCE, PLACED_AGAIN_AT_ONCE = 16, 4
"""Those that were begun before look for their message first, which Slack allows 50 times a minute: new ones do not wait behind them.

More would only queue for the store's connection."""
LATE_AT_ONCE = 1
"""What was asked while nobody heard: whichever is placed first may begin first, so that none passes another."""
PLACED_MEANWHILE = 1
"""While an acknowledgement is under way, which needs the interpreter's lock as well and is due sooner."""
CANDIDATES_AT_ONCE = 4
"""Messages that may be for others: to decide that takes a look at Slack and maybe a model's answer, which nobody else waits for."""
PAUSE_MEANWHILE_S = 0.05
"""After each of these: it takes the loop some 5 ms, so that however many come, nine tenths are for acknowledgements."""
RETRY_INTERVAL_S = 5.0

_log = get_logger(__name__)


@dataclass(slots=True, kw_only=True, eq=False)
class _Line:
    at_once: int
    waiting: deque[tuple[Run, bool]] = field(default_factory=deque)
    """And whether they may have been begun before."""
    going: int = 0


class Placements:
    """Has runs placed, so many at once, in the order in which they come.

    One that fails is tried again, as after a crash: whoever places it counts that, and gives it up some time.
    """

    def __init__(
        self, handlers: RunHandlers, *, group: TaskGroup, bind: Callable[[], None]
    ) -> None:
        """`group`: in which they go on; it outlives them by `close`. `bind`: see `ProcessLease.bind`."""
        self._handlers = handlers
        self._group = group
        self._bind = bind
        self._new = _Line(at_once=PLACED_AT_ONCE)
        self._again = _Line(at_once=PLACED_AGAIN_AT_ONCE)
        self._late = _Line(at_once=LATE_AT_ONCE)
        self._candidates = _Line(at_once=CANDIDATES_AT_ONCE)
        self._known: set[RunId] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = asyncio.Event()

    def add(self, run: Run, *, resumed: bool = False) -> None:
        """Has it placed soon; returns at once. `resumed`: that may have been begun before."""
        if not self._closed.is_set() and run.id not in self._known:
            self._known.add(run.id)
            self._join(run, resumed=resumed)

    def forget(self, run_id: RunId) -> None:
        """Takes it for one that was never added, though its placing may not have come to its end."""
        self._known.discard(run_id)

    def give_way(self, *, is_accepting: bool) -> None:
        """Begins fewer while runs are accepted; those that have begun go on."""
        self._new.at_once = PLACED_MEANWHILE if is_accepting else PLACED_AT_ONCE
        self._begin(self._new)

    async def settle(self, *, timeout_s: float) -> None:
        """Waits so long for all of them."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._tasks:
                    await asyncio.wait(self._tasks)

    def end_waiting(self) -> Sequence[RunId]:
        """Begins none any more; returns those that have not begun."""
        self._closed.set()
        lines = (self._new, self._again, self._late, self._candidates)
        return [run.id for line in lines for run, _ in line.waiting]

    async def close(self, *, grace_s: float) -> None:
        """Begins none any more, waits up to `grace_s` for those that have begun, and cancels them then."""
        self._closed.set()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace_s)
        for task in self._tasks:
            task.cancel()

    def _join(self, run: Run, *, resumed: bool) -> None:
        line = self._line_of(run.request, resumed=resumed)
        line.waiting.append((run, resumed))
        self._begin(line)

    def _line_of(self, request: RunRequest, *, resumed: bool) -> _Line:
        if request.is_candidate:
            return self._candidates
        if request.late_s:
            return self._late
        return self._again if resumed else self._new

    def _begin(self, line: _Line) -> None:
        while line.waiting and line.going < line.at_once and not self._closed.is_set():
            run, resumed = line.waiting.popleft()
            line.going += 1
            placing = self._place(run, line, resumed=resumed)
            task = self._group.create_task(placing, name=f"place-{run.id}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _place(self, run: Run, line: _Line, *, resumed: bool) -> None:
        self._bind()
        is_placed = await self._is_placed(run, resumed=resumed)
        if line is self._new and line.at_once == PLACED_MEANWHILE:
            await asyncio.sleep(PAUSE_MEANWHILE_S)
        line.going -= 1
        self._begin(line)
        if is_placed:
            self._known.discard(run.id)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(RETRY_INTERVAL_S):
                await self._closed.wait()
        self._join(run, resumed=True)

    async def _is_placed(self, run: Run, *, resumed: bool) -> bool:
        """Whether nothing is left to do here."""
        try:
            await self._handlers.place(run, resumed=resumed)
        except LeaseLostError:
            _log.warning("run.lease_lost", run_id=run.id)
        except ConnectionError as exc:
            _log.warning("run.placing_deferred", run_id=run.id, reason=str(exc))
            return False
        except Exception:  # noqa: BLE001 - one run that cannot be placed must not end the service
            _log.exception("run.placing_failed", run_id=run.id)
            return False
        return True
