"""One Orion under a load, on a clock that jumps: what its processes, its slots and Slack's limits make people wait for.

Real are Slack's limits (`CallLimits` itself waits here), the constants of handing out, and what the bench measured. A call
to Slack takes a set time, a process does one thing at a time, and an agent's work is a given time. Left out: what
agents need of the same machine, the model's own limits, failures.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from app.aio import TaskGroup, open_task_group
from app.dispatch.dispatcher import POLL_INTERVAL_S, START_INTERVAL_S
from app.dispatch.placements import PLACED_AT_ONCE
from app.slack.limits import CHANNEL_RATES, METHOD_RATES, CallLimits, Rate
from app.slack.live import UpdateTiming
from app.slack.replies import PLACE_WITHIN_S
from tests.scale.figures import Figures
from tests.scale.jumping import JumpingLoop
from tests.scale.load import Question

POST, UPDATE, STATUS, READ = (
    "chat.postMessage",
    "chat.update",
    "agents.sessions.setStatus",
    "conversations.replies",
)
TIMING: Final = UpdateTiming()


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How an Orion runs."""

    processes: int = 1
    """That run agents."""
    fronts: int = 0
    """`orion serve --no-work`; without any, all processes hear of messages."""
    slots: int = 32
    """`ORION_MAX_CONCURRENT_RUNS`"""
    queue_limit: int = 500
    """`ORION_QUEUE_LIMIT`"""
    queue_timeout_s: float = 1800
    """`ORION_QUEUE_TIMEOUT_S`"""
    call_s: float = 0.15
    """What a call to Slack takes; assumed."""
    start_s: float = 1.0
    """From a slot to a running agent, with its sandbox."""
    methods: Mapping[str, Rate] = field(default_factory=lambda: METHOD_RATES)
    channels: Mapping[str, Rate] = field(default_factory=lambda: CHANNEL_RATES)


@dataclass(slots=True, kw_only=True, eq=False)
class SimulatedRun:
    """When what happened, in seconds of the clock; None: it did not."""

    question: Question
    acknowledged_s: float | None = None
    sign_s: float | None = None
    """Slack's own "working" state, or the thinking message: what came first."""
    begun_s: float | None = None
    concluded_s: float | None = None
    answered_s: float | None = None
    is_refused: bool = False
    """Too many waited, or it did for too long."""
    updates_s: list[float] = field(default_factory=list)
    posted_s: float | None = None
    """The thinking message; None: its answer was a message of its own."""
    late: asyncio.Task[None] | None = None
    done: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    runs: Sequence[SimulatedRun]
    calls: Mapping[str, int]
    """To each of Slack's methods."""
    busy_s: Sequence[float]
    """Processor of each process, beside its idle share."""
    begun: Sequence[int]
    """Runs of each process."""


def simulate(
    questions: Sequence[Question], setup: Setup, figures: Figures, *, seed: int
) -> Simulated:
    """Plays all questions to their answers; the same for the same arguments."""
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(_Orion(setup, figures, seed=seed).play(questions))


def _now_s() -> float:
    return asyncio.get_running_loop().time()


class _Process:
    """Does one thing at a time, and keeps to its part of Slack's limits."""

    def __init__(self, setup: Setup, *, count: int) -> None:
        self.limits = CallLimits(methods=setup.methods, channels=setup.channels)
        self.limits.share(count)
        self.placing = asyncio.Semaphore(PLACED_AT_ONCE)
        self.news = asyncio.Event()
        self.held = 0
        """Slots."""
        self.begun = 0
        self.busy_s = 0.0
        self.calls: Counter[str] = Counter()
        self._call_s = setup.call_s
        self._core = asyncio.Lock()

    async def compute(self, seconds: float) -> None:
        async with self._core:
            await asyncio.sleep(seconds)
            self.busy_s += seconds

    async def call(self, method: str, channel: str = "", *, is_urgent: bool = True) -> None:
        """As soon as Slack's limits let it."""
        await self.limits.turn(method, channel, is_urgent=is_urgent)
        await self.call_now(method)

    async def call_now(self, method: str) -> None:
        self.calls[method] += 1
        await asyncio.sleep(self._call_s)


