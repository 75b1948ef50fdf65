"""Figures are taken of what passes to a tracer, and all of it passes."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs
from typing_extensions import override

from app.aio import open_task_group
from app.errors import ErrorCode
from app.metrics import Meters
from app.runs.testing import ModelCall, Outcome, RunFileKind, RunId, RunState, Usage
from app.store.memory import MemoryRunFiles
from app.tracing.measured import MeasuredTracer
from app.tracing.null import NullTracer
from app.tracing.steps import StepKeeper, read_steps
from tests.building import T0, make_run

RUN = replace(make_run(), agent="claude", provider="local", attempt=1)


def call_at(seconds: float | None) -> ModelCall:
    first = None if seconds is None else RUN.created_at + timedelta(seconds=seconds)
    return ModelCall(
        model="m",
        usage=Usage(),
        status=200,
        error="",
        started_at=T0,
        ended_at=T0,
        first_token_at=first,
    )


def sample(meters: Meters, name: str, **labels: str) -> Any:
    return meters.registry.get_sample_value(name, labels)


def test_a_run() -> None:
    """Its first sign, its wait, its first token, its duration and how it ended, each once."""
    meters = Meters()
    with MeasuredTracer(NullTracer(), meters).trace(RUN) as trace:
        began, placed = RUN.created_at, RUN.created_at + timedelta(seconds=0.3)
        trace.past_step("place-message", started_at=began, ended_at=placed)
        trace.past_step("queue-wait", started_at=began, ended_at=placed + timedelta(seconds=1))
        trace.past_step("something", started_at=began, ended_at=placed)
        with trace.step("agent") as step:
            for seconds in (None, 2.5, 4.0):
                step.generation(call_at(seconds))
        outcome = Outcome(state=RunState.FAILED, error_code=ErrorCode.AGENT_IDLE, duration_s=7.25)
        trace.finish(outcome, delivery="sent")
    assert sample(meters, "orion_first_sign_seconds_sum") == pytest.approx(0.3)
    assert sample(meters, "orion_queue_wait_seconds_sum") == pytest.approx(1.3)
    assert sample(meters, "orion_first_token_seconds_sum", agent="claude") == pytest.approx(2.5)
    ended = {"agent": "claude", "provider": "local", "outcome": "failed"}
    assert sample(meters, "orion_run_duration_seconds_sum", **ended) == pytest.approx(7.25)
    assert sample(meters, "orion_run_errors_total", code="AGENT_IDLE") == 1


def test_a_later_attempt_has_no_first_token() -> None:
    """Its people have seen that of the one before."""
    meters = Meters()
    tracer = MeasuredTracer(NullTracer(), meters)
    with tracer.trace(replace(RUN, attempt=2)) as trace, trace.step("agent") as step:
        step.generation(call_at(1.0))
    assert sample(meters, "orion_first_token_seconds_sum", agent="claude") is None


async def test_steps_are_kept_with_the_record() -> None:
    """Of all slices and attempts, in the order in which they ended; what is left open for the next slice is its."""
    files = MemoryRunFiles()
    async with open_task_group() as group:
        tracer = MeasuredTracer(NullTracer(), Meters(), StepKeeper(files, group=group))
        with tracer.trace(RUN) as trace:
            trace.past_step("queue-wait", started_at=T0, ended_at=T0 + timedelta(seconds=2))
            with pytest.raises(ValueError), trace.step("sandbox-create"):  # noqa: PT011 - any
                raise ValueError
            with trace.step("execute-agent") as step:
                step.generation(call_at(1.0))
                step.generation(replace(call_at(1.0), status=529, error="overloaded_error"))
                moment = {"started_at": T0, "ended_at": T0}
                step.tool(name="shell", argument="secret", is_error=True, **moment)
                step.pause()
    async with open_task_group() as group:
        tracer = MeasuredTracer(NullTracer(), Meters(), StepKeeper(files, group=group))
        with tracer.trace(RUN) as trace, trace.step("execute-agent") as step:
            step.fail("AGENT_IDLE", "nothing came")
    kept = await files.load(RUN.id, RunFileKind.STEPS)
    assert [(one.name, one.parent, one.error) for one in read_steps(kept)] == [
        ("queue-wait", "", ""),
        ("sandbox-create", "", "ValueError"),
        ("m", "execute-agent", ""),
        ("m", "execute-agent", "overloaded_error"),
        ("shell", "execute-agent", "failed"),
        ("execute-agent", "", "AGENT_IDLE"),
    ]
    assert read_steps(kept)[0].duration_s == 2
    assert "secret" not in kept


class SickFiles(MemoryRunFiles):
    @override
    async def append(self, run_id: RunId, kind: RunFileKind, line: str) -> None:
        raise OSError("the database is away")


async def test_a_sick_database_costs_a_run_nothing() -> None:
    """Only its steps, which is said."""
    with capture_logs() as logs:
        async with open_task_group() as group:
            tracer = MeasuredTracer(NullTracer(), Meters(), StepKeeper(SickFiles(), group=group))
            with tracer.trace(RUN) as trace, trace.step("execute-agent"):
                pass
    assert [line["event"] for line in logs] == ["steps.not_kept"]
