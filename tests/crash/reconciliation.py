"""Harm inside the reconciliation itself: of questions whose placing was killed so often that it is given up."""

import asyncio
import os
import signal
import time
from collections.abc import Callable

from app.runs.testing import MAX_PLACE_ATTEMPTS, RunState
from tests.crash.killing import FROZEN_S, Row, choose
from tests.crash.points import Point
from tests.crash.rig import Rig

NAME = "reconciliation"
HELD_WITHIN_S = 30.0
PLACING = Point(step="store.queue_stats", side="before")
"""Of the first look at a run that is placed."""


async def harm_while_reconciling(rig: Rig, *, tell: Callable[[Row], None], each: int = 1) -> None:
    """Has one question given up and ended unharmed, and then one for each (so many-th) step that this took: harmed there, and repaired by who is left."""
    ts = await _give_up(rig)
    rig.disarm()
    rig.mailbox.record()
    await rig.start_all()
    await rig.all_ended([ts])
    points = choose(rig.mailbox.passed(), kills="of a run")[::each]
    rig.disarm()
    faults = await rig.faults_of_thread([ts], outcomes=(RunState.FAILED,))
    assert faults == [], faults
    for point in points:
        tell(await _harm(rig, point))


async def _harm(rig: Rig, point: Point) -> Row:
    ts = await _give_up(rig)
    rig.arm(point)
    for process in rig.processes:
        if not process.is_up:
            await process.launch()
    victim = await rig.until_harmed()
    assert victim, f"not reached: {point}"
    rig.disarm()
    since = time.monotonic()
    if not rig.shape.is_shared:
        await rig.start_all()
    faults, repaired_s = [], None
    try:
        await rig.all_ended([ts])
        repaired_s = time.monotonic() - since
        if repaired_s > rig.shape.repaired_within_s:
            faults.append(f"repaired after {repaired_s:.1f} s")
    except TimeoutError as exc:
        faults.append(f"not repaired: {'; '.join(getattr(exc, '__notes__', []))}")
    if victim.is_frozen:
        await asyncio.sleep(max(0.0, FROZEN_S - (time.monotonic() - since)))
        faults += await rig.thawed(victim)
    await rig.start_all()
    faults += await rig.faults_of_thread([ts], outcomes=(RunState.FAILED,))
    return Row(
        shape=rig.shape,
        scenario=NAME,
        agent=rig.agent,
        point=str(point),
        repaired_s=repaired_s,
        faults=tuple(faults),
    )


async def _give_up(rig: Rig) -> str:
    """Asks, and kills every placing that is forgiven: the next one ends the question. Returns its ts; who was killed last is not up."""
    rig.arm(PLACING, hold=True)
    ts = await rig.stage.client.say("@Orion question")
    await _kill_held(rig)
    for _ in range(MAX_PLACE_ATTEMPTS):
        rig.arm(PLACING, hold=True)
        await rig.start_all()
        await _kill_held(rig)
    return ts


async def _kill_held(rig: Rig) -> None:
    async with asyncio.timeout(HELD_WITHIN_S):
        while not (victims := rig.mailbox.victims()):
            await asyncio.sleep(0.05)
    os.killpg(victims[0]["pid"], signal.SIGKILL)
    assert await rig.until_harmed(), "killed, and still alive"
