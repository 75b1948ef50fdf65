"""A Langfuse on loopback for the real SDK, and what went over the wire."""

import gzip
import itertools
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.playground.traces.prompts import PromptStore
from app.playground.traces.receiver import TraceStore, create_trace_app
from app.redaction import Masker
from app.runs.testing import Run, RunRequest, Surface, run_id_for
from app.tracing.langfuse import LangfuseTracer, open_langfuse_tracer
from app.web.hosting import serve
from tests.unit.tracing.building import MakeRun, OpenTracer, Wire

PUBLIC_KEY = "pk-lf-test"
SECRET_KEY = "sk-lf-test"  # noqa: S105 - of the receiver below
CREATED_AT = datetime.now(UTC) - timedelta(minutes=5)

_message_seconds = itertools.count(1_795_000_000)


def recording(app: ASGIApp, *, bodies: list[bytes], asked: list[str]) -> ASGIApp:
    async def recorded(scope: Scope, receive: Receive, send: Send) -> None:
        body = bytearray()

        async def tee() -> Message:
            message = await receive()
            body.extend(message.get("body", b""))
            return message

        await app(scope, tee, send)
        asked.append(scope.get("path", ""))
        if body:
            bodies.append(gzip.decompress(body) if body[:2] == b"\x1f\x8b" else bytes(body))

    return recorded


@pytest.fixture
async def wire() -> AsyncIterator[Wire]:
    store, prompts, bodies, asked = TraceStore(), PromptStore(), list[bytes](), list[str]()
    app = create_trace_app(
        public_key=PUBLIC_KEY, secret_key=SECRET_KEY, store=store, prompts=prompts
    )
    async with serve(recording(app, bodies=bodies, asked=asked)) as url:
        yield Wire(url=url, store=store, bodies=bodies, asked=asked, prompts=prompts)


@pytest.fixture
def make_run() -> MakeRun:
    def make(text: str = "what is 6 * 7?", **changes: object) -> Run:
        ts = f"{next(_message_seconds)}.000100"
        request: dict[str, Any] = {
            "run_id": run_id_for(team="T1", channel="C1", message_ts=ts),
            "team": "T1",
            "channel": "C1",
            "thread_ts": "1732000000.000100",
            "message_ts": ts,
            "user": "U1",
            "text": text,
            "surface": Surface.CHANNEL,
            "received_at": CREATED_AT,
        }
        request |= {key: changes.pop(key) for key in list(changes) if key in request}
        known: dict[str, Any] = {
            "agent": "anthropic",
            "provider": "local",
            "model": "claude-sonnet-4-5",
            "attempt": 1,
            "created_at": CREATED_AT,
        }
        return Run(id=request["run_id"], request=RunRequest(**request), **(known | changes))

    return make


@pytest.fixture
def open_tracer() -> OpenTracer:
    def opened(url: str, **changes: object) -> AbstractAsyncContextManager[LangfuseTracer]:
        settings: dict[str, Any] = {
            "public_key": PUBLIC_KEY,
            "secret_key": SECRET_KEY,
            "trace_content": True,
            "masker": Masker(),
        }
        return open_langfuse_tracer(base_url=url, **(settings | changes))

    return opened
