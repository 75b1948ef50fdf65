"""What a run looks like in Langfuse: the real SDK against a receiver that is as strict as the server."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from langfuse import Langfuse, propagate_attributes
from opentelemetry.sdk.trace import TracerProvider

from app.errors import ErrorCode, OrionError
from app.redaction import Masker
from app.runs.model import ModelCall, Run, RunId, RunResult, RunState, Usage
from app.runs.ports import RunTrace, StepKind, Tracer
from app.tracing.ids import trace_id_for
from app.tracing.langfuse import LangfuseTracer
from app.tracing.null import NullTracer
from sandbox_runtime.errors import SandboxError, SandboxErrorCode

if TYPE_CHECKING:
    from tests.unit.tracing.conftest import Wire

MakeRun = Callable[..., Run]
OpenTracer = Callable[..., AbstractAsyncContextManager[LangfuseTracer]]

CANARY = "canary-7f3a91c2e5"
ANSWERED = RunResult(outcome=RunState.SUCCEEDED, answer="42", duration_s=8.25, steps=1)
USAGE = Usage(input_tokens=30, output_tokens=5, cache_read_tokens=900, model_calls=1)


def at(run: Run, seconds: float) -> datetime:
    return run.created_at + timedelta(seconds=seconds)


def tree_of(wire: "Wire", trace_id: str) -> dict[str, Any]:
    tree = wire.store.tree(trace_id)
    assert tree is not None
    return tree


def call(run: Run, **changes: object) -> ModelCall:
    values: dict[str, Any] = {
        "model": "claude-sonnet-4-5",
        "started_at": at(run, 2),
        "first_token_at": at(run, 2.5),
        "ended_at": at(run, 4),
        "status": 200,
        "usage": USAGE,
    }
    return ModelCall(**(values | changes))


def go_through(trace: RunTrace, run: Run) -> None:
    trace.past_step("queue-wait", started_at=at(run, 0), ended_at=at(run, 1))
    with trace.step("sandbox-create") as step:
        step.attempt(
            number=1, started_at=at(run, 1), ended_at=at(run, 1.5), error="CREATE_FAILED: x"
        )
        step.attempt(number=2, started_at=at(run, 1.5), ended_at=at(run, 2), error="")
        step.set(sandbox_id="sb-1")
    with trace.step("write-script", StepKind.TOOL):
        pass
    with trace.step("execute-agent") as step:
        step.generation(call(run))
        step.tool(
            name="shell", argument="ls", started_at=at(run, 4), ended_at=at(run, 5), is_error=False
        )
    trace.finish(ANSWERED, usage=USAGE, delivery="sent")


async def traced(
    open_tracer: OpenTracer,
    url: str,
    run: Run,
    body: Callable[[RunTrace, Run], None],
    **settings: object,
) -> str:
    async with open_tracer(url, **settings) as tracer:
        with tracer.trace(run) as trace:
            body(trace, run)
        return tracer.trace_id(run.id)


async def test_a_run_is_a_tree_of_typed_observations(
    wire: "Wire", make_run: MakeRun, open_tracer: OpenTracer
) -> None:
    """The root is an agent that began when the run was accepted; steps, attempts, model and tool calls hang below."""
    run = make_run()
    trace_id = await traced(open_tracer, wire.url, run, go_through)
    tree = tree_of(wire, trace_id)

    def shape(nodes: list[dict[str, Any]]) -> list[Any]:
        return [(node["name"], node["type"], shape(node["children"])) for node in nodes]

    assert shape(tree["observations"]) == [
        (
            "run",
            "agent",
            [
                ("queue-wait", "span", []),
                ("sandbox-create", "span", [("attempt-1", "tool", []), ("attempt-2", "tool", [])]),
                ("write-script", "tool", []),
                (
                    "execute-agent",
                    "span",
                    [("model-call", "generation", []), ("shell", "tool", [])],
                ),
            ],
        )
    ]
    (root,) = tree["observations"]
    assert root["parent_id"] == ""
    assert root["start_ms"] == pytest.approx(run.created_at.timestamp() * 1000, abs=0.01)
    wait = root["children"][0]
    assert wait["end_ms"] - wait["start_ms"] == pytest.approx(1000, abs=0.01)


async def test_every_observation_carries_user_session_and_tags(
    wire: "Wire", make_run: MakeRun, open_tracer: OpenTracer
) -> None:
    """Langfuse finds traces by the attributes of each observation, so each has them; only the root is the app's root."""
    run = make_run()
    found = wire.flat(
        await traced(open_tracer, wire.url, run, go_through, environment="staging", release="r1")
    )
    assert len(found) == 9
    for node in found.values():
        assert (node["user"], node["session"]) == ("U1", "T1-C1-1732000000.000100")
        assert node["tags"] == ["anthropic", "local", "channel"]
        assert node["trace_metadata"] == {"run_id": run.id}
        assert (node["environment"], node["release"]) == ("staging", "r1")
    assert [name for name, node in found.items() if node["is_app_root"]] == ["run"]


