"""What ends a run that would not end by itself: its time in the queue, its placings, and a look at those that hang."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from typing_extensions import override

from app.compose.maintenance import OVERDUE_GRACE_S, Watchdog
from app.errors import ErrorCode
from app.runs.testing import (
    MAX_PLACE_ATTEMPTS,
    Run,
    RunId,
    RunService,
    RunState,
    StopSignals,
    SystemClock,
)
from tests.building import T0, make_request
from tests.faults.building import POLICY, Core, core_of, ended, request_of
from tests.faults.plan_agent import ANSWER
from tests.waiting import until


class _LongAgo(StopSignals):
    """Has been at all its runs for so long."""

    def __init__(self, core: Core, going_s: float) -> None:
        super().__init__()
        self._core = core
        self._going_s = going_s

    @override
    def going(self) -> dict[RunId, float]:
        return dict.fromkeys(self._core.signals.going(), self._going_s)


def watchdog_of(core: Core, *, going_s: float, service: RunService | None = None) -> Watchdog:
    return Watchdog(
        service=service or core.service,
        policy=POLICY,
        signals=_LongAgo(core, going_s),
        clock=SystemClock(),
    )


async def test_who_waits_too_long_for_a_slot_is_told_soon(tmp_path: Path) -> None:
    """At the time limit, not at the end of the run that has the slot."""
    policy = replace(POLICY, capacity=1, queue_timeout_s=1.5)
    async with core_of(tmp_path, policy) as core:
        first = request_of([{"text": "a"}, {"sleep": 15}, {"final": "one"}])
        await core.intake.accept(first)
        await until(lambda: core.provider.created == 2 and core.provider.alive == 1)
        second = request_of(ANSWER, ts="1795302365.000100")
        await core.intake.accept(second)
        run = await ended(core, second.run_id)
        assert (run.result.error_code, run.attempt) == (ErrorCode.QUEUE_FULL, 0)
        assert run.ended_at is not None
        assert run.ended_at - run.created_at < timedelta(seconds=10)
        told = core.replies.finished[0][1]
        assert told.detail == "this one waited longer than 1.5 s for its turn"
        assert run.outcome == told
        assert core.provider.alive == 1
        await core.intake.stop_run(first.run_id, user="U1")
        await ended(core, first.run_id)


@pytest.mark.long
async def test_who_has_a_slot_and_reads_its_thread_does_not_wait_too_long(tmp_path: Path) -> None:
    """Slack's limits hold it up beyond the time that it may wait for its turn, which has come: it is answered."""
    policy = replace(POLICY, queue_timeout_s=0.5)
    async with core_of(tmp_path, policy) as core:
        core.reader.hangs = True
        request = request_of(ANSWER, thread_ts="1795302300.000100")
        await core.intake.accept(request)
        await until(lambda: core.reader.reads == 1)
        await asyncio.sleep(1.2)  # two looks of the dispatcher
        core.reader.goes_on.set()
        run = await ended(core, request.run_id)
        assert run.result.answer == "the answer"


async def test_what_a_process_left_that_is_no_more_is_interrupted_after_three_attempts(
    tmp_path: Path,
) -> None:
    """It was executing when each of them died."""
    async with core_of(tmp_path) as core:
        left = make_request(ts="1795302300.000100")
        await core.store.add(Run(id=left.run_id, request=left, created_at=T0))
        await core.store.update(left.run_id, state=RunState.RUNNING, attempt=3, reply_ts="9.1")
        await core.store.leases.release(left.run_id, after_s=0)
        core.dispatcher.wake()
        run = await ended(core, left.run_id)
        assert run.result.error_code is ErrorCode.INTERRUPTED


async def test_a_message_at_which_the_process_dies_is_not_placed_for_ever(tmp_path: Path) -> None:
    """Each start that places it again counts; after three it is told that it was interrupted."""
    async with core_of(tmp_path) as core:
        request = request_of(ANSWER)
        run = Run(id=request.run_id, request=request, created_at=request.received_at)
        await core.store.add(run)
        await core.service.place(run, resumed=True)
        placed = await core.store.get(run.id)
        assert placed is not None
        assert placed.place_attempt == 1
        other = make_request(ts="1795302370.000100")
        poison = Run(
            id=other.run_id,
            request=other,
            created_at=core.ports.clock.now(),
            place_attempt=MAX_PLACE_ATTEMPTS,
        )
        await core.store.add(poison)
        await core.service.place(poison, resumed=True)
        told = await ended(core, poison.id)
        assert told.result.error_code is ErrorCode.INTERRUPTED


async def test_a_run_that_hangs_is_ended(tmp_path: Path) -> None:
    """By a clock that does not jump, and not before its time."""
    async with core_of(tmp_path, POLICY) as core:
        request = request_of([{"sleep": 60}])
        await core.intake.accept(request)
        await until(lambda: bool(core.replies.shown))
        limit_s = POLICY.run_timeout_s + OVERDUE_GRACE_S
        assert await watchdog_of(core, going_s=limit_s - 1).look() == 0
        assert await watchdog_of(core, going_s=limit_s + 1).look() == 1
        run = await core.store.get(request.run_id)
        assert run is not None
        assert run.result.error_code is ErrorCode.SANDBOX_TIMEOUT


async def test_a_run_that_cannot_be_ended_leaves_no_other_dangling(tmp_path: Path) -> None:
    """It is tried again in each round; the others are ended in the first one."""
    async with core_of(tmp_path) as core:
        requests = [request_of([{"sleep": 60}], ts=f"179530230{n}.000100") for n in range(2)]
        for request in requests:
            await core.intake.accept(request)
        await until(lambda: len(core.signals.going()) == 2)
        poisoned = requests[0].run_id

        class Service(RunService):
            @override
            async def end(self, run_id: RunId, code: ErrorCode) -> None:
                if run_id == poisoned:
                    raise OverflowError("cannot convert Infinity to integer")
                await core.service.end(run_id, code)

        watchdog = watchdog_of(core, going_s=10_000, service=Service.__new__(Service))
        assert await watchdog.look() == 1
        assert [run.id for run in await core.store.unfinished()] == [poisoned]
