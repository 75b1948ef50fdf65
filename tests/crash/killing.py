"""A scenario played: once unharmed, to find its points, and once for each of them with harm to a process."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from app.dispatch.lease import RENEW_INTERVAL_S
from app.store.leases import LEASE_S
from tests.crash.play import Kills, Play, Scenario
from tests.crash.points import Point
from tests.crash.rig import Rig, Shape, is_alive
from tests.crash.steps import bare, is_spared
from tests.e2e.orion_process import OrionProcess

FROZEN_S = LEASE_S + 2 * RENEW_INTERVAL_S
"""So long at the least: then another process has given it up for dead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One harm and what came of it."""

    shape: Shape
    scenario: str
    agent: str
    point: str
    repaired_s: float | None
    """From the restart, or from the harm where another process goes on, to the thread with every end in it."""
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
    ends_there = not play.worker.is_up
    if not ends_there:
        await scenario.end(play)
        await scenario.told(play)
    passed = [*rig.mailbox.passed(), *rig.slack.passed]
    await rig.start_all()
    if ends_there:
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


async def harm_at(rig: Rig, scenario: Scenario, point: Point) -> Row:
    """Plays the scenario, has a process come to harm at the point, and sees what is there in the end."""
    play = Play(rig=rig)
    await scenario.begin(play)
    return await harmed(
        play,
        scenario,
        str(point),
        arm=lambda: rig.arm(point),
        go_on=lambda: scenario.go_on(play),
    )


async def harmed(
    play: Play,
    scenario: Scenario,
    name: str,
    *,
    arm: Callable[[], None],
    go_on: Callable[[], Awaitable[None]],
) -> Row:
    """Returns with all processes up."""
    rig = play.rig
    rig.disarm()
    arm()
    await go_on()
    victim = await rig.until_harmed()
    faults = [] if victim else ["the point was not reached"]
    rig.disarm()
    survivors: list[str] = []
    if not rig.shape.is_shared:
        rig.stage.orion.kill_group()  # where the point was not reached
        survivors = await rig.survivors_of(rig.stage.orion.pid)
    since = time.monotonic()
    if victim is not None and victim.is_frozen and _is_alone(rig, victim):
        # It keeps the directory in which another one would begin to start.
        await asyncio.sleep(FROZEN_S)
        faults += await rig.thawed(victim)
    for process in rig.processes:
        if not process.is_up and (process is not victim or not rig.shape.is_shared):
            await process.start()
    repaired_s = None
    try:
        await scenario.end(play)
        await scenario.told(play)
        repaired_s = time.monotonic() - since
        if repaired_s > rig.shape.repaired_within_s:
            faults.append(f"repaired after {repaired_s:.1f} s")
    except TimeoutError as exc:
        faults.append(f"not repaired: {'; '.join(getattr(exc, '__notes__', []))}")
    if victim is not None and victim.is_frozen:
        await asyncio.sleep(max(0.0, FROZEN_S - (time.monotonic() - since)))
        faults += await rig.thawed(victim)
    await rig.start_all()
    faults += [*await scenario.faults(play), *await rig.faults_of_machine()]
    faults += [f"outlived the restart: {each}" for each in survivors if is_alive(each)]
    return Row(
        shape=rig.shape,
        scenario=scenario.name,
        agent=rig.agent,
        point=name,
        repaired_s=repaired_s,
        faults=tuple(faults),
        note=f"{len(survivors)} processes lived until the restart" if survivors else "",
    )


def _is_alone(rig: Rig, victim: OrionProcess) -> bool:
    return not any(process.is_up for process in rig.processes if process is not victim)
