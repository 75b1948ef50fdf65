"""What people do in the crash tests: two questions in a thread, a refusal, Stop, a shutdown, a start after a crash."""

import shutil
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, Protocol

from typing_extensions import override

from app.playground.slack_types import BOT_USER_ID
from app.runs.model import RunState
from app.slack.payloads import STOP_ACTION
from tests.crash.points import Order, Point
from tests.crash.rig import GIVEN_UP_AFTER_S, REPAIRED_WITHIN_S, Rig, is_alive
from tests.crash.steps import bare, is_spared
from tests.e2e.harness import text_of

SLOW_WORDS = "and I write slowly"
"""Of the offline model and of the small agent."""
ANSWERED_WITHIN_S = 90.0
TOLD_WITHIN_S = 10.0
"""After the record of a refusal is closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One kill and what came of it."""

    scenario: str
    agent: str
    point: str
    pid: int
    signal: int
    """0: it was not killed."""
    repaired_s: float | None
    """From the restart to the thread with every end in it."""
    faults: tuple[str, ...]
    note: str = ""

    @property
    def is_good(self) -> bool:
        return not self.faults


@dataclass(slots=True, kw_only=True)
class Play:
    """What a scenario has said so far."""

    rig: Rig
    asked: list[str] = field(default_factory=list)
    outcomes: Sequence[RunState] = (RunState.SUCCEEDED,)

    async def say(self, text: str) -> str:
        root = self.asked[0] if self.asked else None
        self.asked.append(await self.rig.stage.client.say(text, thread_ts=root))
        return self.asked[-1]

    async def until_writing(self) -> None:
        await self.rig.stage.client.wait_for_reply(
            self.asked[0], lambda reply: SLOW_WORDS in text_of(reply), timeout_s=ANSWERED_WITHIN_S
        )


Kills = Literal["of a run", "of no run", "all"]
"""Which of the points that a dry run passes."""


class Scenario(Protocol):
    """`begin` before the point is armed, `go_on` until the service is dead, `end` when it is up again."""

    @property
    def name(self) -> str: ...

    @property
    def kills(self) -> Kills: ...

    @property
    def whose(self) -> str:
        """Of several messages that pass a step, the one that is killed at it."""
        ...

    async def begin(self, play: Play) -> None: ...

    async def go_on(self, play: Play) -> None: ...

    async def end(self, play: Play) -> None: ...

    async def told(self, play: Play) -> None:
        """Returns when every message has its end."""
        ...

    async def faults(self, play: Play) -> list[str]: ...


class Question:
    """A question, and another one in its thread as soon as Slack was told that the first is accepted."""

    name = "question"
    kills: Kills = "of a run"
    whose = "first"
    first = "@Orion !slow 1"

    async def begin(self, play: Play) -> None:
        """Nothing comes before."""

    async def go_on(self, play: Play) -> None:
        await play.say(self.first)
        if await play.rig.acknowledged(play.asked[0]):
            await play.say("@Orion and then?")

    async def end(self, play: Play) -> None:
        # The order of messages holds among accepted ones: Slack may redeliver the first later than it delivers the second.
        await play.rig.acknowledged(play.asked[0])
        if len(play.asked) == 1:
            await play.say("@Orion and then?")

    async def told(self, play: Play) -> None:
        await play.rig.all_ended(play.asked)

    async def faults(self, play: Play) -> list[str]:
        return await play.rig.faults_of_thread(play.asked, outcomes=play.outcomes)


class Announcement(Question):
    """As above, with runs that are long enough to be announced."""

    name = "announcement"


class Stop(Question):
    """Somebody presses Stop while the agent writes."""

    name = "stop"

    @override
    async def begin(self, play: Play) -> None:
        play.outcomes = (RunState.STOPPED, RunState.SUCCEEDED)
        await play.say("@Orion !slow 8")
        await play.until_writing()
        await play.say("@Orion and then?")
        await play.rig.acknowledged(play.asked[1])

    @override
    async def go_on(self, play: Play) -> None:
        message = await play.rig.stage.thinking(play.asked[0])
        await play.rig.stage.client.press(message, STOP_ACTION)

    @override
    async def faults(self, play: Play) -> list[str]:
        """A wish that got as far as the record is fulfilled; a press that never got there is Slack's to report."""
        first, after = await play.rig.thread_records(play.asked[0])
        is_wished = first.stop_requested_by is not None
        return [
            *await super().faults(play),
            *(["the stop was forgotten"] if is_wished != (first.state is RunState.STOPPED) else []),
            *([f"the next one {after.state}"] if after.state is not RunState.SUCCEEDED else []),
        ]


