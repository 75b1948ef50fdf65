"""Runs as Langfuse traces: one client, one own OpenTelemetry provider, and a sanitizer that nothing raises across.

All observations are made by an OpenTelemetry tracer of our own provider, named and attributed as the Langfuse SDK's own,
with `langfuse.observation.*` attributes; the SDK exports, batches, retries and sends scores. One way for all, because
the SDK's own `start_observation` takes no start time, and most of ours are back-dated: the root begins with the run's
acceptance, queueing and model calls are told when they are over. It also keeps the SDK from attaching raw exceptions,
with their texts and stacks, which its masks do not reach.

The root has no parent, even when a request's span is current where the run starts: its trace id comes from an id
generator rather than a `trace_context`, which would invent a parent that never arrives, and its context is empty.
A root that is cancelled before `finish` is not sent: the next attempt continues the run and sends it, under the same id.
Source: langfuse 5.0.4 and opentelemetry-sdk 1.45.2, read and measured 2026-11.
"""

import asyncio
import os
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from typing import Final

import httpx
from langfuse import Langfuse
from langfuse._client.resource_manager import LangfuseResourceManager
from opentelemetry import trace as otel
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased
from typing_extensions import override

from app.errors import FROM_AGENT, FROM_SANDBOX, ErrorCode
from app.log import get_logger
from app.redaction import Masker
from app.runs.model import ModelCall, Outcome, Run
from app.runs.ports import RunTrace, StepKind, TraceStep
from app.runs.request import RunId
from app.tracing.asked import ASK_AGAIN_S, SystemPrompt, TracePages
from app.tracing.observations import (
    Attributes,
    SpanSanitizer,
    failure_attributes,
    generation_attributes,
    nanoseconds,
    result_attributes,
    root_attributes,
    root_span_id_for,
    score_id_for,
    shared_attributes,
    step_span_id_for,
    trace_id_for,
    warning_attributes,
)
from app.tracing.steps import MODEL_CALL

_log = get_logger(__name__)


_NO_PARENT: Final = otel.set_span_in_context(otel.INVALID_SPAN, Context())
"""Not merely empty: an empty context is false, and the SDK's processor would look at the current one instead."""
_CODES: Final[dict[str, ErrorCode]] = {
    code.value: ours for table in (FROM_SANDBOX, FROM_AGENT) for code, ours in table.items()
}


class RunIds(RandomIdGenerator):
    """Gives the root, and steps that several processes work on, their ids; everything else random ones."""

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
def swallow_errors(act: str) -> Iterator[None]:
    """Keeps failures in: tracing must never fail a run, not even by a bug of its own."""
    try:
        yield
    except Exception:  # noqa: BLE001 - see above; CancelledError passes
        _log.exception("trace.bug_swallowed", act=act)


