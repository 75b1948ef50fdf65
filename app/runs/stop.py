"""When an attempt ends before its agent does: at its deadline, or as a person says so, which comes to it at once in this process and within 0.5 s from another one."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from agent_scripts.registry import agent_specs
from app.audit.records import Act, AuditEntry
from app.log import get_logger
from app.permissions.rules import Right
from app.runs.model import WAITING_STATES, Run, RunState
from app.runs.options import parse_options
from app.runs.policy import FOR_NO_GUESTS, RunPolicy, by_rule, may_stop
from app.runs.ports import Dispatcher, RunPorts, RunStore
from app.runs.request import RunId, RunRequest
from sandbox_runtime.task_group import open_task_group

_log = get_logger(__name__)

POLL_INTERVAL_S = 0.5
"""The CLI stops a run through its record; the owner must see it within this time."""
REDRAW_WITHIN_S = 1.0
"""Of a message whose button was pressed, before the press is acknowledged."""


class RunStoppedError(Exception):
    """A person stopped the run before its agent had started."""


class StopRequest:
    """Lets a running run wait to be stopped."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._interrupt: Callable[[], None] | None = None
        self._heard: set[RunId] = set()
        self.began_s = time.monotonic()
        self.user: str | None = None
        self.hearing: RunRequest | None = None
        """Of a run whose agent takes messages while it works: what who asked it writes in its thread, and is urgent, is for it."""
        self.unheard: asyncio.Queue[RunRequest] = asyncio.Queue()

    def hear(self, request: RunRequest) -> None:
        """Passes on an urgent message of the run's thread, once."""
        if request.run_id not in self._heard:
            self._heard.add(request.run_id)
            self.unheard.put_nowait(request)

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


@dataclass(slots=True, kw_only=True)
class AttemptTime:
    """Measures how long an attempt may take, and has taken; since the slice began, by a clock that does not jump."""

    started_at: datetime
    """The attempt, whichever slice of it this is."""
    deadline_at: datetime
    before_s: float = 0
    """How long earlier slices took, and what was between them."""
    slice_s: float | None = None
    """How long this one may take, from now on; None = to the end of the turn."""
    max_still_s: float = 0
    """How long it may stand still, in all slices: while people are asked, the deadline moves away."""
    earlier_still_s: float = 0
    """How long it stood still before now."""
    _still_since_s: float | None = None
    _waiting: int = 0
    """Requests of its agent that wait for people now."""
    _began_s: float = field(default_factory=time.monotonic)

    @property
    def elapsed_s(self) -> float:
        return self.before_s + time.monotonic() - self._began_s

    @property
    def slice_left_s(self) -> float | None:
        """Returns seconds until the slice shall end, 0 when it should have; None = it does not."""
        if self.slice_s is None:
            return None
        return max(0.0, self._began_s + self.slice_s - time.monotonic())

    @property
    def now(self) -> datetime:
        return self.started_at + timedelta(seconds=self.elapsed_s)

    @property
    def still_s(self) -> float:
        """Returns how long it has stood still, `max_still_s` at most."""
        since_s = self._still_since_s
        now_s = time.monotonic() - since_s if since_s is not None else 0.0
        return min(self.earlier_still_s + now_s, self.max_still_s)

    @property
    def remaining_s(self) -> float:
        given_s = (self.deadline_at - self.started_at).total_seconds() + self.still_s
        return max(0.0, given_s - self.elapsed_s)

    @property
    def latest_at(self) -> datetime:
        """Returns its deadline, if people are asked as long as they may be."""
        return self.deadline_at + timedelta(seconds=self.max_still_s)

    @property
    def longest_s(self) -> float:
        """Returns how long it may go on if people are asked as long as they may be."""
        return self.remaining_s + self.max_still_s - self.still_s

    def note_still(self, waited_s: float) -> None:
        """Takes up that it has stood still for so long in all: its agent's requests may have waited for people at other processes."""
        self.earlier_still_s += max(0.0, waited_s - self.still_s)

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Lets its time stand still while inside, which several may be at once."""
        if self._waiting == 0:
            self._still_since_s = time.monotonic()
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            if self._waiting == 0:
                self.earlier_still_s, self._still_since_s = self.still_s, None


class StopSignals:
    """The stop requests of this process's runs."""

    def __init__(self) -> None:
        self._watched: dict[RunId, StopRequest] = {}

    @contextmanager
    def watch(self, run_id: RunId) -> Iterator[StopRequest]:
        """Yields the stop request of a run, heard while inside."""
        request = self._watched.setdefault(run_id, StopRequest())
        try:
            yield request
        finally:
            self._watched.pop(run_id, None)

    def going(self) -> Mapping[RunId, float]:
        """Returns for how many seconds this process has been at each of its runs, by a clock that does not jump."""
        now_s = time.monotonic()
        return {run_id: now_s - request.began_s for run_id, request in self._watched.items()}

    def notify(self, run_id: RunId, user: str) -> None:
        """Passes on a stop that is in the record to the run if it is going here."""
        if request := self._watched.get(run_id):
            request.set(user)

    async def look(self, store: RunStore) -> None:
        """Hears of stops of the runs that are going here, and of what is urgent in their threads, whoever wrote it into the records."""
        watched = {run_id: one for run_id, one in self._watched.items() if one.user is None}
        if not watched:
            return
        for run_id, user in (await store.stop_requested(list(watched))).items():
            self.notify(run_id, user)
        hearing = {one.hearing.thread.key: one for one in watched.values() if one.hearing}
        for run in await store.waiting_in(list(hearing)) if hearing else ():
            stop = hearing[run.thread.key]
            is_placed = run.state is not RunState.ACCEPTED
            if is_placed and stop.hearing and may_be_told(run.request, at_work=stop.hearing):
                stop.hear(run.request)

    @asynccontextmanager
    async def listening(self, store: RunStore) -> AsyncIterator[None]:
        """Looks twice a second while inside."""
        async with open_task_group() as group:
            task = group.create_task(self.listen_forever(store))
            yield
            task.cancel()

    async def listen_forever(self, store: RunStore) -> None:
        """Looks twice a second."""
        is_sick = False
        while True:
            await asyncio.sleep(POLL_INTERVAL_S)
            try:
                await self.look(store)
            except Exception as exc:  # noqa: BLE001 - must outlive a sick database; the next look is 0.5 s away
                if not is_sick:
                    _log.warning("stops.unheard", error=type(exc).__name__, reason=str(exc))
                is_sick = True
                continue
            is_sick = False


