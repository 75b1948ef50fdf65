"""A run to trace, what happens in it, and what of that went over the wire."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from app.playground.traces.prompts import PromptStore
from app.playground.traces.receiver import TraceStore
from app.runs.testing import ModelCall, Outcome, Run, RunState, RunTrace, StepKind, Usage
from app.tracing.langfuse import LangfuseTracer

MakeRun = Callable[..., Run]
OpenTracer = Callable[..., AbstractAsyncContextManager[LangfuseTracer]]

USAGE = Usage(input_tokens=30, output_tokens=5, cache_read_tokens=900, model_calls=1)
ANSWERED = Outcome(state=RunState.SUCCEEDED, answer="42", duration_s=8.25, steps=1, usage=USAGE)


@dataclass
class Wire:
    """The receiver's address, what it understood, the prompts that it has, the plain bodies it got, and the paths of all it has answered."""

    url: str
    store: TraceStore
    bodies: list[bytes] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    prompts: PromptStore = field(default_factory=PromptStore)

    def flat(self, trace_id: str) -> dict[str, dict[str, Any]]:
        """Observations by name."""
        tree = self.store.tree(trace_id)
        assert tree is not None
        found: dict[str, dict[str, Any]] = {}
        waiting = list(tree["observations"])
        while waiting:
            node = waiting.pop()
            found[node["name"]] = node
            waiting += node["children"]
        return found


def at(run: Run, seconds: float) -> datetime:
    return run.created_at + timedelta(seconds=seconds)


def tree_of(wire: Wire, trace_id: str) -> dict[str, Any]:
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
    trace.finish(ANSWERED, delivery="sent")


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
