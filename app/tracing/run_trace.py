"""The observations of one run, made as its steps come and go; see `app.tracing.langfuse` for why in this way."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from opentelemetry import trace as otel
from opentelemetry.context import Context
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from typing_extensions import override

from app.errors import FROM_AGENT, FROM_SANDBOX, ErrorCode
from app.log import get_logger
from app.runs.model import ModelCall, Run, RunResult, Usage
from app.runs.ports import StepKind, TraceStep
from app.tracing.ids import root_span_id_for, trace_id_for
from app.tracing.observations import (
    Attributes,
    Border,
    failure_attributes,
    generation_attributes,
    nanoseconds,
    result_attributes,
    root_attributes,
    shared_attributes,
    warning_attributes,
)

_log = get_logger(__name__)

_NO_PARENT: Final = otel.set_span_in_context(otel.INVALID_SPAN, Context())
"""Not merely empty: an empty context is false, and the SDK's processor would look at the current one instead."""
_CODES: Final[dict[str, ErrorCode]] = {
    code.value: ours for table in (FROM_SANDBOX, FROM_AGENT) for code, ours in table.items()
}


class RunIds(RandomIdGenerator):
    """Gives the root its ids, everything else random ones."""

    root: ContextVar[tuple[int, int] | None] = ContextVar("root", default=None)

    @override
    def generate_trace_id(self) -> int:
        root = self.root.get()
        return root[0] if root else super().generate_trace_id()

    @override
    def generate_span_id(self) -> int:
        root = self.root.get()
        return root[1] if root else super().generate_span_id()


@contextmanager
def swallowing(act: str) -> Iterator[None]:
    """The border: tracing must never fail a run, not even by a bug of its own."""
    try:
        yield
    except Exception:  # noqa: BLE001 - see above; CancelledError passes
        _log.exception("trace.bug_swallowed", act=act)


@dataclass(slots=True, kw_only=True)
class _Scene:
    """What all observations of one trace share."""

    tracer: otel.Tracer
    border: Border
    shared: Attributes
    root: otel.Span
    detail: str = ""
    """Of the step that failed last: says more than the run's bare code."""

    def open(
        self, name: str, attributes: Attributes, *, parent: otel.Span, at: datetime | None = None
    ) -> otel.Span:
        return self.tracer.start_span(
            self.border.name(name),
            context=otel.set_span_in_context(parent, Context()),
            start_time=nanoseconds(at) if at else None,
            attributes={**self.shared, **attributes},
        )

    def tell(
        self,
        name: str,
        attributes: Attributes,
        *,
        parent: otel.Span,
        started_at: datetime,
        ended_at: datetime,
    ) -> None:
        """An observation that is over."""
        span = self.open(name, attributes, parent=parent, at=started_at)
        span.end(end_time=nanoseconds(max(started_at, ended_at)))

    def note(self, span: otel.Span, metadata: dict[str, str | float | bool]) -> None:
        attributes = self.border.metadata(metadata)
        span.set_attributes(attributes)
        sandbox = {key: value for key, value in attributes.items() if key.endswith(".sandbox_id")}
        # The run's sandbox is known only after the root began.
        self.root.set_attributes(sandbox)


