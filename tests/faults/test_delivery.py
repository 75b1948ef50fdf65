"""Whether people are told: of refusals, and of answers while Slack cannot be reached."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from app.errors import ErrorCode
from app.runs import ending, workflow
from app.runs.model import Run, RunId, RunState
from tests.e2e.fault_table import fault
from tests.faults.building import POLICY, core_of, ended, request_of, until
from tests.faults.plan_agent import ANSWER


async def test_a_refused_person_costs_nothing(tmp_path: Path) -> None:
    """A refusal is told privately; no thinking message, no sandbox, and a record with its code."""
    async with core_of(tmp_path, replace(POLICY, allowed_users=frozenset({"U9"}))) as core:
        request = request_of(ANSWER)
        await core.intake.accept(request)
        run = await ended(core, request.run_id)
        assert run.error_code is ErrorCode.NOT_ALLOWED
        assert core.replies.refused == [ErrorCode.NOT_ALLOWED]
        assert core.replies.placed == []
        assert core.provider.created == 0


async def test_a_refusal_outlasts_a_sick_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told once, and closed as soon as the database takes it."""
    async with core_of(tmp_path, replace(POLICY, allowed_users=frozenset({"U9"}))) as core:
        update, failures = core.store.update, [TimeoutError(), OSError("locked")]

        async def sick_update(run_id: RunId, **changes: Any) -> Run:
            if failures:
                raise failures.pop()
            return await update(run_id, **changes)

        monkeypatch.setattr(core.store, "update", sick_update)
        request = request_of(ANSWER)
        await core.intake.accept(request)
        assert (await ended(core, request.run_id)).error_code is ErrorCode.NOT_ALLOWED
        assert (core.replies.refused, failures) == ([ErrorCode.NOT_ALLOWED], [])


async def test_a_refusal_that_a_crash_cut_off_is_told(tmp_path: Path) -> None:
    """Decided but not closed, as a crash leaves it: the asker is told what was decided, whatever the limits say now."""
    async with core_of(tmp_path) as core:
        request = request_of(ANSWER)
        run = Run(id=request.run_id, request=request, created_at=request.received_at)
        await core.store.add(run)
        await core.store.update(
            run.id, outcome=RunState.FAILED, error_code=ErrorCode.NOT_ALLOWED, error_detail="no"
        )
        await core.service.place(request)
        run = await ended(core, run.id)
        assert (run.state, run.error_code) == (RunState.FAILED, ErrorCode.NOT_ALLOWED)
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
        assert core.provider.created == 0


async def test_an_outage_of_slack_delays_but_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While Slack cannot be reached nothing runs unseen, and a finished answer is told again until it stands."""
    monkeypatch.setattr(workflow, "SLACK_RETRY_S", 0.1)
    monkeypatch.setattr(ending, "SLACK_RETRY_S", 0.1)
    async with core_of(tmp_path) as core:
        core.replies.outages = 3
        request = request_of([{"sleep": 0.5}, {"final": "the answer"}])
        await core.intake.accept(request)
        await until(lambda: bool(core.replies.placed))
        assert core.provider.created <= 1
        core.replies.outages = 2
        run = await ended(core, request.run_id)
        assert (run.state, run.answer, run.delivery) == (RunState.SUCCEEDED, "the answer", "sent")
        assert run.attempt == 1
        assert core.replies.resumed == [True]


async def test_a_late_answer_is_told_as_it_would_have_been_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its time and steps below it, not those of the outage, and with the line that notifies who asked."""
    monkeypatch.setattr(ending, "SLACK_RETRY_S", 0.1)
    async with core_of(tmp_path, replace(POLICY, announce_after_s=0.4)) as core:
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


async def test_an_outage_without_end_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finished answer is offered until the window closes, then the record says that nobody was told."""
    monkeypatch.setattr(ending, "SLACK_RETRY_S", 0.1)
    monkeypatch.setattr(ending, "DELIVERY_PATIENCE", timedelta(seconds=-8))
    async with core_of(tmp_path, replace(POLICY, run_timeout_s=3, queue_timeout_s=1)) as core:
        request = request_of([{"sleep": 0.5}, {"final": "the answer"}])
        await core.intake.accept(request)
        await until(lambda: bool(core.replies.placed))
        core.replies.outages = 10**9
        run = await ended(core, request.run_id)
        fault("Slack: down for good").assert_holds(run)
        assert run.answer == "the answer"
        offered = core.replies.outages
        await asyncio.sleep(0.5)
        assert core.replies.outages == offered