async def test_the_root_tells_what_was_asked_and_how_it_ended(
    wire: "Wire", make_run: MakeRun, open_tracer: OpenTracer
) -> None:
    """Input, ids, sizes, usage, delivery and answer stand on the root; the sandbox learnt later, too."""
    run = make_run()
    root = wire.flat(await traced(open_tracer, wire.url, run, go_through))["run"]
    assert root["input"] == "what is 6 * 7?"
    assert root["metadata"] == {
        "run_id": run.id,
        "channel": "C1",
        "message_ts": run.request.message_ts,
        "thread_ts": "1732000000.000100",
        "attempt": 1,
        "model": "claude-sonnet-4-5",
        "sandbox_id": "sb-1",
        "delivery": "sent",
    }
    assert json.loads(root["output"]) == {
        "success": True,
        "outcome": "succeeded",
        "response_length": 2,
        "duration_s": 8.25,
        "steps": 1,
        "delivery": "sent",
        "model_calls": 1,
        "usage": {
            "input": 30,
            "output": 5,
            "cache_read_input_tokens": 900,
            "cache_creation_input_tokens": 0,
        },
        "answer": "42",
    }
    assert root["level"] == "DEFAULT"


async def test_a_generation_has_model_usage_and_first_token(
    wire: "Wire", make_run: MakeRun, open_tracer: OpenTracer
) -> None:
    """Usage has the keys that Langfuse prices; start, first token and end are the call's own; a refusal is an error."""

    def body(trace: RunTrace, run: Run) -> None:
        with trace.step("execute-agent") as step:
            step.generation(call(run))
        with trace.step("again") as step:
            step.generation(
                call(
                    run,
                    model="m2",
                    status=529,
                    error="overloaded_error",
                    usage=Usage(),
                    first_token_at=None,
                )
            )

    run = make_run()
    trace_id = await traced(open_tracer, wire.url, run, body)
    (root,) = tree_of(wire, trace_id)["observations"]
    (good,), (bad,) = (step["children"] for step in root["children"])
    assert good["usage"] == {
        "input": 30,
        "output": 5,
        "cache_read_input_tokens": 900,
        "cache_creation_input_tokens": 0,
    }
    assert good["model"] == "claude-sonnet-4-5"
    assert good["end_ms"] - good["start_ms"] == pytest.approx(2000, abs=0.01)
    first_token_at = datetime.fromisoformat(good["first_token_at"])
    assert abs(first_token_at - at(run, 2.5)) < timedelta(milliseconds=1)
    assert (bad["level"], bad["status"]) == ("ERROR", "HTTP 529: overloaded_error")
    assert bad["usage"] == {}


async def test_failures_carry_their_code(
    wire: "Wire", make_run: MakeRun, open_tracer: OpenTracer
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
        failed = RunResult(outcome=RunState.FAILED, error_code=ErrorCode.AGENT_IDLE)
        trace.finish(failed, usage=Usage(), delivery="failed(token_revoked)")

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
    wire: "Wire", make_run: MakeRun, open_tracer: OpenTracer
) -> None:
    """Neither is a failure of the run, both are worth a look."""
    stopped, unsaid = make_run(), make_run()
    async with open_tracer(wire.url) as tracer:
        with tracer.trace(stopped) as trace:
            result = RunResult(outcome=RunState.STOPPED, stopped_by="U2")
            trace.finish(result, usage=Usage(), delivery="sent")
        with tracer.trace(unsaid) as trace:
            trace.finish(ANSWERED, usage=Usage(), delivery="failed(is_archived)")
    root = wire.flat(trace_id_for(stopped.id))["run"]
    assert (root["level"], root["status"]) == ("WARNING", "STOPPED: by U2")
    root = wire.flat(trace_id_for(unsaid.id))["run"]
    assert (root["level"], root["status"]) == ("WARNING", "DELIVERY: failed(is_archived)")


