"""The core under failure: whatever breaks, a run ends once, and nothing is left behind."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import pytest
from typing_extensions import override

from app.errors import ErrorCode
from app.runs import ending, workflow
from app.runs.clock import SystemClock
from app.runs.model import Run, RunId, RunRequest, RunState
from app.runs.policy import RunPolicy
from app.runs.ports import Done, EngineState
from app.runs.reconciler import Reconciler
from app.runs.stops import StopSignals
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.testing.scripts import Operation
from tests.building import T0, make_request, make_run
from tests.e2e.fault_table import fault
from tests.faults.building import Core, open_core

POLICY = RunPolicy(run_timeout_s=20, idle_timeout_s=10, announce_after_s=0)
OPERATIONS: tuple[Operation, ...] = get_args(Operation)
ANSWER = [{"text": "work"}, {"tool": "ls"}, {"final": "the answer"}]


@asynccontextmanager
async def core_of(tmp_path: Path, policy: RunPolicy = POLICY) -> AsyncIterator[Core]:
    async with open_core(policy, socket=str(tmp_path / "broker.sock")) as core:
        yield core


Plan = Sequence[Mapping[str, object]]


def request_of(
    plan: Plan, *, ts: str = "1795302364.000100", thread_ts: str | None = None
) -> RunRequest:
    request = make_request(ts=ts, thread_ts=thread_ts, text=json.dumps(plan))
    return request.model_copy(update={"received_at": SystemClock().now()})


async def ended(core: Core, run_id: RunId) -> Run:
    async with asyncio.timeout(25):
        while True:
            run = await core.store.get(run_id)
            if run is not None and run.state.is_final:
                return run
            await asyncio.sleep(0.01)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


def assert_ended_once(core: Core, run: Run) -> None:
    assert run.state.is_final
    assert core.replies.placed == [run.id]
    assert [run_id for run_id, _ in core.replies.finished] == [run.id]
    assert core.provider.alive == 0


async def test_a_run_answers(tmp_path: Path) -> None:
    """The plain case: placed, progress with the tool, answered once, sandbox gone."""
    async with core_of(tmp_path) as core:
        request = request_of(ANSWER)
        await core.intake.accept(request)
        run = await ended(core, request.run_id)
        assert (run.state, run.answer, run.error_code) == (RunState.SUCCEEDED, "the answer", None)
        assert run.delivery == "sent"
        assert run.attempt == 1
        assert run.event_offset > 0
        assert run.reply_ts == "9.000001"
        assert "ls" in {progress.tool_argument for progress in core.replies.shown}
        assert_ended_once(core, run)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("is_retryable", [True, False])
async def test_any_sandbox_call_may_fail(
    operation: Operation,
    nth: int,
    is_retryable: bool,
    tmp_path: Path,
) -> None:
    """The n-th call of any operation fails: the run still ends once, with an answer or a code, and leaves no sandbox."""
    async with core_of(tmp_path) as core:
        error = SandboxError(SandboxErrorCode.UNAVAILABLE, "told to fail", retryable=is_retryable)
        core.provider.fail(operation, nth, error)
        request = request_of(ANSWER)
        await core.intake.accept(request)
        run = await ended(core, request.run_id)
        assert (run.state is RunState.SUCCEEDED) == (run.error_code is None)
        assert core.replies.placed == [run.id]
        assert len(core.replies.finished) == 1
        if operation != "destroy":
            assert core.provider.alive == 0


async def test_a_finished_answer_outlasts_a_sick_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the agent worked for is recorded as soon as the database takes it."""
    async with core_of(tmp_path) as core:
        update, failures = core.store.update, [TimeoutError(), OSError("locked")]

        async def sick_update(run_id: RunId, **changes: Any) -> Run:
            if "outcome" in changes and failures:
                raise failures.pop()
            return await update(run_id, **changes)

        monkeypatch.setattr(core.store, "update", sick_update)
        request = request_of(ANSWER)
        await core.intake.accept(request)
        run = await ended(core, request.run_id)
        assert (run.state, failures) == (RunState.SUCCEEDED, [])
        assert_ended_once(core, run)


async def test_creation_is_retried_only_when_that_may_help(tmp_path: Path) -> None:
    """A retryable failure costs an attempt, a final one ends the run with its code."""
    async with core_of(tmp_path) as core:
        error = SandboxError(SandboxErrorCode.CREATE_FAILED, "busy", retryable=True)
        core.provider.fail("create", 2, error)  # the first creation prepares the environment
        request = request_of(ANSWER)
        await core.intake.accept(request)
        assert (await ended(core, request.run_id)).state is RunState.SUCCEEDED
    async with core_of(tmp_path) as core:
        core.provider.fail("create", 2, SandboxError(SandboxErrorCode.CREATE_FAILED, "no"))
        await core.intake.accept(request)
        run = await ended(core, request.run_id)
        assert run.error_code is ErrorCode.SANDBOX_CREATION_FAILED
        assert_ended_once(core, run)


