"""A tracer around another one that takes the figures of what passes it, and keeps its steps."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from app.metrics import Meters
from app.runs.model import ModelCall, Outcome, Run
from app.runs.ports import RunTrace, StepKind, Tracer, TraceStep
from app.runs.request import RunId
from app.tracing.steps import StepKeeper, StepRecord

PLACED, WAITED = "place-message", "queue-wait"
"""Steps by `app.runs.delivery.trace_waiting`."""


class MeasuredTracer:
    """Implements Tracer."""

    def __init__(self, tracer: Tracer, meters: Meters, keeper: StepKeeper | None = None) -> None:
        """`keeper`: None = steps are not kept."""
        self._tracer = tracer
        self._meters = meters
        self._keeper = keeper

    def trace_id(self, run_id: RunId) -> str:
        return self._tracer.trace_id(run_id)

    @contextmanager
    def trace(self, run: Run) -> Iterator[RunTrace]:
        with self._tracer.trace(run) as trace:
            measured = _MeasuredTrace(trace, run, self._meters)
            try:
                yield measured
            finally:
                if self._keeper is not None:
                    self._keeper.keep(run.id, measured.steps)

    def link(self, trace_id: str) -> str:
        return self._tracer.link(trace_id)

    def score(self, run_id: RunId, *, user: str, is_positive: bool, comment: str = "") -> None:
        self._tracer.score(run_id, user=user, is_positive=is_positive, comment=comment)


class _MeasuredTrace:
    """Implements RunTrace."""

    def __init__(self, trace: RunTrace, run: Run, meters: Meters) -> None:
        self._trace = trace
        self._run = run
        self._meters = meters
        self._has_token = run.attempt > 1
        self.steps: list[StepRecord] = []
        """That are over."""

    @contextmanager
    def step(
        self,
        name: str,
        kind: StepKind = StepKind.SPAN,
        *,
        key: str = "",
        started_at: datetime | None = None,
    ) -> Iterator[TraceStep]:
        began = started_at or datetime.now(UTC)
        measured: _MeasuredStep | None = None
        error = ""
        try:
            with self._trace.step(name, kind, key=key, started_at=started_at) as step:
                measured = _MeasuredStep(step, self, name)
                yield measured
        except BaseException as exc:
            error = str(getattr(exc, "code", "")) or type(exc).__name__
            raise
        finally:
            if measured is not None and not measured.is_paused:
                error = measured.error or error
                self.note(name, began, datetime.now(UTC), error=error)

    def pause(self) -> None:
        self._trace.pause()

    def past_step(
        self, name: str, *, started_at: datetime, ended_at: datetime, **metadata: str | float | bool
    ) -> None:
        self._trace.past_step(name, started_at=started_at, ended_at=ended_at, **metadata)
        self.note(name, started_at, ended_at)
        took_s = (ended_at - started_at).total_seconds()
        if name == PLACED:
            self._meters.placed(took_s)
        elif name == WAITED:
            self._meters.begun(took_s)

    def finish(self, outcome: Outcome, *, delivery: str) -> None:
        self._trace.finish(outcome, delivery=delivery)
        self._meters.ended(
            agent=self._run.agent,
            provider=self._run.provider,
            outcome=outcome.state,
            code=outcome.error_code or "",
            seconds=outcome.duration_s,
        )

    def note(
        self,
        name: str,
        started_at: datetime,
        ended_at: datetime,
        *,
        parent: str = "",
        error: str = "",
    ) -> None:
        """Notes a step that is over."""
        self.steps.append(
            StepRecord(
                name=name, parent=parent, started_at=started_at, ended_at=ended_at, error=error
            )
        )

    def note_call(self, call: ModelCall) -> None:
        """Takes the time of the first token, once."""
        if call.first_token_at is not None and not self._has_token:
            self._has_token = True
            since = call.first_token_at - self._run.created_at
            self._meters.first_token(self._run.agent, since.total_seconds())


class _MeasuredStep:
    """Implements TraceStep."""

    def __init__(self, step: TraceStep, trace: _MeasuredTrace, name: str) -> None:
        self._step = step
        self._trace = trace
        self._name = name
        self.error = ""
        self.is_paused = False

    def set(self, **metadata: str | float | bool) -> None:
        self._step.set(**metadata)

    def fail(self, code: str, detail: str) -> None:
        self._step.fail(code, detail)
        self.error = code

    def attempt(self, *, number: int, started_at: datetime, ended_at: datetime, error: str) -> None:
        self._step.attempt(number=number, started_at=started_at, ended_at=ended_at, error=error)

    def tool(
        self, *, name: str, argument: str, started_at: datetime, ended_at: datetime, is_error: bool
    ) -> None:
        self._step.tool(
            name=name,
            argument=argument,
            started_at=started_at,
            ended_at=ended_at,
            is_error=is_error,
        )
        error = "failed" if is_error else ""
        self._trace.note(name, started_at, ended_at, parent=self._name, error=error)

    def generation(self, call: ModelCall) -> None:
        self._step.generation(call)
        self._trace.note_call(call)
        is_good = 200 <= call.status < 300 and not call.error  # noqa: PLR2004 - HTTP's success class
        self._trace.note(
            call.model,
            call.started_at,
            call.ended_at,
            parent=self._name,
            error="" if is_good else call.error or f"HTTP {call.status}",
        )

    def pause(self) -> None:
        self._step.pause()
        self.is_paused = True
