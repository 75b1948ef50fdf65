"""What of a run's content leaves: no secret, nothing when it is switched off, no more than fits."""

import json

import pytest

from app.errors import ErrorCode
from app.redaction import Masker
from app.runs.testing import Outcome, Run, RunState, RunTrace
from app.tracing.observations import trace_id_for
from tests.unit.tracing.building import MakeRun, OpenTracer, Wire, at, call, traced

CANARY = "canary-7f3a91c2e5"


async def test_no_secret_is_on_the_wire(
    wire: Wire, make_run: MakeRun, open_tracer: OpenTracer
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
            Outcome(
                state=RunState.FAILED, answer="x" * 32_760 + CANARY, error_code=ErrorCode.INTERNAL
            ),
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
    wire: Wire, make_run: MakeRun, open_tracer: OpenTracer
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
        result = Outcome(state=RunState.SUCCEEDED, answer=words[1])
        trace.finish(result, delivery="sent")

    found = wire.flat(await traced(open_tracer, wire.url, run, body, trace_content=False))
    sent = b"".join(wire.bodies)
    assert not any(word.encode() in sent for word in words)
    assert json.loads(found["run"]["input"]) == {"prompt_length": 12}
    assert json.loads(found["run"]["output"])["response_length"] == 12
    assert found["shell"]["metadata"] == {"argument_length": 14}


async def test_content_is_clipped_and_media_removed(
    wire: Wire, make_run: MakeRun, open_tracer: OpenTracer
) -> None:
    """32 KiB of a text pass, and no base64 that Langfuse would upload to its object storage."""
    run = make_run(text="é" * 40_000, user="U" * 300)

    def body(trace: RunTrace, _run: Run) -> None:
        result = Outcome(
            state=RunState.SUCCEEDED, answer="data:image/png;base64," + "iVBORw0KGgo" * 9
        )
        trace.finish(result, delivery="sent")

    root = wire.flat(await traced(open_tracer, wire.url, run, body))["run"]
    assert root["input"].endswith("[clipped: 80000 bytes]")
    assert 32_000 < len(root["input"].encode()) < 33_000
    assert json.loads(root["output"])["answer"] == "[media removed]"
    assert len(root["user"]) == 200
