"""Runs as Langfuse traces: one client, one own OpenTelemetry provider, and a border that nothing raises across.

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
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from importlib.metadata import version
from typing import Final

import httpx
from langfuse import Langfuse
from langfuse._client.resource_manager import LangfuseResourceManager
from opentelemetry import trace as otel
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from app.log import get_logger
from app.redaction import Masker
from app.runs.model import Run, RunId
from app.runs.ports import RunTrace
from app.tracing.ids import trace_id_for
from app.tracing.observations import Border, score_id_for
from app.tracing.run_trace import LangfuseRunTrace, RunIds, swallowing

_log = get_logger(__name__)

REQUEST_TIMEOUT_S: Final = 3
FLUSH_INTERVAL_S: Final = 1.0
SHUTDOWN_TIMEOUT_S: Final = 8.0

_LANGFUSE_TRACER: Final = "langfuse-sdk"
"""The SDK's export filter passes spans of this name only, and only with its public key on the scope."""


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
) -> AsyncIterator["LangfuseTracer"]:
    """A tracer that sends to `base_url`. Leaving waits up to 8 s for what is still unsent.

    Langfuse may be dead all the while: spans then wait in a queue of 2048 and are dropped, oldest first.
    """
    provider = TracerProvider(
        id_generator=RunIds(),
        sampler=ALWAYS_ON,
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
    http = httpx.Client(timeout=REQUEST_TIMEOUT_S)

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
        LangfuseResourceManager._instances.pop(public_key, None)  # noqa: SLF001
        return client

    client = await asyncio.to_thread(connect)
    try:
        yield LangfuseTracer(
            client=client,
            tracer=provider.get_tracer(
                _LANGFUSE_TRACER, version("langfuse"), attributes={"public_key": public_key}
            ),
            border=Border(masker=masker, trace_content=trace_content),
        )
    finally:
        await _shut_down(client, provider, http)


async def _shut_down(client: Langfuse, provider: TracerProvider, http: httpx.Client) -> None:
    loop, is_done = asyncio.get_running_loop(), asyncio.Event()

    def work() -> None:
        try:
            client.shutdown()
            provider.shutdown()
            http.close()
        finally:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(is_done.set)

    # No executor thread: the loop's end would wait for it, however long Langfuse hangs.
    threading.Thread(target=work, name="langfuse-shutdown", daemon=True).start()
    try:
        async with asyncio.timeout(SHUTDOWN_TIMEOUT_S):
            await is_done.wait()
    except TimeoutError:
        _log.warning("trace.shutdown_abandoned", timeout_s=SHUTDOWN_TIMEOUT_S)


class LangfuseTracer:
    """Tracer over the Langfuse SDK; made by `open_langfuse_tracer`."""

    def __init__(self, *, client: Langfuse, tracer: otel.Tracer, border: Border) -> None:
        self._client = client
        self._tracer = tracer
        self._border = border

    def trace_id(self, run_id: RunId) -> str:
        return trace_id_for(run_id)

    @contextmanager
    def trace(self, run: Run) -> Iterator[RunTrace]:
        trace = LangfuseRunTrace(run, tracer=self._tracer, border=self._border)
        with swallowing("begin"):
            trace.begin()
        try:
            yield trace
        except Exception as exc:
            with swallowing("fail"):
                trace.fail(exc)
            raise
        except BaseException:  # cancelled: the process is going, or another takes over
            trace.is_interrupted = True
            raise
        finally:
            with swallowing("end"):
                trace.end()

    def score(self, run_id: RunId, *, user: str, is_positive: bool) -> None:
        with swallowing("score"):
            self._client.create_score(
                name="feedback",
                value=float(is_positive),
                data_type="BOOLEAN",
                trace_id=trace_id_for(run_id),
                score_id=score_id_for(run_id, user=self._border.name(user)),
            )
