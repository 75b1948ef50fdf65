"""What a run has cost, however it ends and however often its agent was started."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from app.errors import ErrorCode
from app.runs.testing import (
    Attempt,
    AttemptTime,
    Conversation,
    Display,
    ModelCall,
    ProgressTracker,
    Run,
    RunState,
    StopRequest,
    Usage,
)
from app.tracing.null import NullRunTrace
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from tests.building import T0, make_run
from tests.faults.building import POLICY, Core, JournalReplies, core_of, ended, request_of

CALL = ModelCall(
    model="priced-1",
    started_at=T0,
    first_token_at=None,
    ended_at=T0,
    status=200,
    usage=Usage(input_tokens=400_000),
)
"""Forty cents."""
SAID: dict[str, object] = {"cost_usd": 0.25}


async def _ran(core: Core, plan: Sequence[dict[str, object]]) -> Run:
    request = request_of(plan)
    await core.intake.accept(request)
    return await ended(core, request.run_id)


async def test_the_agents_own_sum_is_the_runs(tmp_path: Path) -> None:
    """Where it tells one; else the price table's, and nothing where the price is unknown."""
    async with core_of(tmp_path) as core:
        core.broker.model_calls = [CALL]
        assert (await _ran(core, [SAID, {"final": "x"}])).result.cost_usd == 0.25
    async with core_of(tmp_path) as core:
        core.broker.model_calls = [CALL, CALL]
        assert (await _ran(core, [{"final": "x"}])).result.cost_usd == 0.8
    async with core_of(tmp_path) as core:
        core.broker.model_calls = [replace(CALL, model="unpriced")]
        assert (await _ran(core, [{"final": "x"}])).result.cost_usd is None


async def test_a_run_whose_sandbox_is_lost_has_cost_what_its_calls_did(tmp_path: Path) -> None:
    """It has no word of its agent's."""
    async with core_of(tmp_path) as core:
        core.broker.model_calls = [CALL]
        core.provider.fail("spawn", 1, SandboxError(SandboxErrorCode.UNAVAILABLE, "gone"))
        run = await _ran(core, [SAID, {"final": "x"}])
        assert run.result.error_code is ErrorCode.SANDBOX_LOST
        assert run.result.cost_usd == 0.4


async def test_a_run_without_a_sandbox_has_cost_nothing(tmp_path: Path) -> None:
    """That is known: among those of unknown cost it would hide the real ones."""
    async with core_of(tmp_path) as core:
        await core.runtime.runner.prepare_environment()
        gone = SandboxError(SandboxErrorCode.UNAVAILABLE, "no room")
        for ahead in range(1, 10):
            core.provider.fail("create", core.provider.count("create") + ahead, gone)
        run = await _ran(core, [{"final": "x"}])
        assert run.result.error_code is ErrorCode.SANDBOX_CREATION_FAILED
        assert run.result.cost_usd == 0


async def test_an_agent_that_is_ended_has_not_told_all(tmp_path: Path) -> None:
    """The call that it was at is paid for, too."""
    async with core_of(tmp_path, replace(POLICY, idle_timeout_s=1)) as core:
        core.broker.model_calls = [CALL]
        run = await _ran(core, [SAID, {"sleep": 15}])
        assert (run.result.error_code, run.result.cost_usd) == (ErrorCode.AGENT_IDLE, 0.4)


async def test_a_run_that_nobody_ends_has_cost_what_its_calls_did(tmp_path: Path) -> None:
    """In its record and under its answer, although its agent's process went with another Orion."""
    async with core_of(tmp_path) as core:
        request = request_of([SAID])
        run = Run(id=request.run_id, request=request, created_at=request.received_at)
        await core.store.add(run)
        (await core.ports.ledger.begin_spending(replace(run, attempt=1))).count(CALL)
        await core.store.update(run.id, state=RunState.RUNNING, attempt=1, reply_ts="9.1")
        await core.service.end(run.id, ErrorCode.INTERRUPTED)
        run = await ended(core, request.run_id)
        assert (run.result.cost_usd, run.result.usage) == (0.4, replace(CALL.usage, model_calls=1))
        told = core.replies.finished[0][1]
        assert (told.error_code, told.cost_usd, told.usage.tokens) == (
            ErrorCode.INTERRUPTED,
            0.4,
            400_000,
        )


async def test_a_later_attempt_costs_what_all_of_them_did(tmp_path: Path) -> None:
    """The agent's own sum is that of its last process; one that is still not written counts, too."""
    async with core_of(tmp_path) as core:
        core.broker.model_calls = [CALL]
        request = request_of([SAID, {"final": "x"}])
        run = Run(id=request.run_id, request=request, created_at=request.received_at)
        await core.store.add(run)
        ledger = core.ports.ledger
        (await ledger.begin_spending(replace(run, attempt=1))).count(CALL)
        await core.store.update(run.id, state=RunState.RUNNING, attempt=1, reply_ts="9.1")
        await core.service.advance(run.id)
        run = await ended(core, run.id)
        assert (run.attempt, run.state, run.result.cost_usd) == (2, RunState.SUCCEEDED, 0.8)


@pytest.mark.parametrize(
    ("told", "cost_usd"),
    [
        ((), 0),
        ((None,), None),
        ((0.25,), 0.25),
        ((0.25, 0.5), 0.75),
        ((None, 0.5), 0.5),
        ((float("inf"),), None),
    ],
)
async def test_a_start_that_was_refused_and_the_next_one_are_added_up(
    told: tuple[float | None, ...], cost_usd: float | None
) -> None:
    """As far as anybody knows; with a price table, a start that told nothing makes that the better word."""
    attempt = Attempt(
        run=replace(make_run(), attempt=1),
        conversation=Conversation(request=make_run().request),
        trace=NullRunTrace(),
        stop=StopRequest(),
        display=Display(live=JournalReplies(), tracker=ProgressTracker(str)),
        time=AttemptTime(started_at=T0, deadline_at=T0),
    )
    for dollars in told:
        attempt.cost.begin_start()
        attempt.cost.report(dollars, is_cut_short=False)
    assert attempt.cost_usd == cost_usd
