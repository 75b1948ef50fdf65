"""Whether people are told: of refusals, and of answers while Slack cannot be reached."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from app.errors import ErrorCode
from app.runs.testing import Delivery, Outcome, Run, RunState
from tests.e2e.fault_table import fault
from tests.faults.building import POLICY, SOON, core_of, ended, request_of
from tests.faults.plan_agent import ANSWER
from tests.faults.sick_stores import SickRunStore
from tests.waiting import until


async def test_a_refused_person_costs_nothing(tmp_path: Path) -> None:
    """A refusal is told privately; no thinking message, no sandbox, and a record with its code."""
    async with core_of(tmp_path, replace(POLICY, allowed_users=frozenset({"U9"}))) as core:
        request = request_of(ANSWER)
        await core.intake.accept(request)
        run = await ended(core, request.run_id)
        assert run.result.error_code is ErrorCode.NOT_ALLOWED
        assert core.replies.refused == [ErrorCode.NOT_ALLOWED]
        assert core.replies.placed == []
        assert core.provider.created == 0


async def test_a_refusal_outlasts_a_sick_database(tmp_path: Path) -> None:
    """It is told once, and closed as soon as the database takes it."""
    policy, store = (
        replace(POLICY, allowed_users=frozenset({"U9"})),
        SickRunStore(TimeoutError(), OSError("locked")),
    )
    async with core_of(tmp_path, policy, store=store) as core:
        request = request_of(ANSWER)
        await core.intake.accept(request)
        assert (await ended(core, request.run_id)).result.error_code is ErrorCode.NOT_ALLOWED
        assert (core.replies.refused, store.failures) == ([ErrorCode.NOT_ALLOWED], [])


async def test_a_refusal_that_waits_for_slack_holds_up_nobody(tmp_path: Path) -> None:
    """Placing is over at once, for few messages are placed at a time; it is told when Slack's limits allow."""
    policy = replace(
        POLICY, allowed_users=frozenset({"U9"}), timings=replace(SOON, refuse_within_s=0.05)
    )
    async with core_of(tmp_path, policy) as core:
        core.replies.refuses_after_s = [3600.0, 0.5]
        request = request_of(ANSWER)
        run = Run(id=request.run_id, request=request, created_at=request.received_at)
        await core.store.add(run)
        async with asyncio.timeout(3):
            await core.service.place(run, resumed=False)
        assert core.replies.refused == []
        run = await ended(core, request.run_id)
        assert (run.state, run.result.error_code) == (RunState.FAILED, ErrorCode.NOT_ALLOWED)
        assert core.replies.refused == [ErrorCode.NOT_ALLOWED]
        assert core.replies.placed == []
        assert core.provider.created == 0


async def test_a_refusal_that_a_crash_cut_off_is_told(tmp_path: Path) -> None:
    """Decided but not closed, as a crash leaves it: the asker is told what was decided, whatever the limits say now."""
    async with core_of(tmp_path) as core:
        request = request_of(ANSWER)
        run = Run(id=request.run_id, request=request, created_at=request.received_at)
        await core.store.add(run)
        await core.store.update(
            run.id,
            outcome=Outcome(state=RunState.FAILED, error_code=ErrorCode.NOT_ALLOWED, detail="no"),
        )
        await core.service.place(run, resumed=True)
        run = await ended(core, run.id)
        assert (run.state, run.result.error_code) == (RunState.FAILED, ErrorCode.NOT_ALLOWED)
        assert core.replies.refused == [ErrorCode.NOT_ALLOWED]
        assert core.provider.created == 0


async def test_slack_refusing_for_good_ends_the_run(tmp_path: Path) -> None:
    """When no thinking message can stand, nothing runs and nothing retries for ever."""
    async with core_of(tmp_path) as core:
        core.replies.refuses_to_place = True
        core.replies.delivery_failure = "is_archived"
        request = request_of(ANSWER)
        await core.intake.accept(request)
        run = await ended(core, request.run_id)
        assert run.delivery == "failed(is_archived)"
        assert (run.state, run.result.error_code) == (RunState.FAILED, ErrorCode.NOT_ALLOWED)
        assert run.result.detail == "Slack lets me write nothing in this thread"
        assert core.provider.created == 0


async def test_an_outage_of_slack_delays_but_loses_nothing(tmp_path: Path) -> None:
    """While Slack cannot be reached nothing runs unseen, and a finished answer is told again until it stands."""
    async with core_of(tmp_path, replace(POLICY, timings=SOON)) as core:
        core.replies.outages = 3
        request = request_of([{"sleep": 0.5}, {"final": "the answer"}])
        await core.intake.accept(request)
        await until(lambda: bool(core.replies.placed))
        assert core.provider.created <= 1
        core.replies.outages = 2
        run = await ended(core, request.run_id)
        assert (run.state, run.result.answer, run.delivery) == (
            RunState.SUCCEEDED,
            "the answer",
            "sent",
        )
        assert run.attempt == 1
        assert core.replies.resumed == [True]