@dataclass(slots=True, kw_only=True)
class _SpanContext:
    """Carries what all observations of one trace share."""

    tracer: otel.Tracer
    sanitizer: SpanSanitizer
    shared: Attributes
    root: otel.Span
    prompt_version: Callable[[], int | None]
    detail: str = ""
    """Of the step that failed last: says more than the run's bare code."""

    def open(
        self, name: str, attributes: Attributes, *, parent: otel.Span, at: datetime | None = None
    ) -> otel.Span:
        return self.tracer.start_span(
            self.sanitizer.name(name),
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
        span = self.open(name, attributes, parent=parent, at=started_at)
        span.end(end_time=nanoseconds(max(started_at, ended_at)))

    def note(self, span: otel.Span, metadata: dict[str, str | float | bool]) -> None:
        attributes = self.sanitizer.metadata(metadata)
        span.set_attributes(attributes)
        sandbox = {key: value for key, value in attributes.items() if key.endswith(".sandbox_id")}
        # The run's sandbox is known only after the root began.
        self.root.set_attributes(sandbox)


class LangfuseRunTrace:
    def __init__(
        self,
        run: Run,
        *,
        tracer: otel.Tracer,
        sanitizer: SpanSanitizer,
        prompt_version: Callable[[], int | None],
    ) -> None:
        self._run = run
        self._context = _SpanContext(
            tracer=tracer,
            sanitizer=sanitizer,
            shared={},
            root=otel.INVALID_SPAN,
            prompt_version=prompt_version,
        )
        self._is_finished = False
        self.is_interrupted = False

    def begin(self) -> None:
        run, context = self._run, self._context
        context.shared = shared_attributes(run, context.sanitizer)
        ids = RunIds.root.set((int(trace_id_for(run.id), 16), root_span_id_for(run.id)))
        try:
            context.root = context.tracer.start_span(
                "run",
                context=_NO_PARENT,
                start_time=nanoseconds(run.created_at),
                attributes={**context.shared, **root_attributes(run, context.sanitizer)},
            )
        finally:
            RunIds.root.reset(ids)
        context.prompt_version()  # is asked for before the first generation is told

    def fail(self, exc: BaseException) -> None:
        if not self._is_finished:
            code, detail = _describe(exc)
            self._context.root.set_attributes(
                failure_attributes(code, detail, self._context.sanitizer)
            )

    def end(self) -> None:
        if self._is_finished or not self.is_interrupted:
            # The run may have been accepted by a machine whose clock is ahead.
            self._context.root.end(end_time=max(time.time_ns(), nanoseconds(self._run.created_at)))

    @contextmanager
    def step(
        self,
        name: str,
        kind: StepKind = StepKind.SPAN,
        *,
        key: str = "",
        started_at: datetime | None = None,
    ) -> Iterator[TraceStep]:
        step = LangfuseStep(self._context, name=name)
        with swallow_errors(name):
            step.begin(
                kind,
                span_id=step_span_id_for(self._run.id, name, key) if key else None,
                at=started_at,
            )
        try:
            yield step
        except BaseException as exc:
            with swallow_errors(name):
                step.fail_by(exc)
            raise
        finally:
            if not step.is_paused:
                with swallow_errors(name):
                    step.span.end()

    def pause(self) -> None:
        self.is_interrupted = True

    def past_step(
        self, name: str, *, started_at: datetime, ended_at: datetime, **metadata: str | float | bool
    ) -> None:
        with swallow_errors(name):
            context = self._context
            span = context.open(name, _typed(StepKind.SPAN), parent=context.root, at=started_at)
            context.note(span, metadata)
            span.end(end_time=nanoseconds(max(started_at, ended_at)))

    def finish(self, outcome: Outcome, *, delivery: str) -> None:
        with swallow_errors("finish"):
            self._is_finished = True
            context = self._context
            attributes = result_attributes(
                outcome, delivery=delivery, detail=context.detail, sanitizer=context.sanitizer
            )
            context.root.set_attributes(attributes)


class LangfuseStep:
    def __init__(self, context: _SpanContext, *, name: str) -> None:
        self._context = context
        self._name = name
        self._has_failed = False
        self.is_paused = False
        self.span: otel.Span = otel.INVALID_SPAN

    def begin(
        self, kind: StepKind, *, span_id: int | None = None, at: datetime | None = None
    ) -> None:
        root = self._context.root
        ids = RunIds.root.set(
            None if span_id is None else (root.get_span_context().trace_id, span_id)
        )
        try:
            self.span = self._context.open(self._name, _typed(kind), parent=root, at=at)
        finally:
            RunIds.root.reset(ids)

    def pause(self) -> None:
        self.is_paused = True

    def set(self, **metadata: str | float | bool) -> None:
        with swallow_errors(self._name):
            self._context.note(self.span, metadata)

    def fail(self, code: str, detail: str) -> None:
        with swallow_errors(self._name):
            self._has_failed = True
            self._context.detail = detail
            self.span.set_attributes(failure_attributes(code, detail, self._context.sanitizer))

    def fail_by(self, exc: BaseException) -> None:
        if self._has_failed:
            return
        if isinstance(exc, Exception):
            self.fail(*_describe(exc))
        else:
            self.span.set_attributes(warning_attributes("CANCELLED", self._context.sanitizer))

    def attempt(self, *, number: int, started_at: datetime, ended_at: datetime, error: str) -> None:
        with swallow_errors(self._name):
            sanitizer = self._context.sanitizer
            attributes = _typed(StepKind.TOOL) | sanitizer.metadata({"attempt": number})
            if error:
                attributes |= {
                    "langfuse.observation.level": "ERROR",
                    "langfuse.observation.status_message": sanitizer.status(error),
                }
            self._tell(f"attempt-{number}", attributes, started_at, ended_at)

    def tool(
        self, *, name: str, argument: str, started_at: datetime, ended_at: datetime, is_error: bool
    ) -> None:
        with swallow_errors(self._name):
            sanitizer = self._context.sanitizer
            attributes = _typed(StepKind.TOOL)
            attributes |= sanitizer.metadata({"argument_length": len(argument)})
            if sanitizer.trace_content:
                attributes["langfuse.observation.input"] = sanitizer.content(argument)
            if is_error:
                # No failure of the run: agents try things. ERROR is for what needs an operator.
                attributes |= warning_attributes("the tool reported an error", sanitizer)
            self._tell(name, attributes, started_at, ended_at)

    def generation(self, call: ModelCall) -> None:
        with swallow_errors(self._name):
            context = self._context
            attributes = generation_attributes(
                call, context.sanitizer, prompt_version=context.prompt_version()
            )
            self._tell(MODEL_CALL, attributes, call.started_at, call.ended_at)

    def _tell(
        self, name: str, attributes: Attributes, started_at: datetime, ended_at: datetime
    ) -> None:
        self._context.tell(
            name, attributes, parent=self.span, started_at=started_at, ended_at=ended_at
        )


def _typed(kind: StepKind) -> Attributes:
    return {"langfuse.observation.type": kind.value}


def _describe(exc: BaseException) -> tuple[str, str]:
    """Returns the run's code for an exception and what it says; a bug is INTERNAL, with its type."""
    code = getattr(exc, "code", None)
    if isinstance(code, ErrorCode):
        return code, str(exc)
    if isinstance(code, str) and code in _CODES:
        return _CODES[code], str(exc)
    return ErrorCode.INTERNAL, f"{type(exc).__name__}: {exc}"


REQUEST_TIMEOUT_S: Final = 3
FLUSH_INTERVAL_S: Final = 1.0
SHUTDOWN_TIMEOUT_S: Final = 8.0

_LANGFUSE_TRACER: Final = "langfuse-sdk"
"""The SDK's export filter passes spans of this name only, and only with its public key on the scope."""


def is_sampled(trace_id: str, sampler: TraceIdRatioBased) -> bool:
    """Whether a run of that trace is traced."""
    decision = sampler.should_sample(None, int(trace_id, 16), "run").decision
    return decision is Decision.RECORD_AND_SAMPLE


@asynccontextmanager
async def open_langfuse_tracer(
    *,
    public_key: str,
    secret_key: str,
    base_url: str,
    trace_content: bool,
    masker: Masker,
    environment: str = "production",
    release: str = "",
    sample_rate: float = 1.0,
    has_links: bool = False,
    system_prompt: str = "",
    ask_again_s: float = ASK_AGAIN_S,
    verify: ssl.SSLContext | bool = True,
) -> AsyncIterator["LangfuseTracer"]:
    """Opens a tracer that sends to `base_url`, by the certificates of `verify`, of that part of the runs. Leaving waits up to 8 s for what is still unsent.

    `has_links`: `link` will be asked for, so what it needs to know is asked at once: the first answer of a process is to have one.

    `system_prompt`: generations are linked to the version that Langfuse has of it, which it is asked for at the first run; only where content is traced. What it
    does not answer it is asked again after `ask_again_s`.

    Langfuse may be dead all the while: spans then wait in a queue of 2048 and are dropped, oldest first.
    """
    sampler = TraceIdRatioBased(sample_rate)
    provider = TracerProvider(
        id_generator=RunIds(),
        sampler=sampler,
        resource=Resource.create(
            {
                "service.name": "orion",
                "langfuse.environment": environment,
                **({"langfuse.release": release} if release else {}),
            }
        ),
        shutdown_on_exit=False,  # ours is bounded; the one at exit is not
    )

    # The SDK closes no client, not even its own.
    http = httpx.Client(timeout=REQUEST_TIMEOUT_S, verify=verify)

    def connect() -> Langfuse:
        # The SDK has no parameter for it; texts that hold base64 would be uploaded to Langfuse's object storage.
        os.environ["LANGFUSE_MEDIA_UPLOAD_ENABLED"] = "false"  # noqa: TID251
        client = Langfuse(
            public_key=public_key,
            secret_key=secret_key,
            base_url=base_url.rstrip("/"),
            timeout=REQUEST_TIMEOUT_S,
            flush_interval=FLUSH_INTERVAL_S,
            environment=environment,
            release=release or None,
            tracer_provider=provider,
            httpx_client=http,
        )
        # One resource set per public key and process, even after its shutdown: a second client of the same key would
        # silently be the dead first one. Nothing else reads this registry but get_client, which we do not use.
        resources = LangfuseResourceManager._instances.pop(public_key, None)  # noqa: SLF001
        # Its shutdown forgets the thread that refreshes prompts, which nobody here asks for: each client would leave one.
        if resources is not None:
            resources.prompt_cache._task_manager.shutdown()  # noqa: SLF001
        return client

    client = await asyncio.to_thread(connect)
    pages = TracePages(client.api, base_url=base_url.rstrip("/"), again_s=ask_again_s)
    if has_links:
        pages.project()
    prompt = SystemPrompt(
        client.api,
        system_prompt if trace_content else "",
        mask=masker.mask,
        environment=environment,
        release=release,
        again_s=ask_again_s,
    )
    try:
        yield LangfuseTracer(
            client=client,
            tracer=provider.get_tracer(
                _LANGFUSE_TRACER, version("langfuse"), attributes={"public_key": public_key}
            ),
            sanitizer=SpanSanitizer(masker=masker, trace_content=trace_content),
            sampler=sampler,
            pages=pages,
            prompt=prompt,
        )
    finally:
        await _shut_down(client, provider, http, (pages, prompt))


async def _shut_down(
    client: Langfuse,
    provider: TracerProvider,
    http: httpx.Client,
    asking: Iterable[TracePages | SystemPrompt],
) -> None:
    loop, is_done = asyncio.get_running_loop(), asyncio.Event()

    def work() -> None:
        try:
            client.shutdown()
            provider.shutdown()
        finally:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(is_done.set)
            # Behind it, as nobody waits for that: a client that is closed does not close what a thread is just opening.
            for one in asking:
                one.wait(SHUTDOWN_TIMEOUT_S)
            http.close()

    # No executor thread: the loop's end would wait for it, however long Langfuse hangs.
    threading.Thread(target=work, name="langfuse-shutdown", daemon=True).start()
    try:
        async with asyncio.timeout(SHUTDOWN_TIMEOUT_S):
            await is_done.wait()
    except TimeoutError:
        _log.warning("trace.shutdown_abandoned", timeout_s=SHUTDOWN_TIMEOUT_S)


class LangfuseTracer:
    """Tracer over the Langfuse SDK; made by `open_langfuse_tracer`."""

    def __init__(
        self,
        *,
        client: Langfuse,
        tracer: otel.Tracer,
        sanitizer: SpanSanitizer,
        sampler: TraceIdRatioBased,
        pages: TracePages,
        prompt: SystemPrompt,
    ) -> None:
        self._prompt = prompt
        self._pages = pages
        self._sampler = sampler
        self._client = client
        self._tracer = tracer
        self._sanitizer = sanitizer

    def trace_id(self, run_id: RunId) -> str:
        return trace_id_for(run_id)

    @contextmanager
    def trace(self, run: Run) -> Iterator[RunTrace]:
        trace = LangfuseRunTrace(
            run,
            tracer=self._tracer,
            sanitizer=self._sanitizer,
            prompt_version=self._prompt.version,
        )
        with swallow_errors("begin"):
            trace.begin()
        try:
            yield trace
        except Exception as exc:  # told, and raised again: a cancellation is no failure
            with swallow_errors("fail"):
                trace.fail(exc)
            raise
        except BaseException:  # cancelled: the process is going, or another takes over
            trace.is_interrupted = True
            raise
        finally:
            with swallow_errors("end"):
                trace.end()

    def link(self, trace_id: str) -> str:
        if not is_sampled(trace_id, self._sampler):
            return ""
        return self._pages.address(trace_id)

    def score(self, run_id: RunId, *, user: str, is_positive: bool, comment: str = "") -> None:
        with swallow_errors("score"):
            said = self._sanitizer.content(comment) if self._sanitizer.trace_content else ""
            self._client.create_score(
                name="feedback",
                value=float(is_positive),
                data_type="BOOLEAN",
                comment=said or None,
                trace_id=trace_id_for(run_id),
                score_id=score_id_for(run_id, user=self._sanitizer.name(user)),
            )
