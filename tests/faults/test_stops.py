"""A stop ends what runs and what waits, once, and touches nothing else."""

from dataclasses import replace
from pathlib import Path

import pytest

from app.errors import ErrorCode
from app.runs.testing import Outcome, RunState, SystemClock
from tests.building import T0, make_request, make_run
from tests.faults.building import POLICY, assert_ended_once, core_of, ended, request_of
from tests.faults.plan_agent import ANSWER
from tests.waiting import until

ROOT = "1795302364.000100"


@pytest.mark.alone
async def test_stop_ends_a_running_agent_within_two_seconds(tmp_path: Path) -> None:
    """A stop kills the agent, keeps what was written, and says who stopped it; the writing was shown at once."""
    async with core_of(tmp_path) as core:
        request = request_of([{"text": "half an answer"}, {"sleep": 60}])
        await core.intake.accept(request)
        await until(lambda: any(progress.text for progress in core.replies.shown), timeout_s=5)
        asked_at = SystemClock().now()
        assert await core.intake.stop_run(request.run_id, user="U2")
        run = await ended(core, request.run_id)
        assert run.state is RunState.STOPPED
        assert run.ended_at is not None
        assert (run.ended_at - asked_at).total_seconds() < 2.0
        assert run.result.answer == "half an answer"
        assert core.replies.finished[0][1].stopped_by == "U2"
        assert_ended_once(core, run)


async def test_stop_of_a_waiting_run_keeps_it_from_starting(tmp_path: Path) -> None:
    """A queued run that is stopped never gets a sandbox; the one before it is untouched."""
    async with core_of(tmp_path) as core:
        first = request_of([{"text": "a"}, {"sleep": 1}, {"final": "one"}])
        second = request_of(ANSWER, ts="1795302365.000100", thread_ts=first.message_ts)
        await core.intake.accept(first)
        await until(lambda: core.replies.placed == [first.run_id])
        await core.intake.accept(second)
        await until(lambda: len(core.replies.placed) == 2)
        assert core.replies.waiting[1].ahead_in_thread == 1
        assert await core.intake.stop_run(second.run_id, user="U1")
        assert (await ended(core, second.run_id)).state is RunState.STOPPED
        assert (await ended(core, first.run_id)).state is RunState.SUCCEEDED
        assert core.provider.created == 2  # one prepared the environment, one answered


async def test_whoever_waits_behind_a_withdrawn_question_is_told(tmp_path: Path) -> None:
    """When one that is queued is taken back, those behind it are told that fewer are before them."""
    async with core_of(tmp_path) as core:
        root = "1795302364.000100"
        asked = [
            request_of([{"text": "a"}, {"sleep": 60}], ts=root),
            *(request_of(ANSWER, ts=f"179530236{n}.000100", thread_ts=root) for n in (5, 6)),
        ]
        for number, request in enumerate(asked, start=1):
            await core.intake.accept(request)
            await until(lambda: len(core.replies.placed) == number)  # noqa: B023 - waited for at once
        assert [place.ahead_in_thread for place in core.replies.waiting] == [0, 1, 2]
        assert await core.intake.stop_run(asked[1].run_id, user="U1")
        await until(lambda: len(core.replies.placed) == 4)
        assert core.replies.placed[-1] == asked[2].run_id
        assert core.replies.waiting[-1].ahead_in_thread == 1
        assert await core.intake.stop_run(asked[0].run_id, user="U1")
        for request in asked:
            await ended(core, request.run_id)
        assert len(core.replies.placed) == 4


async def test_stop_of_a_run_that_waits_for_a_place_needs_no_place(tmp_path: Path) -> None:
    """It ends while the run that has the only place goes on."""
    async with core_of(tmp_path, replace(POLICY, capacity=1)) as core:
        first = request_of([{"text": "a"}, {"sleep": 15}, {"final": "one"}])
        second = request_of(ANSWER, ts="1795302365.000100")
        await core.intake.accept(first)
        # The first one made prepares the environment.
        await until(lambda: core.provider.created == 2 and core.provider.alive == 1)
        await core.intake.accept(second)
        await until(lambda: len(core.replies.placed) == 2)
        assert await core.intake.stop_run(second.run_id, user="U1")
        run = await ended(core, second.run_id)
        assert (run.state, run.attempt) == (RunState.STOPPED, 0)
        assert core.provider.alive == 1
        await core.intake.stop_run(first.run_id, user="U1")
        await ended(core, first.run_id)


async def test_a_stop_does_not_change_an_end_that_is_recorded(tmp_path: Path) -> None:
    """Whoever waited too long and is told to stop at the same moment has one end, the recorded one."""
    async with core_of(tmp_path) as core:
        run = make_run()
        await core.store.add(run)
        await core.store.request_stop(run.id, user="U1", at=T0)
        run = await core.store.update(
            run.id,
            reply_ts="9.1",
            state=RunState.ANSWERING,
            outcome=Outcome(state=RunState.FAILED, error_code=ErrorCode.QUEUE_FULL),
        )
        await core.store.leases.release(run.id, after_s=0)
        core.dispatcher.wake()
        assert (await ended(core, run.id)).state is RunState.FAILED
        told = {result.error_code for _, result in core.replies.finished}
        assert told == {ErrorCode.QUEUE_FULL}
        assert (await ended(core, run.id)).state is RunState.FAILED


async def test_a_stop_that_is_told_again_leaves_the_question_behind(tmp_path: Path) -> None:
    """It came while the first one was being told, and again when that was over: it was meant for the first one."""
    async with core_of(tmp_path) as core:
        first, behind = make_request(), make_request(ts="1795302364.000300", thread_ts=ROOT)
        for request in (first, behind):
            await core.store.add(make_run(request))
        outcome = Outcome(state=RunState.SUCCEEDED, answer="done")
        await core.store.update(first.run_id, state=RunState.ANSWERING, outcome=outcome)
        for state in (RunState.ANSWERING, RunState.SUCCEEDED):
            await core.store.update(first.run_id, state=state)
            stopping = core.intake.stop_thread(first.thread, user="U1", ts="1795302365.000100")
            assert not await stopping
        assert (await core.store.get(behind.run_id) or make_run()).stop_requested_at is None


async def test_a_stop_is_not_for_an_answer_that_stands(tmp_path: Path) -> None:
    """Its run still shares files: whoever reads the answer means the question behind it."""
    async with core_of(tmp_path) as core:
        first, behind = make_request(), make_request(ts="1795302364.000300", thread_ts=ROOT)
        for request in (first, behind):
            await core.store.add(make_run(request))
        outcome = Outcome(state=RunState.SUCCEEDED, answer="done")
        await core.store.update(
            first.run_id, state=RunState.ANSWERING, outcome=outcome, delivery="sent"
        )
        assert await core.intake.stop_thread(first.thread, user="U1", ts="1795302365.000100")
        assert (await core.store.get(behind.run_id) or make_run()).stop_requested_by == "U1"


async def test_the_word_stop_stops_the_oldest_unfinished_run(tmp_path: Path) -> None:
    """Stopping a thread stops the run that is going, once; then there is nothing to stop."""
    async with core_of(tmp_path) as core:
        request = request_of([{"sleep": 60}])
        await core.intake.accept(request)
        await until(lambda: bool(core.replies.shown))
        for ts, is_new in (("1795302365.000100", True), ("1795302366.000100", False)):
            assert await core.intake.stop_thread(request.thread, user="U1", ts=ts) is is_new
        assert (await ended(core, request.run_id)).state is RunState.STOPPED