class _Status:
    """Slack's "working" state of each thread, as `WorkingStatus` sets it: whether it works when its turn comes."""

    def __init__(self) -> None:
        self._going: Counter[str] = Counter()
        self._shown: set[str] = set()
        self._in_line: set[str] = set()

    async def begin(self, process: _Process, thread: str, *, is_urgent: bool) -> bool:
        """Returns whether it is shown by now; else another call of the thread is in line."""
        self._going[thread] += 1
        await self._fulfil(process, thread, is_urgent=is_urgent)
        return thread in self._shown

    async def end(self, process: _Process, thread: str) -> None:
        self._going[thread] -= 1
        await self._fulfil(process, thread, is_urgent=False)

    async def _fulfil(self, process: _Process, thread: str, *, is_urgent: bool) -> None:
        if thread in self._in_line:
            return
        self._in_line.add(thread)
        while bool(self._going[thread]) != (thread in self._shown):
            await process.limits.turn(STATUS, is_urgent=is_urgent)
            if self._going[thread] and thread not in self._shown:
                self._shown.add(thread)
                await process.call_now(STATUS)
            elif not self._going[thread] and thread in self._shown:
                self._shown.discard(thread)
                await process.call_now(STATUS)
        self._in_line.discard(thread)


class _Waiting:
    """The runs that wait to be claimed, in the order in which the claim takes them."""

    def __init__(self) -> None:
        self._runs: list[SimulatedRun] = []
        self._threads: set[str] = set()
        """Of runs that are advanced."""
        self._slots: Counter[str] = Counter()
        self._served_s: dict[str, float] = {}

    def add(self, run: SimulatedRun) -> None:
        self._runs.append(run)

    def claim(self) -> SimulatedRun | None:
        """Takes the next one: who has fewest slots, then who was served longest ago; one of a thread at a time."""
        ranks: Counter[str] = Counter()
        seen, best, best_key = set(self._threads), None, (0, 0.0, 0.0)
        for run in sorted(self._runs, key=lambda run: run.question.at_s):
            question = run.question
            if question.thread in seen:
                continue
            seen.add(question.thread)
            ranks[question.user] += 1
            turn = self._slots[question.user] + ranks[question.user]
            key = (turn, self._served_s.get(question.user, 0.0), question.at_s)
            if best is None or key < best_key:
                best, best_key = run, key
        if best is not None:
            self._runs.remove(best)
            self._threads.add(best.question.thread)
            self._slots[best.question.user] += 1
            self._served_s[best.question.user] = _now_s()
        return best

    def give_up(self, *, asked_before_s: float) -> Sequence[SimulatedRun]:
        """Takes those that have waited since before this time."""
        late = [run for run in self._runs if run.question.at_s < asked_before_s]
        self._runs = [run for run in self._runs if run.question.at_s >= asked_before_s]
        return late

    def done(self, run: SimulatedRun) -> None:
        self._threads.discard(run.question.thread)
        self._slots[run.question.user] -= 1

    def __bool__(self) -> bool:
        return bool(self._runs)