@pytest.mark.parametrize(
    ("plan", "code"),
    [
        ([{"exit": 3}], ErrorCode.AGENT_EXECUTION_FAILED),
        ([{"text": "half"}, {"exit": 0}], ErrorCode.AGENT_EXECUTION_FAILED),
        ([{"text": "half"}, {"sleep": 60}], ErrorCode.AGENT_IDLE),
    ],
)
async def test_agent_failures_keep_the_partial_answer(
    plan: Plan, code: ErrorCode, tmp_path: Path
) -> None:
    """However the agent fails, its code is recorded and what it had written is kept."""
    async with core_of(tmp_path, replace(POLICY, idle_timeout_s=1)) as core:
        request = request_of(plan)
        await core.intake.accept(request)
        run = await ended(core, request.run_id)
        assert run.error_code is code
        assert run.answer == "".join(str(step.get("text", "")) for step in plan)
        assert_ended_once(core, run)


async def test_the_deadline_ends_a_run(tmp_path: Path) -> None:
    """An agent that goes on for ever is ended at the deadline, counted from the start."""
    async with core_of(tmp_path, replace(POLICY, run_timeout_s=2)) as core:
        request = request_of([{"text": "x"}, *[{"sleep": 0.2}] * 100])
        await core.intake.accept(request)
        run = await ended(core, request.run_id)
        assert run.error_code is ErrorCode.SANDBOX_TIMEOUT
        assert run.ended_at is not None
        assert run.started_at is not None
        assert run.ended_at - run.started_at < timedelta(seconds=6)
        assert_ended_once(core, run)


async def test_stop_ends_a_running_agent_within_two_seconds(tmp_path: Path) -> None:
    """A stop kills the agent, keeps what was written, and says who stopped it."""
    async with core_of(tmp_path) as core:
        request = request_of([{"text": "half an answer"}, {"sleep": 60}])
        await core.intake.accept(request)
        await until(lambda: any(progress.text for progress in core.replies.shown))
        asked_at = SystemClock().now()
        assert await core.intake.stop_run(request.run_id, user="U2")
        run = await ended(core, request.run_id)
        assert run.state is RunState.STOPPED
        assert run.ended_at is not None
        assert (run.ended_at - asked_at).total_seconds() < 2.0
        assert run.answer == "half an answer"
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


async def test_who_waits_too_long_for_a_place_is_told_soon(tmp_path: Path) -> None:
    """At the time limit, not at the end of the run that has the place; the next one of its thread moves up."""
    policy = replace(POLICY, capacity=1, queue_timeout_s=1.5)
    async with core_of(tmp_path, policy) as core, asyncio.TaskGroup() as group:
        reconciler = Reconciler(
            store=core.store,
            dispatcher=core.dispatcher,
            service=core.service,
            policy=policy,
            signals=StopSignals(),
            clock=SystemClock(),
        )
        rounds = group.create_task(reconciler.run_forever())
        first = request_of([{"text": "a"}, {"sleep": 15}, {"final": "one"}])
        await core.intake.accept(first)
        await until(lambda: core.provider.created == 2 and core.provider.alive == 1)
        second = request_of(ANSWER, ts="1795302365.000100")
        await core.intake.accept(second)
        run = await ended(core, second.run_id)
        assert (run.error_code, run.attempt) == (ErrorCode.QUEUE_FULL, 0)
        assert run.ended_at is not None
        assert run.ended_at - run.created_at < timedelta(seconds=10)
        told = core.replies.finished[0][1]
        assert told.detail == "this one waited longer than 1.5 s for its turn"
        assert ending.recorded_result(run).detail == told.detail
        async with asyncio.timeout(5):
            while (await core.dispatcher.engine_states([run.id]))[run.id] is not EngineState.ENDED:
                await asyncio.sleep(0.01)
        assert core.provider.alive == 1
        await core.intake.stop_run(first.run_id, user="U1")
        await ended(core, first.run_id)
        rounds.cancel()


async def test_a_waiting_run_that_is_over_takes_no_place(tmp_path: Path) -> None:
    """Ended by somebody else while it waits for a place, a run neither starts nor is told of twice."""
    async with core_of(tmp_path, replace(POLICY, capacity=1)) as core:
        first = request_of([{"text": "a"}, {"sleep": 1}, {"final": "one"}])
        second = request_of(ANSWER, ts="1795302365.000100")
        await core.intake.accept(first)
        await until(lambda: core.provider.created == 2 and core.provider.alive == 1)
        await core.intake.accept(second)
        await until(lambda: len(core.replies.placed) == 2)
        await core.store.update(second.run_id, state=RunState.STOPPED)
        assert (await ended(core, first.run_id)).state is RunState.SUCCEEDED
        async with asyncio.timeout(5):
            while (await core.dispatcher.engine_states([second.run_id]))[
                second.run_id
            ] is not EngineState.ENDED:
                await asyncio.sleep(0.01)
        assert [run_id for run_id, _ in core.replies.finished] == [first.run_id]
        assert core.provider.created == 2  # one prepared the environment, one answered


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
            outcome=RunState.FAILED,
            error_code=ErrorCode.QUEUE_FULL,
        )
        await core.service.end_stopped(run)
        told = {result.error_code for _, result in core.replies.finished}
        assert told == {ErrorCode.QUEUE_FULL}
        assert (await ended(core, run.id)).state is RunState.FAILED


