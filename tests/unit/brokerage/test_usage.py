"""What calls are counted as whose providers tell nothing, or whose clients leave before they are told."""

import asyncio
import json
import time
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

from app.brokerage.broker import ModelsBroker, Upstream, create_broker_app
from app.brokerage.http import IncomingRequest, ModelRequest
from app.brokerage.registry import GrantRegistry
from app.brokerage.rules.anthropic import check_messages, read_messages_event
from app.brokerage.rules.gemini import check_content, read_content_event
from app.brokerage.rules.openai import read_chat_event, read_responses_event
from app.brokerage.usage import MAX_LINE_BYTES, TAIL_BYTES, ProxiedCall, ReadEvent, UsageReader
from app.runs.broker import CLIENT_GONE
from app.runs.testing import GrantHooks, ModelCall, ModelGrant, RunId, SystemClock, Usage
from app.web.hosting import serve
from sandbox_runtime.task_group import open_task_group
from tests.plain_http import NO_TLS

ASKED_BYTES = 4000
ASKED: dict[str, Any] = {"model": "m", "max_tokens": 5, "messages": []}
MESSAGES = "/broker/anthropic/v1/messages"
CHAT_USAGE = {"prompt_tokens": 100_000, "completion_tokens": 8000}
USAGE = {"input_tokens": 100_000, "output_tokens": 8000}
TOLD = Usage(input_tokens=100_000, output_tokens=8000)


def count(
    read_event: ReadEvent,
    answer: bytes,
    *,
    is_stream: bool,
    is_whole: bool = True,
    has_output: bool = True,
    status: int = 200,
) -> Usage:
    reader = UsageReader(read_event, is_stream=is_stream)
    for at in range(0, len(answer), 65_536):
        reader.feed(answer[at : at + 65_536])
    call = ProxiedCall(
        model="m",
        started_at=datetime.now(UTC),
        status=status,
        reader=reader,
        asked_bytes=ASKED_BYTES,
        has_output=has_output,
        is_whole=is_whole,
    )
    assert call.usage() == call.usage()
    return call.usage()


def stream(*events: dict[str, Any]) -> bytes:
    return b"".join(b"event: x\ndata: " + json.dumps(event).encode() + b"\n\n" for event in events)


def says(text: str) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": text}}]}


def test_a_plain_answer_that_is_left_before_its_last_byte() -> None:
    """Its usage is read if it came, and guessed by the bytes if not."""
    answer = json.dumps({"type": "message", "content": "a" * 4000, "usage": USAGE}).encode()
    found = count(read_messages_event, answer[:-1], is_stream=False, is_whole=False)
    assert found == TOLD
    found = count(read_messages_event, answer[:4000], is_stream=False, is_whole=False)
    assert found == Usage(input_tokens=1000, output_tokens=1000)


def test_geminis_list_that_is_left_before_its_last_byte() -> None:
    """Each of its parts has the counts so far."""
    parts = [
        {
            "candidates": [{"content": {"parts": [{"text": "x"}]}}],
            "usageMetadata": {"promptTokenCount": 100_000, "candidatesTokenCount": 80 * number},
        }
        for number in range(101)
    ]
    answer = json.dumps(parts).encode()[:-1]
    assert count(read_content_event, answer, is_stream=False, is_whole=False) == TOLD


@pytest.mark.parametrize("is_stream", [True, False])
def test_usage_behind_more_than_is_kept(*, is_stream: bool) -> None:
    """Responses repeats what was asked in its last event; padding does not hide the usage, and what is called so in it neither."""
    tools = [{"usage": {"input_tokens": 1, "output_tokens": 1}}]
    response = {"instructions": " " * 2 * MAX_LINE_BYTES, "tools": tools, "usage": USAGE}
    completed = {"type": "response.completed", "response": response}
    answer = stream({"type": "response.output_text.delta"}, completed)
    if not is_stream:
        answer = json.dumps(response).encode()
    found = count(read_responses_event, answer, is_stream=is_stream)
    assert found.input_tokens == 100_000
    assert found.output_tokens >= 8000


def test_what_a_sandbox_calls_usage_hides_nothing() -> None:
    """In the part of an answer that came, there may be no other: then what can be guessed is more."""
    tools = [{"parameters": {"usage": {"input_tokens": 1, "output_tokens": 1}}}]
    answer = json.dumps({"output": "x" * 4000, "tools": tools, "usage": USAGE}).encode()
    answer = answer[: answer.rindex(b'"usage"')]
    found = count(read_responses_event, answer, is_stream=False, is_whole=False)
    assert found.input_tokens == ASKED_BYTES // 4
    assert found.output_tokens > 1000