class Stops:
    """Asks runs to stop, for people who may."""

    def __init__(
        self, ports: RunPorts, *, dispatcher: Dispatcher, signals: StopSignals, policy: RunPolicy
    ) -> None:
        self._ports = ports
        self._dispatcher = dispatcher
        self._signals = signals
        self._policy = policy

    async def stop(
        self, run_id: RunId, *, user: str, at: datetime | None = None, is_external: bool = False
    ) -> bool:
        """Records that a run shall stop. False: unknown, over, asked before, or `user` may not."""
        run = await self._ports.store.get(run_id)
        if run is None or await self._is_forbidden(run, user, is_external=is_external):
            return False
        if user != run.request.user and may_be_stopped(run):
            await self._note(run, user)
        is_new = await self._ports.store.request_stop(
            run_id, user=user, at=at or self._ports.clock.now()
        )
        if is_new:
            self._signals.notify(run_id, user)
            self._dispatcher.wake()
        return is_new

    async def stop_unborn(
        self, run: Run, *, user: str, at: datetime, is_external: bool = False
    ) -> bool:
        """Hands a run over as one that was stopped before it began. False: it is there already, or `user` may not."""
        if await self._is_forbidden(run, user, is_external=is_external):
            return False
        if user != run.request.user:
            await self._note(run, user)
        stopped = replace(run, stop_requested_by=user, stop_requested_at=at)
        return await self._dispatcher.submit(stopped)

    async def _is_forbidden(self, run: Run, user: str, *, is_external: bool) -> bool:
        """Whether a person may not stop this run; whoever a rule keeps from it is told so alone."""
        problem = why_not_stop(run, user, self._policy, is_external=is_external)
        if problem:
            await self._note(run, user, refused=problem)
        if problem and may_stop(user, self._policy, is_external=is_external):
            await self.tell_refused(run, user)
        return bool(problem)

    async def tell_refused(self, run: Run, user: str, *, is_external: bool = False) -> None:
        """Tells a person alone why they may not stop this run; nothing where they may. Never raises."""
        if problem := why_not_stop(run, user, self._policy, is_external=is_external):
            text = f"{problem[0].upper()}{problem[1:]}."
            await self._ports.replies.show_ephemeral(run.thread, user=user, text=text)

    async def _note(self, run: Run, user: str, *, refused: str = "") -> None:
        """Keeps that a person stops what another one has asked, or why they may not."""
        request = run.request
        ruling = self._policy.permissions.find(
            Right.STOP_OTHERS, user=user, channel=request.channel, counts=False
        )
        by = "whoever may ask may" if ruling is None else f"{ruling.rule} of orion.toml"
        at = self._ports.clock.now()
        await self._ports.audit.add(stop_entry(run, user, by=by, at=at, refused=refused))

    async def make_way(self, request: RunRequest, *, user: str) -> bool:
        """Stops what goes on in the request's thread, and what its asker has waiting there before it, for the request to be answered with what of that is theirs; harmless to repeat.

        Those runs are known by the moment of their stop, which is the request's own (`is_interrupted`). What others have waiting keeps
        its turn. False: none makes way that did not before, or `user` may not. True also where the only one is told of the message while it works.
        """
        before = [
            run
            for run in await self._ports.store.of_thread(request.thread)
            if may_be_meant(run, request.asked_at)
            and (run.state not in WAITING_STATES or run.request.owner == request.owner)
        ]
        if (
            len(before) == 1
            and _hears(before[0])
            and may_be_told(request, at_work=before[0].request)
        ):
            return True
        stopped = [await self.stop(run.id, user=user, at=request.asked_at) for run in before]
        return any(stopped)

    async def redraw(self, run_id: RunId) -> None:
        """Makes the message of a run that waits show what its record says; where that cannot be in time, it stays as it was."""
        try:
            async with asyncio.timeout(REDRAW_WITHIN_S), self._dispatcher.borrow(run_id) as run:
                # Nobody begins it meanwhile, so that this never comes after its progress.
                if run is not None and run.reply_ts:
                    now = self._ports.clock.now()
                    capacity = self._policy.capacity
                    stats = await self._ports.store.queue_stats(run, since=now, capacity=capacity)
                    await self._ports.replies.place(
                        run, position=stats.position, maybe_posted=False
                    )
        except Exception as exc:  # noqa: BLE001 - the press counts already, whatever ails the database or Slack
            _log.info("run.not_redrawn", run_id=run_id, error=type(exc).__name__)
        self._dispatcher.wake()  # it may be its turn since


