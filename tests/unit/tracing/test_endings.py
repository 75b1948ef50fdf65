"""How a run's end looks in Langfuse: failed, stopped, not delivered, cut off and resumed."""

import asyncio
import json

import pytest

from app.errors import ErrorCode, OrionError
from app.runs.testing import Outcome, Run, RunState, RunTrace, StepKind
from app.tracing.observations import trace_id_for
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from tests.unit.tracing.building import ANSWERED, MakeRun, OpenTracer, Wire, at, traced, tree_of


async def test_failures_carry_their_code(
    wire: Wire, make_run: MakeRun, open_tracer: OpenTracer
) -> None:
    """Codes of every family, bugs, told failures and the run's own: level ERROR, `CODE: text`, metadata.error_code."""
    raised: dict[str, Exception] = {
        "orion": OrionError(ErrorCode.QUEUE_FULL, "600 are waiting"),
        "sandbox": SandboxError(SandboxErrorCode.CREATE_FAILED, "no slot"),
        "bug": KeyError("nope"),
    }

    def body(trace: RunTrace, _run: Run) -> None:
        for name, exc in raised.items():
            with pytest.raises(type(exc)), trace.step(name):
                raise exc
        with trace.step("told") as step:
            step.fail("AGENT_IDLE", "silent for 180 s")
        failed = Outcome(state=RunState.FAILED, error_code=ErrorCode.AGENT_IDLE)
        trace.finish(failed, delivery="failed(token_revoked)")

    found = wire.flat(await traced(open_tracer, wire.url, make_run(), body))
    seen = {
        name: (node["level"], node["status"], node["metadata"].get("error_code"))
        for name, node in found.items()
    }
    assert seen == {
        "orion": ("ERROR", "QUEUE_FULL: 600 are waiting", "QUEUE_FULL"),
        "sandbox": ("ERROR", "SANDBOX_CREATION_FAILED: no slot", "SANDBOX_CREATION_FAILED"),
        "bug": ("ERROR", "INTERNAL: KeyError: 'nope'", "INTERNAL"),
        "told": ("ERROR", "AGENT_IDLE: silent for 180 s", "AGENT_IDLE"),
        "run": ("ERROR", "AGENT_IDLE: silent for 180 s", "AGENT_IDLE"),
    }
    assert json.loads(found["run"]["output"])["delivery"] == "failed(token_revoked)"


async def test_stopped_and_undelivered_runs_are_warnings(
    wire: Wire, make_run: MakeRun, open_tracer: OpenTracer
) -> None:
    """Neither is a failure of the run, both are worth a look."""
    stopped, unsaid = make_run(), make_run()
    async with open_tracer(wire.url) as tracer:
        with tracer.trace(stopped) as trace:
            result = Outcome(state=RunState.STOPPED, stopped_by="U2")
            trace.finish(result, delivery="sent")
        with tracer.trace(unsaid) as trace:
            trace.finish(ANSWERED, delivery="failed(is_archived)")
    root = wire.flat(trace_id_for(stopped.id))["run"]
    assert (root["level"], root["status"]) == ("WARNING", "STOPPED: by U2")
    root = wire.flat(trace_id_for(unsaid.id))["run"]
    assert (root["level"], root["status"]) == ("WARNING", "DELIVERY: failed(is_archived)")


async def test_a_resumed_run_is_one_trace_with_one_root(
    wire: Wire, make_run: MakeRun, open_tracer: OpenTracer
) -> None:
    """Steps of an attempt that was cut off hang under the root that the next attempt, in another process, sends."""
    run = make_run()
    async with open_tracer(wire.url) as first:
        with (
            pytest.raises(asyncio.CancelledError),
            first.trace(run) as trace,
            trace.step("execute-agent"),
        ):
            raise asyncio.CancelledError
    cut = wire.flat(trace_id_for(run.id))
    assert list(cut) == ["execute-agent"]
    assert (cut["execute-agent"]["level"], cut["execute-agent"]["status"]) == (
        "WARNING",
        "CANCELLED",
    )
    async with open_tracer(
        wire.url
    ) as second:  # the same public key, after the first client's shutdown
        with second.trace(run) as trace:
            with trace.step("slack-update", StepKind.TOOL):
                pass
            trace.finish(ANSWERED, delivery="sent")
    (root,) = tree_of(wire, trace_id_for(run.id))["observations"]
    assert [node["name"] for node in root["children"]] == ["execute-agent", "slack-update"]


async def test_slices_of_a_run_are_one_trace(
    wire: Wire, make_run: MakeRun, open_tracer: OpenTracer
) -> None:
    """A step that two processes work on is sent once, at its end, from its beginning on; what each of them saw hangs under it."""
    run = make_run()
    for number in range(2):
        async with open_tracer(wire.url) as tracer:
            with tracer.trace(run) as trace:
                with trace.step("execute-agent", key="1", started_at=at(run, 1)) as step:
                    step.tool(
                        name=f"tool-{number}",
                        argument="",
                        started_at=at(run, 2),
                        ended_at=at(run, 3),
                        is_error=False,
                    )
                    if number == 0:
                        step.pause()
                if number == 0:
                    trace.pause()
                else:
                    trace.finish(ANSWERED, delivery="sent")
        if number == 0:
            assert list(wire.flat(trace_id_for(run.id))) == ["tool-0"]
    (root,) = tree_of(wire, trace_id_for(run.id))["observations"]
    (agent,) = root["children"]
    assert (root["name"], agent["name"]) == ("run", "execute-agent")
    assert sorted(child["name"] for child in agent["children"]) == ["tool-0", "tool-1"]


async def test_a_bug_that_leaves_the_run_marks_its_root(
    wire: Wire, make_run: MakeRun, open_tracer: OpenTracer
) -> None:
    """An exception that nobody turned into a result goes on, and the root says INTERNAL."""
    run = make_run()
    async with open_tracer(wire.url) as tracer:
        with pytest.raises(ZeroDivisionError), tracer.trace(run):
            raise ZeroDivisionError("oops")
    root = wire.flat(trace_id_for(run.id))["run"]
    assert (root["level"], root["status"]) == ("ERROR", "INTERNAL: ZeroDivisionError: oops")