def test_a_nest_of_usages_is_read_soon() -> None:
    """Forty times as much of it takes no longer, since only the end of what is no JSON is searched."""
    nest = b'{"usage":{"a":' * (2 * TAIL_BYTES // 14)
    assert _processor_s(nest * 40) < 3 * _processor_s(nest) + 0.1


def _processor_s(answer: bytes) -> float:
    """At best, of three times."""
    took_s: list[float] = []
    for _ in range(3):
        before_s = time.thread_time()
        count(read_chat_event, answer, is_stream=False, is_whole=False)
        took_s.append(time.thread_time() - before_s)
    return min(took_s)


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_server_that_tells_no_usage(*, is_whole: bool) -> None:
    """Nothing is free: what was asked by its bytes, what was answered by its pieces, and by the bytes of long ones."""
    pieces = [says("word ")] * 50
    found = count(read_chat_event, stream(*pieces), is_stream=True, is_whole=is_whole)
    assert found == Usage(input_tokens=1000, output_tokens=50)
    found = count(read_chat_event, stream(says("w" * 8000)), is_stream=True, is_whole=is_whole)
    assert found.output_tokens > 1900
    thoughts = [{"choices": [{"delta": {"reasoning": "hm"}}]}] * 7
    found = count(read_chat_event, stream(*thoughts), is_stream=True, is_whole=is_whole)
    assert found.output_tokens == 7


@pytest.mark.parametrize(
    ("read_event", "piece"),
    [
        (
            read_messages_event,
            {"type": "content_block_delta", "delta": {"type": "text_delta", "text": ""}},
        ),
        (read_messages_event, {"type": "content_block_delta", "delta": {"partial_json": ""}}),
        (read_responses_event, {"type": "response.output_text.delta", "delta": ""}),
        (read_chat_event, {"choices": [{"delta": {"content": ""}}]}),
        (
            read_chat_event,
            {"choices": [{"delta": {"tool_calls": [{"function": {"arguments": ""}}]}}]},
        ),
        (read_content_event, {"candidates": [{"content": {"parts": [{"text": ""}]}}]}),
    ],
)
def test_a_stream_that_is_left_costs_what_was_read(read_event: ReadEvent, piece: Any) -> None:
    """By the text in its pieces, in whatever wrapping: half a kilobyte is not one token."""
    said = json.loads(json.dumps(piece).replace('""', json.dumps("w" * 200)))
    found = count(read_event, stream(*[said] * 20), is_stream=True, is_whole=False)
    assert found.output_tokens == 20 * 50


def test_signatures_are_no_text() -> None:
    """They are long, and the model did not write them."""
    delta = {"type": "signature_delta", "signature": "x" * 8000}
    event = {"type": "content_block_delta", "delta": delta}
    found = count(read_messages_event, stream(event), is_stream=True, is_whole=False)
    assert found.output_tokens == 1


def test_a_plain_answer_without_usage() -> None:
    """By its bytes; so is a stream in a form that nobody knows."""
    answer = json.dumps({"choices": [{"message": {"content": "a" * 4000}}]}).encode()
    found = count(read_chat_event, answer, is_stream=False)
    assert (found.input_tokens, found.output_tokens > 1000) == (1000, True)
    assert count(read_chat_event, b"data: x\n" * 500, is_stream=True).output_tokens == 1000


@pytest.mark.parametrize("ending", [b"", b"\r", b"\r\n", b"\n"])
def test_the_last_line_is_read(ending: bytes) -> None:
    """However it ends, or whether it does."""
    answer = b'data: {"choices":[]}' + (ending or b"\n")
    answer += b"data: " + json.dumps({"choices": [], "usage": CHAT_USAGE}).encode() + ending
    assert count(read_chat_event, answer, is_stream=True) == TOLD


def test_what_is_told_is_not_guessed() -> None:
    """A whole answer has the provider's counts, however long it is."""
    answer = stream(says("w" * 80_000), {"choices": [], "usage": CHAT_USAGE})
    assert count(read_chat_event, answer, is_stream=True) == TOLD


def test_what_costs_nothing_is_not_guessed() -> None:
    """Errors, also in a stream under a 200, and counts of tokens."""
    error = {"error": {"code": "context_length_exceeded"}}
    assert count(read_chat_event, stream(error), is_stream=True) == Usage()
    assert count(read_chat_event, b"{}", is_stream=False, status=529) == Usage()
    assert count(read_messages_event, b"{}", is_stream=False, has_output=False) == Usage()


def test_which_requests_cost_nothing() -> None:
    """Those that count tokens."""
    grant = _grant()
    body = json.dumps({"model": "m", "messages": []}).encode()
    for path, has_output in (("/v1/messages", True), ("/v1/messages/count_tokens", False)):
        asked = check_messages(IncomingRequest(path=path, body=body), grant)
        assert isinstance(asked, ModelRequest)
        assert asked.has_output is has_output
    for method, has_output in (("generateContent", True), ("countTokens", False)):
        asked = check_content(IncomingRequest(path=f"/v1beta/models/m:{method}", body=b"{}"), grant)
        assert isinstance(asked, ModelRequest)
        assert asked.has_output is has_output


@asynccontextmanager
async def open_world(provider: FastAPI) -> AsyncIterator[tuple[GrantRegistry, httpx.AsyncClient]]:
    """A broker in front of this provider, and what an agent would use."""
    registry = GrantRegistry(signing_key=b"k" * 32, clock=SystemClock())
    async with serve(provider) as url, httpx.AsyncClient(verify=NO_TLS, trust_env=False) as http:
        upstreams = {"anthropic": Upstream(base_url=url, key_headers={})}
        broker = ModelsBroker(
            registry=registry, upstreams=upstreams, http=http, clock=SystemClock()
        )
        async with (
            serve(create_broker_app(broker.router())) as broker_url,
            asyncio.timeout(10),
            httpx.AsyncClient(verify=NO_TLS, base_url=broker_url, trust_env=False) as inside,
        ):
            yield registry, inside


def _bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def _grant() -> ModelGrant:
    expires_at = datetime.now(UTC) + timedelta(minutes=5)
    return ModelGrant(run_id=RunId("run_1"), models=("m",), expires_at=expires_at)


@pytest.mark.parametrize("has_begun", [True, False])
async def test_a_call_that_outlives_its_run_is_counted(*, has_begun: bool) -> None:
    """The agent is killed and the run ends while its call is under way: before the first byte, and after it."""
    asked, calls = asyncio.Event(), list[ModelCall]()
    provider = FastAPI()

    @provider.post("/v1/messages")
    async def messages(_request: Request) -> Response:
        async def events() -> AsyncIterator[bytes]:
            yield stream({"type": "message_start", "message": {"usage": {"input_tokens": 500}}})
            asked.set()
            await asyncio.sleep(60)

        if has_begun:
            return StreamingResponse(events(), media_type="text/event-stream")
        asked.set()
        await asyncio.sleep(60)
        return Response()

    async with open_world(provider) as (registry, inside), open_task_group() as group:
        with registry.open_grant(_grant(), GrantHooks(on_call=calls.append)) as token:
            body = ASKED | {"metadata": "x" * 2000}
            asking = group.create_task(inside.post(MESSAGES, json=body, headers=_bearer(token)))
            await asked.wait()
        assert calls == []
        asking.cancel()
        while not calls:
            await asyncio.sleep(0.01)
    assert (calls[0].usage.input_tokens >= 500, len(calls)) == (True, 1)
    assert calls[0].status == (200 if has_begun else CLIENT_GONE)


async def test_a_provider_that_compresses_unasked() -> None:
    """Its answer comes through as plain bytes, piece by piece, and is counted."""
    is_read, calls = asyncio.Event(), list[ModelCall]()
    first = stream({"type": "message_start", "message": {"usage": USAGE}})
    last = stream({"type": "message_delta", "usage": {"output_tokens": 8001}})
    provider = FastAPI()

    @provider.post("/v1/messages")
    async def messages(_request: Request) -> Response:
        async def events() -> AsyncIterator[bytes]:
            packer = zlib.compressobj(wbits=31)
            yield packer.compress(first) + packer.flush(zlib.Z_SYNC_FLUSH)
            await is_read.wait()
            yield packer.compress(last) + packer.flush()

        headers = {"content-encoding": "gzip"}
        return StreamingResponse(events(), headers=headers, media_type="text/event-stream")

    async with open_world(provider) as (registry, inside):
        with registry.open_grant(_grant(), GrantHooks(on_call=calls.append)) as token:
            asking = inside.stream("POST", MESSAGES, json=ASKED, headers=_bearer(token))
            async with asking as answer:
                chunks = answer.aiter_raw()
                assert await anext(chunks) == first
                is_read.set()
                assert [chunk async for chunk in chunks] == [last]
    assert calls[0].usage == Usage(input_tokens=100_000, output_tokens=8001)


async def test_an_answer_that_cannot_be_decoded_is_a_cut_one() -> None:
    """It is no end of the agent's, and counts as one that broke off."""
    calls: list[ModelCall] = []
    provider = FastAPI()

    @provider.post("/v1/messages")
    async def messages(_request: Request) -> Response:
        return Response(b"no gzip", headers={"content-encoding": "gzip"})

    async with open_world(provider) as (registry, inside):
        with (
            registry.open_grant(_grant(), GrantHooks(on_call=calls.append)) as token,
            pytest.raises(httpx.RemoteProtocolError),
        ):
            await inside.post(MESSAGES, json=ASKED, headers=_bearer(token))
    assert calls[0].error == "DecodingError"