class LangfuseRunTrace:
    def __init__(self, run: Run, *, tracer: otel.Tracer, border: Border) -> None:
        self._run = run
        self._scene = _Scene(tracer=tracer, border=border, shared={}, root=otel.INVALID_SPAN)
        self._is_finished = False
        self.is_interrupted = False

    def begin(self) -> None:
        run, scene = self._run, self._scene
        scene.shared = shared_attributes(run, scene.border)
        ids = RunIds.root.set((int(trace_id_for(run.id), 16), root_span_id_for(run.id)))
        try:
            scene.root = scene.tracer.start_span(
                "run",
                context=_NO_PARENT,
                start_time=nanoseconds(run.created_at),
                attributes={**scene.shared, **root_attributes(run, scene.border)},
            )
        finally:
            RunIds.root.reset(ids)

    def fail(self, exc: BaseException) -> None:
        if not self._is_finished:
            code, detail = _describe(exc)
            self._scene.root.set_attributes(failure_attributes(code, detail, self._scene.border))

    def end(self) -> None:
        if self._is_finished or not self.is_interrupted:
            # The run may have been accepted by a machine whose clock is ahead.
            self._scene.root.end(end_time=max(time.time_ns(), nanoseconds(self._run.created_at)))

    @contextmanager
    def step(self, name: str, kind: StepKind = StepKind.SPAN) -> Iterator[TraceStep]:
        step = LangfuseStep(self._scene, name=name)
        with swallowing(name):
            step.begin(kind)
        try:
            yield step
        except BaseException as exc:
            with swallowing(name):
                step.fail_by(exc)
            raise
        finally:
            with swallowing(name):
                step.span.end()

    def past_step(
        self, name: str, *, started_at: datetime, ended_at: datetime, **metadata: str | float | bool
    ) -> None:
        with swallowing(name):
            scene = self._scene
            span = scene.open(name, _typed(StepKind.SPAN), parent=scene.root, at=started_at)
            scene.note(span, metadata)
            span.end(end_time=nanoseconds(max(started_at, ended_at)))

    def finish(self, result: RunResult, *, usage: Usage, delivery: str) -> None:
        with swallowing("finish"):
            self._is_finished = True
            scene = self._scene
            attributes = result_attributes(
                result, usage=usage, delivery=delivery, detail=scene.detail, border=scene.border
            )
            scene.root.set_attributes(attributes)


class LangfuseStep:
    def __init__(self, scene: _Scene, *, name: str) -> None:
        self._scene = scene
        self._name = name
        self._has_failed = False
        self.span: otel.Span = otel.INVALID_SPAN

    def begin(self, kind: StepKind) -> None:
        self.span = self._scene.open(self._name, _typed(kind), parent=self._scene.root)

    def set(self, **metadata: str | float | bool) -> None:
        with swallowing(self._name):
            self._scene.note(self.span, metadata)

    def fail(self, code: str, detail: str) -> None:
        with swallowing(self._name):
            self._has_failed = True
            self._scene.detail = detail
            self.span.set_attributes(failure_attributes(code, detail, self._scene.border))

    def fail_by(self, exc: BaseException) -> None:
        if self._has_failed:
            return
        if isinstance(exc, Exception):
            self.fail(*_describe(exc))
        else:
            self.span.set_attributes(warning_attributes("CANCELLED", self._scene.border))

    def attempt(self, *, number: int, started_at: datetime, ended_at: datetime, error: str) -> None:
        with swallowing(self._name):
            border = self._scene.border
            attributes = _typed(StepKind.TOOL) | border.metadata({"attempt": number})
            if error:
                attributes |= {
                    "langfuse.observation.level": "ERROR",
                    "langfuse.observation.status_message": border.status(error),
                }
            self._tell(f"attempt-{number}", attributes, started_at, ended_at)

    def tool(
        self, *, name: str, argument: str, started_at: datetime, ended_at: datetime, is_error: bool
    ) -> None:
        with swallowing(self._name):
            border = self._scene.border
            attributes = _typed(StepKind.TOOL)
            attributes |= border.metadata({"argument_length": len(argument)})
            if border.trace_content:
                attributes["langfuse.observation.input"] = border.content(argument)
            if is_error:
                # No failure of the run: agents try things. ERROR is for what needs an operator.
                attributes |= warning_attributes("the tool reported an error", border)
            self._tell(name, attributes, started_at, ended_at)

    def generation(self, call: ModelCall) -> None:
        with swallowing(self._name):
            attributes = generation_attributes(call, self._scene.border)
            self._tell("model-call", attributes, call.started_at, call.ended_at)

    def _tell(
        self, name: str, attributes: Attributes, started_at: datetime, ended_at: datetime
    ) -> None:
        self._scene.tell(
            name, attributes, parent=self.span, started_at=started_at, ended_at=ended_at
        )


def _typed(kind: StepKind) -> Attributes:
    return {"langfuse.observation.type": kind.value}


def _describe(exc: BaseException) -> tuple[str, str]:
    """The run's code for an exception and what it says; a bug is INTERNAL, with its type."""
    code = getattr(exc, "code", None)
    if isinstance(code, ErrorCode):
        return code, str(exc)
    if isinstance(code, str) and code in _CODES:
        return _CODES[code], str(exc)
    return ErrorCode.INTERNAL, f"{type(exc).__name__}: {exc}"