def _hears(run: Run) -> bool:
    hearing = {spec.name for spec in agent_specs() if spec.hears_messages}
    return run.state is RunState.RUNNING and run.agent in hearing


def may_be_told(request: RunRequest, *, at_work: RunRequest) -> bool:
    """Whether the agent that is at work for a request can be told of this one: it is urgent, no command, and wants neither files brought nor another agent, model or place.

    Of the same asker, too: what an agent does, it does by the right of whoever asked.
    """
    says_nothing_else = replace(request.options, prompt="") == replace(parse_options(""), prompt="")
    is_plain = says_nothing_else and not (request.is_command or request.content.files)
    return request.is_urgent and is_plain and request.owner == at_work.owner


def stop_entry(run: Run, user: str, *, by: str, at: datetime, refused: str = "") -> AuditEntry:
    """Returns what the audit log says of somebody who stops what another one has asked: by what they may, or why they may not (`refused`)."""
    request = run.request
    return AuditEntry(
        id=f"{run.id}:{Act.STOP}:{user}:{'refused' if refused else 'allowed'}",
        at=at,
        team=request.team,
        channel=request.channel,
        user=user,
        act=Act.STOP,
        target=request.user,
        is_allowed=not refused,
        reason=refused or by,
        run_id=run.id,
    )


def may_be_stopped(run: Run) -> bool:
    """Whether it is not over, and nobody has stopped it yet."""
    is_going = not run.state.is_final and run.outcome is None
    return is_going and run.stop_requested_by is None


def may_be_meant(run: Run, at: datetime) -> bool:
    """Whether a stop of this moment may end the run, which was asked before."""
    return may_be_stopped(run) and run.request.asked_at < at


def why_not_stop(run: Run, user: str, policy: RunPolicy, *, is_external: bool = False) -> str:
    """Returns why a person may not stop this run: lower case, no full stop; empty = they may."""
    if is_external and not policy.allow_external:
        return FOR_NO_GUESTS
    if not may_stop(user, policy):
        return "you are not on the list of people who may use Orion"
    channel = run.request.channel
    ruling = policy.permissions.find(Right.STOP_OTHERS, user=user, channel=channel)
    if ruling is None or ruling.is_allowed or user == run.request.user:
        return ""
    return f"you may stop only what you have asked{by_rule(ruling)}"