class Amendment(Question):
    """Somebody edits a question that waits."""

    name = "amendment"

    @override
    async def begin(self, play: Play) -> None:
        await play.say("@Orion !slow 8")
        await play.until_writing()
        await play.say("@Orion and then?")
        await play.rig.stage.thinking(play.asked[1], thread_ts=play.asked[0])

    @override
    async def go_on(self, play: Play) -> None:
        await play.rig.stage.client.edit(play.asked[1], f"<@{BOT_USER_ID}> and what then?")

    @override
    async def faults(self, play: Play) -> list[str]:
        """Slack delivers the edit again, which may be too late for the answer, but loses or doubles nothing."""
        _, after = await play.rig.thread_records(play.asked[0])
        is_whole = after.request.text in ("and then?", "and what then?")
        return [
            *await super().faults(play),
            *([] if is_whole else [f"the question became {after.request.text!r}"]),
        ]


class Withdrawal(Amendment):
    """Somebody deletes a question that waits."""

    name = "withdrawal"
    whose = "later"

    @override
    async def begin(self, play: Play) -> None:
        play.outcomes = (RunState.SUCCEEDED, RunState.STOPPED)
        await super().begin(play)

    @override
    async def go_on(self, play: Play) -> None:
        await play.rig.stage.client.delete(play.asked[1])

    @override
    async def faults(self, play: Play) -> list[str]:
        first, after = await play.rig.thread_records(play.asked[0])
        is_wished = after.stop_requested_by is not None
        return [
            *await super().faults(play),
            *(["it was forgotten"] if is_wished != (after.state is RunState.STOPPED) else []),
            *([f"the first {first.state}"] if first.state is not RunState.SUCCEEDED else []),
        ]


class Shutdown(Question):
    """SIGTERM while the agent writes, and for longer than the grace of 10 s."""

    name = "shutdown"
    kills: Kills = "all"

    @override
    async def begin(self, play: Play) -> None:
        await play.say("@Orion !slow 12")
        await play.until_writing()
        await play.say("@Orion and then?")
        await play.rig.stage.thinking(play.asked[1], thread_ts=play.asked[0])

    @override
    async def go_on(self, play: Play) -> None:
        await play.rig.stage.orion.terminate()


class Start(Question):
    """It was killed while the agent was writing, and is killed again while it starts and reconciles."""

    name = "start"
    kills: Kills = "of no run"

    @override
    async def begin(self, play: Play) -> None:
        await play.say("@Orion !slow 3")
        await play.until_writing()
        await play.say("@Orion and then?")
        await play.rig.acknowledged(play.asked[1])
        play.rig.stage.orion.kill_group()
        await play.rig.has_died()

    @override
    async def go_on(self, play: Play) -> None:
        await play.rig.stage.orion.launch()


class Environment(Question):
    """The first start: the agent's environment is made while a question waits for it."""

    name = "environment"
    kills: Kills = "of no run"

    @override
    async def begin(self, play: Play) -> None:
        orion = play.rig.stage.orion
        await orion.terminate()
        for made in ("environments", "snapshots", "names"):
            shutil.rmtree(orion.state_dir / made, ignore_errors=True)
        await play.say("@Orion a first word to a service that is not there yet")

    @override
    async def go_on(self, play: Play) -> None:
        await play.rig.stage.orion.launch()


class Refusal(Question):
    """An empty question in an answered thread: its asker alone is told, and nothing runs."""

    name = "refusal"

    @override
    async def begin(self, play: Play) -> None:
        await play.say("@Orion hello")
        await play.rig.stage.answer(play.asked[0], timeout_s=ANSWERED_WITHIN_S)

    @override
    async def go_on(self, play: Play) -> None:
        await play.say("@Orion")

    @override
    async def end(self, play: Play) -> None:
        """It ends by itself."""

    @override
    async def told(self, play: Play) -> None:
        await play.rig.stage.ended(play.asked[1], timeout_s=GIVEN_UP_AFTER_S)
        with suppress(TimeoutError):  # that it never comes is a fault, found below
            await play.rig.stage.client.wait_for_reply(
                play.asked[0], lambda reply: bool(reply["ephemeral_to"]), timeout_s=TOLD_WITHIN_S
            )

    @override
    async def faults(self, play: Play) -> list[str]:
        replies = await play.rig.stage.client.replies(play.asked[0])
        told = [reply for reply in replies if reply["ephemeral_to"]]
        own = len(replies) - len(told)
        record = await play.rig.stage.record(play.asked[1])
        return [
            *(["the refusal was never told"] if not told else []),
            *([f"{own} other messages instead of the answer and the question"] if own != 2 else []),
            *([f"record {record.state}"] if record.state is not RunState.FAILED else []),
        ]