class _Orion:
    def __init__(self, setup: Setup, figures: Figures, *, seed: int) -> None:
        self._setup = setup
        self._figures = figures
        self._dice = random.Random(seed)  # noqa: S311 - a simulation's
        count = setup.fronts + setup.processes
        self._processes = [_Process(setup, count=count) for _ in range(count)]
        self._hearing = self._processes[: setup.fronts or None]
        self._working = self._processes[setup.fronts :]
        self._waiting = _Waiting()
        self._status = _Status()
        self._unfinished = 0

    async def play(self, questions: Sequence[Question]) -> Simulated:
        runs = [SimulatedRun(question=question) for question in questions]
        async with open_task_group() as workers:
            tasks = [workers.create_task(self._work(one, workers)) for one in self._working]
            async with open_task_group() as group:
                for run in runs:
                    await asyncio.sleep(run.question.at_s - _now_s())
                    group.create_task(self._hear(run, group))
            for task in tasks:
                task.cancel()
        return Simulated(
            runs=runs,
            calls=sum((one.calls for one in self._processes), Counter[str]()),
            busy_s=[one.busy_s for one in self._processes],
            begun=[one.begun for one in self._working],
        )

    async def _hear(self, run: SimulatedRun, group: TaskGroup) -> None:
        front = self._dice.choice(self._hearing)
        self._unfinished += 1
        await front.compute(self._figures.mention_cpu_s / 2)
        await asyncio.sleep(self._figures.commit_s)
        run.acknowledged_s = _now_s()
        async with front.placing:
            await front.compute(self._figures.mention_cpu_s / 2)
            run.is_refused = self._unfinished > self._setup.queue_limit
            if not run.is_refused:
                await self._place(front, run, group)
        if run.is_refused:
            self._unfinished -= 1
            return
        self._waiting.add(run)
        self._tell(front)
        await run.done.wait()

    async def _place(self, front: _Process, run: SimulatedRun, group: TaskGroup) -> None:
        channel = run.question.channel
        is_late = front.limits.line_s(POST, channel) > PLACE_WITHIN_S
        group.create_task(self._show_working(front, run, is_urgent=is_late))
        if is_late:
            run.late = group.create_task(self._post(front, run))
        else:
            await self._post(front, run)

    async def _show_working(self, front: _Process, run: SimulatedRun, *, is_urgent: bool) -> None:
        if await self._status.begin(front, run.question.thread, is_urgent=is_urgent):
            run.sign_s = run.sign_s or _now_s()

    async def _post(self, front: _Process, run: SimulatedRun) -> None:
        await front.call(POST, run.question.channel)
        run.posted_s = _now_s()
        run.sign_s = run.sign_s or _now_s()

    # -- handing out -----------------------------------------------------------------------------------------------------

    def _tell(self, knows: _Process) -> None:
        """One knows at once that there may be a run for it, the others at their next look."""
        knows.news.set()
        for other in self._working:
            if other is not knows and other.held < self._setup.slots:
                look_s = self._dice.uniform(0, POLL_INTERVAL_S)
                asyncio.get_running_loop().call_later(look_s, other.news.set)

    async def _work(self, process: _Process, group: TaskGroup) -> None:
        while True:
            process.news.clear()
            for late in self._waiting.give_up(
                asked_before_s=_now_s() - self._setup.queue_timeout_s
            ):
                group.create_task(self._tell_late(process, late))
            run = self._waiting.claim() if process.held < self._setup.slots else None
            if run is None:
                await process.news.wait()
            else:
                process.held += 1
                process.begun += 1
                group.create_task(self._advance(process, run, group))
                await asyncio.sleep(START_INTERVAL_S)

    async def _advance(self, process: _Process, run: SimulatedRun, group: TaskGroup) -> None:
        run.begun_s = _now_s()
        rest_s = self._figures.run_cpu_s - self._figures.mention_cpu_s
        await process.compute(rest_s / 2)
        if run.question.is_reply:
            await process.call(READ)
        await asyncio.sleep(self._setup.start_s)
        publishing = group.create_task(self._publish(process, run))
        await asyncio.sleep(run.question.work_s)
        run.concluded_s = _now_s()
        publishing.cancel()
        await process.compute(rest_s / 2)
        await self._tell_person(process, run)
        run.answered_s = _now_s()
        group.create_task(self._status.end(process, run.question.thread))
        process.held -= 1
        self._waiting.done(run)
        if self._waiting:
            self._tell(process)

    async def _tell_late(self, process: _Process, run: SimulatedRun) -> None:
        run.is_refused = True
        await self._tell_person(process, run)

    async def _tell_person(self, process: _Process, run: SimulatedRun) -> None:
        """The answer, or why there is none."""
        if run.late is not None:
            run.late.cancel()
        await process.call(
            *((UPDATE,) if run.posted_s is not None else (POST, run.question.channel))
        )
        run.sign_s = run.sign_s or _now_s()
        self._unfinished -= 1
        run.done.set()

    async def _publish(self, process: _Process, run: SimulatedRun) -> None:
        """Progress, as if there were news each time."""
        await asyncio.sleep(TIMING.first_after_s)
        while True:
            await process.compute(self._figures.going_cpu * TIMING.interval_s)
            if run.posted_s is not None:
                await process.call(UPDATE, is_urgent=False)
                run.updates_s.append(_now_s())
            await asyncio.sleep(TIMING.interval_s)
