"""The matrix: every scenario's points, found by playing it once unharmed, then a harm at each of them, in each shape."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import httpx

from sandbox_runtime.task_group import open_task_group
from tests.crash.approval_scenario import Approval
from tests.crash.killing import Row, dry_run, harm_at, harmed, missing_steps
from tests.crash.place import Place
from tests.crash.play import Play, Scenario
from tests.crash.points import Point
from tests.crash.reconciliation import harm_while_reconciling
from tests.crash.report import line_of_row
from tests.crash.rig import ALONE, CUT, FUNCTIONS, QUICK_RETRIES, Rig, Shape
from tests.crash.scenarios import (
    Amendment,
    Announcement,
    CatchUp,
    CatchUpOverSocket,
    Environment,
    Files,
    FollowUps,
    Hearing,
    Interruption,
    Invocations,
    Live,
    Memory,
    Places,
    Pooled,
    Question,
    Refusal,
    Shutdown,
    Start,
    Stop,
    Withdrawal,
)
from tests.crash.steps import KILLED_IN, NOT_BY_FUNCTIONS, SLACK_CALLS
from tests.e2e.harness import WITH_POOL

CHUNK = 12
"""Points of a section that are tried one after the other."""
Tell = Callable[[Row], None]
Try = Callable[[Rig], Awaitable[Row]]
DRAINING_S = (1.0, 9.9)
"""Seconds after SIGTERM: while runs may still end, and about when they are handed over or cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    scenario: Scenario
    agent: str = "small"
    """The small one leaves time for the service's own steps; what the real one does is killed in a section of its own."""
    steps: tuple[str, ...] = ()
    """Only points whose step begins so; empty: all."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Each run makes its own sandbox, so that it passes the same steps every time."""
    asks: bool = False
    """`open_rig`'s."""


REAL_AGENT = ("sandbox.spawn", "process.", "store.update[answering]")
HEARD = ("sandbox.write_file", "handlers.advance", "store.update[answering]")
WAITED = ("sandbox.write_files", "process.")
CARD = ("slack.chat.postMessage", "slack.chat.update")
OVER_SOCKET = {"SLACK_APP_TOKEN": QUICK_RETRIES.app_token}
SECTIONS: Sequence[Section] = (
    Section(scenario=Question()),
    Section(scenario=Refusal()),
    Section(scenario=Pooled(), settings=WITH_POOL),
    Section(scenario=Files()),
    Section(scenario=Live(), settings={"ORION_LIVE_ANSWERS_CHANNEL": "stream"}),
    Section(scenario=FollowUps()),
    Section(scenario=Memory(), steps=("channel_notes.",)),
    Section(scenario=Announcement(), settings={"ORION_ANNOUNCE_AFTER_S": "0.1"}),
    Section(scenario=Stop()),
    Section(scenario=Interruption()),
    Section(scenario=Amendment()),
    Section(scenario=Withdrawal()),
    Section(scenario=Start()),
    Section(scenario=Environment()),
    Section(scenario=Shutdown()),
    Section(scenario=Places(), steps=(*KILLED_IN["places"], "slack.chat.postMessage")),
    Section(scenario=Approval(), steps=(*KILLED_IN["approval"], *CARD), asks=True),
    Section(scenario=CatchUp()),
    Section(scenario=CatchUpOverSocket(), settings=OVER_SOCKET),
)
BY_THEMSELVES: Sequence[Section] = (
    Section(scenario=Question(), agent="anthropic", steps=REAL_AGENT),
    Section(scenario=Pooled(), agent="anthropic", steps=WAITED, settings=WITH_POOL),
    Section(scenario=Hearing(), agent="anthropic", steps=HEARD),
)
"""Not beside others: the agent takes seconds of processor time, and gives way to everybody."""
OF_FUNCTIONS: Sequence[Section] = (
    Section(scenario=Invocations()),
    Section(scenario=Refusal()),
    Section(scenario=Files()),
    Section(scenario=Stop()),
    Section(scenario=Amendment()),
    Section(scenario=Withdrawal()),
)
"""They have no pool, no signal that ends them and no start that finds what was left; a cron catches up."""
OF_AN_OUTAGE: Sequence[Section] = (
    Section(scenario=Question()),
    Section(scenario=Refusal()),
    Section(scenario=Files()),
    Section(scenario=Stop()),
    Section(scenario=Announcement(), settings={"ORION_ANNOUNCE_AFTER_S": "0.1"}),
)
"""Each takes 20 s."""
IN_PART: Mapping[str, Sequence[Section]] = {FUNCTIONS.key: OF_FUNCTIONS, CUT.key: OF_AN_OUTAGE}
"""Shapes with sections of their own, and no load."""
RECONCILIATION = "reconciliation"


async def run_matrix(
    place: Place, shape: Shape, *, only: Sequence[str], each: int = 1
) -> list[Row]:
    """All sections, or those named; several beside each other, for they mostly wait. Each row is printed when it is there.

    `each`: so many-th point of a section is tried, from its first on.
    """
    rows: list[Row] = []

    def tell(row: Row) -> None:
        rows.append(row)
        sys.stdout.write(line_of_row(row) + "\n")
        sys.stdout.flush()

    waiting: list[tuple[str, Awaitable[None]]] = []

    def add(sections: Sequence[Section]) -> None:
        for section in sections:
            name = section.scenario.name
            if not only or name in only:
                hand_on = partial(_hand_on, waiting, name)
                one = run_section(place, section, shape, tell=tell, each=each, hand_on=hand_on)
                waiting.append((name, one))

    add(IN_PART.get(shape.key, SECTIONS))
    if shape.key not in IN_PART and (not only or RECONCILIATION in only):
        waiting.append((RECONCILIATION, _reconcile(place, shape, tell=tell, each=each)))
    async with open_task_group() as group:
        for _ in range(shape.lanes):
            group.create_task(_lane(waiting, shape, tell))
    if shape.key not in IN_PART:
        add(BY_THEMSELVES)
    await _lane(waiting, shape, tell)
    names = [*(section.scenario.name for section in (*SECTIONS, *BY_THEMSELVES)), RECONCILIATION]
    return sorted(rows, key=lambda row: (row.agent != "small", names.index(row.scenario)))