async def dry_run(rig: Rig, scenario: Scenario) -> list[Point]:
    """The points of a scenario in which nobody is killed, each once, in their order.

    Raises:
        AssertionError: even so something was wrong.
    """
    play = Play(rig=rig)
    await scenario.begin(play)
    rig.disarm()
    rig.mailbox.record()
    await scenario.go_on(play)
    ends_there = rig.stage.orion.exit_code is not None
    if not ends_there:
        await scenario.end(play)
        await scenario.told(play)
    passed = [*rig.mailbox.passed(), *rig.slack.passed]
    if ends_there:
        await rig.stage.orion.start()
        await scenario.end(play)
        await scenario.told(play)
    faults = [*await scenario.faults(play), *await rig.faults_of_machine()]
    assert faults == [], faults
    return choose(passed, kills=scenario.kills, whose=scenario.whose)


def choose(passed: Sequence[Point], *, kills: Kills, whose: str = "first") -> list[Point]:
    """Every step once, before and after, of that message where it has it; of a stream also its middle."""
    chosen: dict[tuple[str, str], Point] = {}
    counts: dict[tuple[str, str], int] = {}
    for point in passed:
        is_of_run = point.whose != "" or point.step.startswith("slack.")
        if is_spared(point.step) or (kills != "all" and is_of_run != (kills == "of a run")):
            continue
        key = (point.step, point.side)
        known = chosen.get(key)
        if known is None or (known.whose != whose and point.whose == whose):
            chosen[key] = point
            counts[key] = 0
        counts[key] += point.whose == chosen[key].whose
    points = list(chosen.values())
    streams = [
        Point(step=p.step, side=p.side, whose=p.whose, number=counts[p.step, p.side] // 2 + 1)
        for p in points
        if p.step.endswith(".item")
    ]
    return [*points, *(stream for stream in streams if stream.number > 1)]


def missing_steps(points: Sequence[Point], expected: Sequence[str]) -> list[str]:
    """Steps that a scenario must reach, and did not."""
    reached = {bare(point.step) for point in points}
    return [step for step in expected if step not in reached]


async def kill_at(rig: Rig, scenario: Scenario, point: Point) -> Row:
    """Play the scenario, be killed at the point, start again, and see what is there."""
    play = Play(rig=rig)
    await scenario.begin(play)
    return await killed(
        rig,
        play,
        scenario,
        str(point),
        arm=lambda: rig.arm(Order(point=point)),
        go_on=lambda: scenario.go_on(play),
    )


async def killed(
    rig: Rig,
    play: Play,
    scenario: Scenario,
    name: str,
    *,
    arm: Callable[[], None],
    go_on: Callable[[], Awaitable[None]],
) -> Row:
    rig.disarm()
    arm()
    await go_on()
    orion = rig.stage.orion
    pid = orion.pid
    faults = [] if await rig.has_died() else ["the point was not reached"]
    rig.disarm()
    code = orion.exit_code
    if code is None:
        orion.kill_group()
        await rig.has_died()
    elif code >= 0:
        faults.append(f"ended by itself with {code}")
    survivors = await rig.survivors_of(pid)
    restarted = time.monotonic()
    repaired_s = None
    await orion.start()
    try:
        await scenario.end(play)
        await scenario.told(play)
        repaired_s = time.monotonic() - restarted
        if repaired_s > REPAIRED_WITHIN_S:
            faults.append(f"repaired after {repaired_s:.1f} s")
    except TimeoutError as exc:
        faults.append(f"not repaired: {'; '.join(getattr(exc, '__notes__', []))}")
    faults += [*await scenario.faults(play), *await rig.faults_of_machine()]
    faults += [f"outlived the restart: {each}" for each in survivors if is_alive(each)]
    return Row(
        scenario=scenario.name,
        agent=rig.agent,
        point=name,
        pid=pid,
        signal=-code if code is not None and code < 0 else 0,
        repaired_s=repaired_s,
        faults=tuple(faults),
        note=f"{len(survivors)} processes lived until the restart" if survivors else "",
    )