FILES = [{"run": "mkdir out && printf 1 > out/a.txt && printf 2 > b"}, {"final": "the answer"}]


async def test_files_outlast_an_outage(tmp_path: Path) -> None:
    """What Slack does not take at once is shared a little later, for the answer speaks of it."""
    async with core_of(tmp_path, replace(POLICY, timings=SOON)) as core:
        core.replies.share_failures = [Delivery(failure="timeout", may_pass=True)] * 3
        request = request_of(FILES)
        await core.intake.accept(request)
        run = await ended(core, request.run_id)
        assert (run.state, run.delivery) == (RunState.SUCCEEDED, "sent")
        assert [was_resumed for _, _, was_resumed in core.replies.shared] == [False, True, True]
        assert core.replies.resumed == [False]  # the answer stands, and is not told again
        assert core.replies.unshared == []


@pytest.mark.parametrize(
    ("failure", "grace"),
    [
        (Delivery(failure="timeout", may_pass=True), timedelta()),
        (Delivery(failure="restricted_action"), timedelta(minutes=5)),
    ],
)
async def test_files_that_slack_does_not_take_are_told(
    tmp_path: Path, failure: Delivery, grace: timedelta
) -> None:
    """In the thread, by name and reason; the next message there does not wait for them any longer."""
    policy = replace(POLICY, timings=replace(SOON, sharing_grace=grace))
    async with core_of(tmp_path, policy) as core:
        core.replies.share_failures = [failure, Delivery()]
        request = request_of(FILES)
        await core.intake.accept(request)
        run = await ended(core, request.run_id)
        assert (run.state, run.delivery) == (RunState.SUCCEEDED, "sent")
        assert core.replies.unshared == [(f"Not shared: a.txt ({failure.failure}).", False)]
        assert [name for _, name, _ in core.replies.attached] == [f"changes-{run.id}.patch"]


async def test_a_question_that_an_outage_kept_waiting_is_told_so(tmp_path: Path) -> None:
    """Slack was away for longer than a question may wait: it is not said to refuse, which would be told in that very thread."""
    policy = replace(POLICY, queue_timeout_s=0.5, timings=SOON)
    async with core_of(tmp_path, policy) as core:
        core.replies.outages = 12
        request = request_of(ANSWER)
        await core.intake.accept(request)
        run = await ended(core, request.run_id)
        assert (run.result.error_code, run.delivery) == (ErrorCode.QUEUE_FULL, "sent")
        assert run.result.detail == "this one waited longer than 0.5 s for its turn"


@pytest.mark.long
async def test_a_late_answer_is_told_as_it_would_have_been_in_time(tmp_path: Path) -> None:
    """With its time and steps below it, not those of the outage, and with the line that notifies who asked."""
    async with core_of(tmp_path, replace(POLICY, announce_after_s=0.4, timings=SOON)) as core:
        request = request_of([{"tool": "ls"}, {"sleep": 0.5}, {"final": "the answer"}])
        await core.intake.accept(request)
        await until(lambda: bool(core.replies.placed))
        core.replies.outages = 20
        run = await ended(core, request.run_id)
        ((_, told),) = core.replies.finished
        assert core.replies.resumed == [True]
        assert told.steps == 1
        assert run.started_at is not None
        assert run.ended_at is not None
        since_s = (run.ended_at - run.started_at).total_seconds()
        assert 0.5 < told.duration_s < since_s - 1.5
        assert core.replies.announced == [run.id]


async def test_an_outage_without_end_is_given_up(tmp_path: Path) -> None:
    """A finished answer is offered until the window closes, then the record says that nobody was told."""
    timings = replace(SOON, delivery_grace=timedelta(seconds=-29))
    policy = replace(POLICY, run_timeout_s=10, queue_timeout_s=1, timings=timings)
    async with core_of(tmp_path, policy) as core:
        request = request_of([{"sleep": 0.5}, {"final": "the answer"}])
        await core.intake.accept(request)
        await until(lambda: bool(core.replies.placed))
        core.replies.outages = 10**9
        run = await ended(core, request.run_id)
        fault("Slack: down for good").assert_holds(run)
        assert run.result.answer == "the answer"
        offered = core.replies.outages
        await asyncio.sleep(0.5)
        assert core.replies.outages == offered