async def test_a_resumed_run_is_one_trace_with_one_root(
    wire: "Wire", make_run: MakeRun, open_tracer: OpenTracer
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
            trace.finish(ANSWERED, usage=Usage(), delivery="sent")
    (root,) = tree_of(wire, trace_id_for(run.id))["observations"]
    assert [node["name"] for node in root["children"]] == ["execute-agent", "slack-update"]


async def test_a_bug_that_leaves_the_run_marks_its_root(
    wire: "Wire", make_run: MakeRun, open_tracer: OpenTracer
) -> None:
    """An exception that nobody turned into a result goes on, and the root says INTERNAL."""
    run = make_run()
    async with open_tracer(wire.url) as tracer:
        with pytest.raises(ZeroDivisionError), tracer.trace(run):
            raise ZeroDivisionError("oops")
    root = wire.flat(trace_id_for(run.id))["run"]
    assert (root["level"], root["status"]) == ("ERROR", "INTERNAL: ZeroDivisionError: oops")


async def test_a_request_never_becomes_the_parent(
    wire: "Wire", make_run: MakeRun, open_tracer: OpenTracer
) -> None:
    """With another OpenTelemetry span current, and Langfuse attributes propagated, the root stays a root of its own."""
    run = make_run()
    outer = TracerProvider().get_tracer("web")
    async with open_tracer(wire.url) as tracer:
        with (
            outer.start_as_current_span("POST /slack/events"),
            propagate_attributes(user_id="someone-else", tags=["foreign"]),
            tracer.trace(run) as trace,
        ):
            go_through(trace, run)
    tree = tree_of(wire, trace_id_for(run.id))
    assert [node["name"] for node in tree["observations"]] == ["run"]
    for node in wire.flat(trace_id_for(run.id)).values():
        assert node["user"] == "U1"
        assert node["tags"] == ["anthropic", "local", "channel"]
    assert len(wire.store.rows()) == 1


async def test_no_secret_is_on_the_wire(
    wire: "Wire", make_run: MakeRun, open_tracer: OpenTracer
) -> None:
    """A known secret in every field that takes a text, exceptions included, is in no request body."""
    run = make_run(
        text=f"use {CANARY}",
        user=CANARY,
        agent=CANARY,
        provider=CANARY,
        model=CANARY,
        sandbox_id=CANARY,
        thread_ts=CANARY,
        channel=CANARY,
    )

    def body(trace: RunTrace, run: Run) -> None:
        trace.past_step(CANARY, started_at=at(run, 0), ended_at=at(run, 1), note=CANARY)
        with trace.step(f"step {CANARY}") as step:
            step.set(note=CANARY, api_key="plain")
            step.attempt(number=1, started_at=at(run, 1), ended_at=at(run, 2), error=CANARY)
            step.tool(
                name=CANARY,
                argument=CANARY,
                started_at=at(run, 1),
                ended_at=at(run, 2),
                is_error=True,
            )
            step.generation(call(run, model=CANARY, status=500, error=CANARY))
            step.fail(CANARY, CANARY)
        with pytest.raises(RuntimeError), trace.step("raises"):
            raise RuntimeError(f"token {CANARY}") from ValueError(CANARY)
        trace.finish(
            RunResult(
                outcome=RunState.FAILED, answer="x" * 32_760 + CANARY, error_code=ErrorCode.INTERNAL
            ),
            usage=Usage(),
            delivery=f"failed({CANARY})",
        )

    async with open_tracer(wire.url, masker=Masker([CANARY])) as tracer:
        with tracer.trace(run) as trace:
            body(trace, run)
        with pytest.raises(RuntimeError), tracer.trace(make_run()):
            raise RuntimeError(CANARY)
        tracer.score(run.id, user=CANARY, is_positive=True)
    assert len(wire.flat(trace_id_for(run.id))) >= 6
    sent = b"".join(wire.bodies)
    assert b"[redacted:secret]" in sent
    assert b"feedback" in sent
    assert CANARY[:-3].encode() not in sent


async def test_content_stays_home_when_switched_off(
    wire: "Wire", make_run: MakeRun, open_tracer: OpenTracer
) -> None:
    """Without content neither prompt nor answer nor a tool's argument leaves; sizes and codes do."""
    words = ("prompt-words", "answer-words", "argument-words")
    run = make_run(text=words[0])

    def body(trace: RunTrace, run: Run) -> None:
        with trace.step("execute-agent") as step:
            step.tool(
                name="shell",
                argument=words[2],
                started_at=at(run, 1),
                ended_at=at(run, 2),
                is_error=False,
            )
        result = RunResult(outcome=RunState.SUCCEEDED, answer=words[1])
        trace.finish(result, usage=Usage(), delivery="sent")

    found = wire.flat(await traced(open_tracer, wire.url, run, body, trace_content=False))
    sent = b"".join(wire.bodies)
    assert not any(word.encode() in sent for word in words)
    assert json.loads(found["run"]["input"]) == {"prompt_length": 12}
    assert json.loads(found["run"]["output"])["response_length"] == 12
    assert found["shell"]["metadata"] == {"argument_length": 14}


async def test_content_is_clipped_and_media_removed(
    wire: "Wire", make_run: MakeRun, open_tracer: OpenTracer
) -> None:
    """32 KiB of a text pass, and no base64 that Langfuse would upload to its object storage."""
    run = make_run(text="é" * 40_000, user="U" * 300)

    def body(trace: RunTrace, _run: Run) -> None:
        result = RunResult(
            outcome=RunState.SUCCEEDED, answer="data:image/png;base64," + "iVBORw0KGgo" * 9
        )
        trace.finish(result, usage=Usage(), delivery="sent")

    root = wire.flat(await traced(open_tracer, wire.url, run, body))["run"]
    assert root["input"].endswith("[clipped: 80000 bytes]")
    assert 32_000 < len(root["input"].encode()) < 33_000
    assert json.loads(root["output"])["answer"] == "[media removed]"
    assert len(root["user"]) == 200


async def test_feedback_is_a_score_that_the_latest_replaces(
    wire: "Wire", make_run: MakeRun, open_tracer: OpenTracer
) -> None:
    """One score per person and run, BOOLEAN, on the run's trace; a second opinion replaces the first."""
    run = make_run()
    async with open_tracer(wire.url) as tracer:
        with tracer.trace(run) as trace:
            trace.finish(ANSWERED, usage=Usage(), delivery="sent")
        tracer.score(run.id, user="U1", is_positive=True)
        tracer.score(run.id, user="U2", is_positive=True)
        await asyncio.sleep(1.2)  # the SDK sends scores once a second
        tracer.score(run.id, user="U1", is_positive=False)
    scores = tree_of(wire, trace_id_for(run.id))["scores"]
    assert {
        score["id"]: (score["name"], score["value"], score["dataType"]) for score in scores
    } == {
        f"{run.id}-fb-U1": ("feedback", 0.0, "BOOLEAN"),
        f"{run.id}-fb-U2": ("feedback", 1.0, "BOOLEAN"),
    }


async def test_trace_ids_are_langfuses_own(
    make_run: MakeRun, wire: "Wire", open_tracer: OpenTracer
) -> None:
    """Both tracers and Langfuse's own function derive the same id from a run id."""
    async with open_tracer(wire.url) as tracer:
        tracers: list[Tracer] = [tracer, NullTracer()]
        for each in tracers:
            assert each.trace_id(RunId("run_1")) == Langfuse.create_trace_id(seed="run_1")
    run = make_run()
    with NullTracer().trace(run) as trace:
        go_through(trace, run)
    with pytest.raises(KeyError), NullTracer().trace(run) as trace, trace.step("x"):
        raise KeyError


def test_the_null_tracer_needs_no_langfuse() -> None:
    """A service without Langfuse does not pay for importing it."""
    program = "import sys, app.tracing, app.tracing.null; print(sorted({'langfuse', 'opentelemetry'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, timeout=50
    )
    assert done.stdout.decode().strip() == "[]"
