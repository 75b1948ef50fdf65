"""Kills inside the reconciliation itself: of questions whose placing was killed so often that it is given up."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from app.runs.testing import RunId, RunState
from tests.crash.killing import Row, choose
from tests.crash.points import Order, Point
from tests.crash.rig import REPAIRED_WITHIN_S, Rig

NAME = "reconciliation"
CRASHES = 8
"""More than are forgiven."""
HELD_WITHIN_S = 30.0
QUIET_S = 6.0
PLACING = Point(step="store.queue_stats", side="before")
"""Of the first look at a run that is placed, and of one that is ended."""
QUESTIONS = 16
"""The reconciler is killed at one after the other; no more, for sixteen are placed at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Killed:
    """A process that died while it reconciled."""

    point: Point
    pid: int
    signal: int
    ts: str
    """The question that it was about to end."""


async def kill_while_reconciling(rig: Rig, *, tell: Callable[[Row], None]) -> None:
    """Each start repairs the question at which the one before was killed, and is killed at the next one."""
    asked = await _give_up(rig, questions=QUESTIONS)
    by_run = {str(rig.stage.run_id(ts)): ts for ts in asked}
    points = await _find_points(rig)
    assert len(points) < len(asked), f"{len(points)} points need more than {len(asked)} questions"
    records = [await rig.stage.orion.run(RunId(run_id)) for run_id in by_run]
    victims = [str(run.id) for run in records if run is not None and run.state.is_final]
    last: _Killed | None = None
    for point in [*points, None]:
        started = time.monotonic()
        if point is None:
            rig.disarm()
            await rig.stage.orion.start()
        else:
            rig.arm(Order(point=point, spared=tuple(victims)))
            await rig.stage.orion.launch()
        if last is not None:
            tell(await _row(rig, last, since=started))
        if point is None:
            return
        pid = rig.stage.orion.pid
        assert await rig.has_died(), f"not reached: {point}"
        run_id = str(rig.mailbox.victims()[0]["run_id"])
        victims.append(run_id)
        code = rig.stage.orion.exit_code or 0
        last = _Killed(point=point, pid=pid, signal=-code, ts=by_run[run_id])


async def _find_points(rig: Rig) -> Sequence[Point]:
    """What the reconciler passes to end one run: it is killed when it comes to the second."""
    rig.arm(Order(point=replace(PLACING, number=2)), record=True)
    await rig.stage.orion.launch()
    assert await rig.has_died(), "nothing was given up"
    return choose(rig.mailbox.passed(), kills="of a run")


async def _row(rig: Rig, killed: _Killed, *, since: float) -> Row:
    faults, repaired_s = [], None
    try:
        await rig.all_ended([killed.ts])
        repaired_s = time.monotonic() - since
        if repaired_s > REPAIRED_WITHIN_S:
            faults.append(f"repaired after {repaired_s:.1f} s")
    except TimeoutError as exc:
        faults.append(f"not repaired: {'; '.join(getattr(exc, '__notes__', []))}")
    faults += await rig.faults_of_thread([killed.ts], outcomes=(RunState.FAILED,))
    return Row(
        scenario=NAME,
        agent=rig.agent,
        point=str(killed.point),
        pid=killed.pid,
        signal=killed.signal,
        repaired_s=repaired_s,
        faults=tuple(faults),
    )


async def _give_up(rig: Rig, *, questions: int) -> Sequence[str]:
    """Ask in threads of their own, and kill every placing until none is tried any more."""
    rig.arm(Order(point=PLACING, hold=True))
    asked = [await rig.stage.client.say(f"@Orion question {n}") for n in range(questions)]
    await _held(rig, questions)
    for _ in range(CRASHES):
        rig.stage.orion.kill_group()
        await rig.has_died()
        rig.arm(Order(point=PLACING, hold=True))
        await rig.stage.orion.start()
        with suppress(TimeoutError):
            await _held(rig, questions, timeout_s=QUIET_S)
            continue
        break
    rig.stage.orion.kill_group()
    await rig.has_died()
    return asked


async def _held(rig: Rig, count: int, *, timeout_s: float = HELD_WITHIN_S) -> None:
    async with asyncio.timeout(timeout_s):
        while len({victim["run_id"] for victim in rig.mailbox.victims()}) < count:
            await asyncio.sleep(0.05)
