"""Kills inside the reconciliation itself: of questions whose placing was killed so often that it is given up."""

import asyncio
import time
from collections.abc import Callable

from app.runs.testing import MAX_PLACE_ATTEMPTS, RunState
from tests.crash.killing import Row, choose
from tests.crash.points import Order, Point
from tests.crash.rig import REPAIRED_WITHIN_S, Rig

NAME = "reconciliation"
HELD_WITHIN_S = 30.0
PLACING = Point(step="store.queue_stats", side="before")
"""Of the first look at a run that is placed."""


async def kill_while_reconciling(rig: Rig, *, tell: Callable[[Row], None]) -> None:
    """Has one question given up and ended unharmed, and then one for each step that this took: killed there, and repaired by the next start."""
    ts = await _give_up(rig)
    rig.disarm()
    rig.mailbox.record()
    await rig.stage.orion.start()
    await rig.all_ended([ts])
    points = choose(rig.mailbox.passed(), kills="of a run")
    rig.disarm()
    faults = await rig.faults_of_thread([ts], outcomes=(RunState.FAILED,))
    assert faults == [], faults
    for point in points:
        tell(await _kill(rig, point))


async def _kill(rig: Rig, point: Point) -> Row:
    ts = await _give_up(rig)
    rig.arm(Order(point=point))
    await rig.stage.orion.launch()
    pid = rig.stage.orion.pid
    assert await rig.has_died(), f"not reached: {point}"
    signal = -(rig.stage.orion.exit_code or 0)
    rig.disarm()
    started = time.monotonic()
    await rig.stage.orion.start()
    faults, repaired_s = [], None
    try:
        await rig.all_ended([ts])
        repaired_s = time.monotonic() - started
        if repaired_s > REPAIRED_WITHIN_S:
            faults.append(f"repaired after {repaired_s:.1f} s")
    except TimeoutError as exc:
        faults.append(f"not repaired: {'; '.join(getattr(exc, '__notes__', []))}")
    faults += await rig.faults_of_thread([ts], outcomes=(RunState.FAILED,))
    return Row(
        scenario=NAME,
        agent=rig.agent,
        point=str(point),
        pid=pid,
        signal=signal,
        repaired_s=repaired_s,
        faults=tuple(faults),
    )


async def _give_up(rig: Rig) -> str:
    """Asks, and kills every placing that is forgiven: the next start ends the question. Returns its ts; no Orion runs then."""
    rig.arm(Order(point=PLACING, hold=True))
    ts = await rig.stage.client.say("@Orion question")
    await _kill_held(rig)
    for _ in range(MAX_PLACE_ATTEMPTS):
        rig.arm(Order(point=PLACING, hold=True))
        await rig.stage.orion.start()
        await _kill_held(rig)
    return ts


async def _kill_held(rig: Rig) -> None:
    async with asyncio.timeout(HELD_WITHIN_S):
        while not rig.mailbox.victims():
            await asyncio.sleep(0.05)
    rig.stage.orion.kill_group()
    assert await rig.has_died(), "killed, and still alive"
