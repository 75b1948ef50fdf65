"""A scenario played: once unharmed, to find its points, and once for each of them with a kill."""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from tests.crash.play import Kills, Play, Scenario
from tests.crash.points import Order, Point
from tests.crash.rig import REPAIRED_WITHIN_S, Rig, is_alive
from tests.crash.steps import bare, is_spared


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