def _hand_on(waiting: list[tuple[str, Awaitable[None]]], name: str, one: Awaitable[None]) -> None:
    waiting.append((name, one))


async def _lane(waiting: list[tuple[str, Awaitable[None]]], shape: Shape, tell: Tell) -> None:
    """One section after the other; what cannot even be played is a fault as well."""
    while waiting:
        name, section = waiting.pop(0)
        try:
            await section
        except (AssertionError, TimeoutError, httpx.HTTPError) as exc:
            reason = " ".join(f"{type(exc).__name__}: {exc}".split())[:400]
            tell(
                Row(
                    shape=shape,
                    scenario=name,
                    agent="small",
                    point="none",
                    repaired_s=None,
                    faults=(f"could not be played: {reason}",),
                )
            )


async def _reconcile(place: Place, shape: Shape, *, tell: Tell, each: int) -> None:
    async with place.open_rig(shape, "small", {}) as rig:
        await harm_while_reconciling(rig, tell=tell, each=each)


async def run_section(
    place: Place,
    section: Section,
    shape: Shape = ALONE,
    *,
    tell: Tell,
    choice: Callable[[Point], bool] = lambda _point: True,
    each: int = 1,
    hand_on: Callable[[Awaitable[None]], None] | None = None,
) -> None:
    """A dry run, then a row for each of its points, or each so many-th. `hand_on`: is given the points beyond the first `CHUNK`, so many at a time."""
    async with place.open_rig(shape, section.agent, section.settings, asks=section.asks) as rig:
        tries = [
            _at(section.scenario, point)
            for point in await find_points(rig, section)
            if choice(point)
        ][::each]
        if isinstance(section.scenario, Shutdown):
            tries += [_draining(section.scenario, after_s) for after_s in DRAINING_S]
        if hand_on is not None:
            for first in range(CHUNK, len(tries), CHUNK):
                hand_on(_go_on(place, section, shape, tries[first : first + CHUNK], tell))
            del tries[CHUNK:]
        await _try_in(rig, tries, tell)
    await _go_on(place, section, shape, tries, tell)


async def _go_on(
    place: Place, section: Section, shape: Shape, tries: list[Try], tell: Tell
) -> None:
    """After a fault the next ones get a new Orion."""
    while tries:
        async with place.open_rig(shape, section.agent, section.settings, asks=section.asks) as rig:
            await _try_in(rig, tries, tell)


async def _try_in(rig: Rig, tries: list[Try], tell: Tell) -> None:
    """Until one ends in a fault."""
    while tries:
        row = await tries.pop(0)(rig)
        tell(row)
        if not row.is_good:
            return


async def find_points(rig: Rig, section: Section) -> Sequence[Point]:
    """The points of a scenario that are its own, and of the steps that the section is about.

    Raises:
        AssertionError: it does not reach a step that it must reach.
    """
    scenario = section.scenario
    points = await dry_run(rig, scenario)
    if not isinstance(scenario, CatchUp):  # what goes on behind it after a start
        points = [p for p in points if SLACK_CALLS.get(p.step.removeprefix("slack.")) != "catch_up"]
    if rig.shape.harm == "freeze":
        # A call that has left a frozen process arrives: its caller is as good as frozen after it.
        points = [p for p in points if (p.step.partition(".")[0], p.side) != ("slack", "before")]
    if section.steps:
        points = [point for point in points if point.step.startswith(section.steps)]
        assert points, f"{scenario.name} reaches none of {section.steps}"
        return points
    expected = [
        *KILLED_IN[scenario.name],
        *(f"slack.{name}" for name, where in SLACK_CALLS.items() if where == scenario.name),
    ]
    if rig.shape == FUNCTIONS:
        expected = [step for step in expected if step not in NOT_BY_FUNCTIONS]
    missing = missing_steps(points, expected)
    assert missing == [], f"{scenario.name} does not reach {missing}"
    if scenario.name in ("question", "shutdown", "start", "environment"):
        return points
    # What a question passes as well is killed there.
    own = {
        "live": ("replies.place", "replies.live", "replies.finish", "slack.chat.update"),
        "stop": ("process.kill", "store.update[stopped]"),
        "interruption": ("process.kill", "store.update[stopped]"),
        "withdrawal": (
            *("store.request_stop", "store.update[answering]", "store.update[stopped]"),
            "replies.finish",
        ),
        "refusal": ("store.update[failed]",),
    }
    wanted = (*expected, *own.get(scenario.name, ()))
    return [point for point in points if point.step.startswith(tuple(wanted))]


def _at(scenario: Scenario, point: Point) -> Try:
    async def harm(rig: Rig) -> Row:
        return await harm_at(rig, scenario, point)

    return harm


def _draining(scenario: Scenario, after_s: float) -> Try:
    async def harm(rig: Rig) -> Row:
        play = Play(rig=rig)
        await scenario.begin(play)

        async def go_on() -> None:
            async with open_task_group() as group:
                group.create_task(scenario.go_on(play))
                await asyncio.sleep(after_s)
                rig.harm(play.worker)

        name = f"{after_s:g} s after SIGTERM"
        return await harmed(play, scenario, name, arm=lambda: None, go_on=go_on)

    return harm
