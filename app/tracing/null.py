"""The tracer of an installation without Langfuse: nothing leaves, the ids are the same."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from app.runs.model import ModelCall, Outcome, Run
from app.runs.ports import RunTrace, StepKind, TraceStep
from app.runs.request import RunId
from app.tracing.observations import trace_id_for


class NullStep:
    def set(self, **metadata: str | float | bool) -> None: ...

    def fail(self, code: str, detail: str) -> None: ...

    def attempt(
        self, *, number: int, started_at: datetime, ended_at: datetime, error: str
    ) -> None: ...

    def tool(
        self, *, name: str, argument: str, started_at: datetime, ended_at: datetime, is_error: bool
    ) -> None: ...

    def generation(self, call: ModelCall) -> None: ...

    def pause(self) -> None: ...


class NullRunTrace:
    @contextmanager
    def step(
        self,
        name: str,  # noqa: ARG002 - nothing is told
        kind: StepKind = StepKind.SPAN,  # noqa: ARG002
        *,
        key: str = "",  # noqa: ARG002
        started_at: datetime | None = None,  # noqa: ARG002
    ) -> Iterator[TraceStep]:
        yield NullStep()

    def pause(self) -> None: ...

    def past_step(
        self, name: str, *, started_at: datetime, ended_at: datetime, **metadata: str | float | bool
    ) -> None: ...

    def finish(self, outcome: Outcome, *, delivery: str) -> None: ...


class NullTracer:
    def trace_id(self, run_id: RunId) -> str:
        return trace_id_for(run_id)

    @contextmanager
    def trace(self, run: Run) -> Iterator[RunTrace]:  # noqa: ARG002 - nothing is told
        yield NullRunTrace()

    def link(self, trace_id: str) -> str:
        del trace_id
        return ""

    def score(self, run_id: RunId, *, user: str, is_positive: bool, comment: str = "") -> None: ...