async def test_the_word_stop_stops_the_oldest_unfinished_run(tmp_path: Path) -> None:
    """Stopping a thread stops the run that is going, once; then there is nothing to stop."""
    async with core_of(tmp_path) as core:
        request = request_of([{"sleep": 60}])
        await core.intake.accept(request)
        await until(lambda: bool(core.replies.shown))
        assert await core.intake.stop_thread(request.thread, user="U1")
        assert not await core.intake.stop_thread(request.thread, user="U1")
        assert (await ended(core, request.run_id)).state is RunState.STOPPED


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


async def test_secrets_are_masked_before_they_are_stored_or_shown(tmp_path: Path) -> None:
    """A secret in the answer, in a tool's argument or in an error reaches neither record nor thread."""
    async with core_of(tmp_path) as core:
        request = request_of(
            [{"tool": "echo hunter2"}, {"text": "hunter2"}, {"final": "is hunter2"}]
        )
        await core.intake.accept(request)
        run = await ended(core, request.run_id)
        assert run.answer == "is [redacted]"
        assert "hunter2" not in repr(core.replies.shown) + repr(core.replies.finished)


async def test_advance_may_be_called_again_at_any_state(tmp_path: Path) -> None:
    """After a crash the record decides: a decided outcome is only told again, three attempts are enough."""
    async with core_of(tmp_path) as core:
        request = request_of(ANSWER)
        run = Run(id=request.run_id, request=request, created_at=request.received_at)
        await core.store.add(run)
        await core.store.update(
            run.id,
            state=RunState.ANSWERING,
            outcome=RunState.SUCCEEDED,
            answer="kept",
            reply_ts="9.1",
            attempt=1,
        )
        assert await core.service.advance(run.id) == Done()
        assert core.replies.finished[0][1].answer == "kept"
        assert core.provider.created == 0
        assert await core.service.advance(run.id) == Done()
        assert len(core.replies.finished) == 1

        worn = request_of(ANSWER, ts="1795302366.000100")
        await core.store.add(Run(id=worn.run_id, request=worn, created_at=worn.received_at))
        await core.store.update(worn.run_id, state=RunState.RUNNING, attempt=3, reply_ts="9.2")
        await core.service.advance(worn.run_id)
        ended_run = await core.store.get(worn.run_id)
        assert ended_run is not None
        assert ended_run.error_code is ErrorCode.INTERRUPTED


async def test_the_reconciler_ends_what_nobody_moves(tmp_path: Path) -> None:
    """A run whose engine knows nothing of it, and one that waited too long, are ended with their codes."""
    async with core_of(tmp_path, replace(POLICY, queue_timeout_s=5)) as core:
        reconciler = Reconciler(
            store=core.store,
            dispatcher=core.dispatcher,
            service=core.service,
            policy=replace(POLICY, queue_timeout_s=5),
            signals=StopSignals(),
            clock=SystemClock(),
        )
        orphan = make_request(ts="1795302300.000100")
        await core.store.add(Run(id=orphan.run_id, request=orphan, created_at=T0))
        await core.store.update(orphan.run_id, state=RunState.RUNNING, attempt=1, reply_ts="9.1")
        assert await reconciler.reconcile() == 1
        run = await core.store.get(orphan.run_id)
        assert run is not None
        assert run.error_code is ErrorCode.INTERRUPTED
        assert await reconciler.reconcile() == 0


class _FarAheadClock(SystemClock):
    """After a jump."""

    @override
    def now(self) -> datetime:
        return super().now() + timedelta(hours=1)


async def test_the_reconciler_leaves_a_run_that_goes_on_through_a_jump_of_the_clock(
    tmp_path: Path,
) -> None:
    """Past its deadline by the wall clock only: whoever is at it ends it. Elsewhere the wall clock is all there is."""
    async with core_of(tmp_path, POLICY) as core:
        signals = StopSignals()
        reconciler = Reconciler(
            store=core.store,
            dispatcher=core.dispatcher,
            service=core.service,
            policy=POLICY,
            signals=signals,
            clock=_FarAheadClock(),
        )
        request = request_of([{"sleep": 60}])
        await core.intake.accept(request)
        await until(lambda: bool(core.replies.shown))
        with signals.watch(request.run_id):
            assert await reconciler.reconcile() == 0
        assert await reconciler.reconcile() == 1
        run = await core.store.get(request.run_id)
        assert run is not None
        assert run.error_code is ErrorCode.SANDBOX_TIMEOUT
