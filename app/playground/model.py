"""The offline model: speaks the Anthropic Messages API without a model behind it, and fails on request.

Shapes of requests, streams and errors. Source: Anthropic Messages API, "Streaming messages" and "Errors", and the types
of anthropic 2.12.0, read 2026-11.
"""

import asyncio
import json
import re
import secrets
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from app.playground.model_answers import Answer, Shape, decide_answer

_LOGGED_REQUESTS = 100
_DELTA_CHARS = 40
_CHARS_PER_TOKEN = 4
_WORD_CHARS = 6
_MAX_NORMAL_S = 6.0
"""However long an answer is: nobody wants to wait for a demonstration."""
_STALL_S = 3600.0

_GARBAGE = b"event: message_start\ndata: {<html>no gateway speaks like this</html>\n\n"

_FAILURES: dict[Shape, tuple[int, str, str]] = {
    Shape.RATE_LIMITED: (
        429,
        "rate_limit_error",
        "This request would exceed the rate limit (offline model, !429)",
    ),
    Shape.OVERLOADED: (529, "overloaded_error", "Overloaded (offline model, !529)"),
    Shape.BROKEN: (500, "api_error", "Internal server error (offline model, !500)"),
    Shape.CONTEXT: (
        400,
        "invalid_request_error",
        "prompt is too long: 1200000 tokens > 1000000 maximum",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPace:
    """How fast the model writes. All zero = at once, for benchmarks."""

    word_s: float = 0.02
    slow_word_s: float = 0.5
    """With `!slow`; `!slow 5` spreads its words over 5 s instead."""


class RequestError(Exception):
    """The request is refused, as the API would refuse it."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


def create_model_app(
    *, pace: ModelPace | None = None, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> FastAPI:
    """`POST /v1/messages` as Anthropic serves it, and `GET /requests`: the last 100 requests with their time and headers."""
    app = FastAPI(title="Orion offline model", docs_url=None, redoc_url=None, openapi_url=None)
    requests: deque[dict[str, Any]] = deque(maxlen=_LOGGED_REQUESTS)
    chosen_pace = pace or ModelPace()
    failed: Counter[str] = Counter()

    @app.post("/v1/messages")
    async def create_message(request: Request) -> Response:
        at = time.time()
        try:
            body = json.loads(await request.body())
        except ValueError:
            body = None
        requests.append({"at": at, "headers": dict(request.headers), "body": body})
        request_id = f"req_offline_{secrets.token_hex(8)}"
        try:
            _check(request, body)
            answer = decide_answer(body)
            _fail_on_request(answer, failed)
        except RequestError as problem:
            return _error_response(problem, request_id)
        if answer.shape is Shape.GARBAGE:
            return Response(_GARBAGE, media_type="text/event-stream")
        message = _message(body, answer)
        headers = {"request-id": request_id}
        if not body.get("stream"):
            return JSONResponse(message, headers=headers)
        events = _stream(message, answer, chosen_pace, sleep)
        kind = CutResponse if answer.shape is Shape.CUT else StreamingResponse
        return kind(events, media_type="text/event-stream", headers=headers)

    @app.get("/requests")
    async def list_requests() -> list[dict[str, Any]]:
        return list(requests)

    return app


class CutResponse(StreamingResponse):
    """Never sends the end of its body, so the server drops the connection in the middle of the stream."""

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for chunk in self.body_iterator:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})


def _fail_on_request(answer: Answer, failed: Counter[str]) -> None:
    """With a number the same question fails that often, so that trying again helps."""
    if answer.shape not in _FAILURES:
        return
    if answer.number is not None and failed[answer.asked] >= answer.number:
        return
    failed[answer.asked] += 1
    raise RequestError(*_FAILURES[answer.shape])


def _error_response(problem: RequestError, request_id: str) -> JSONResponse:
    error = {"type": problem.kind, "message": str(problem)}
    body = {"type": "error", "error": error, "request_id": request_id}
    return JSONResponse(body, status_code=problem.status, headers={"request-id": request_id})


def _check(request: Request, body: object) -> None:
    """Refuse what the API refuses."""
    headers = request.headers
    bearer = headers.get("authorization", "").lower().startswith("bearer ")
    if not headers.get("x-api-key") and not bearer:
        raise RequestError(401, "authentication_error", "x-api-key header is required")
    if "anthropic-version" not in headers:
        raise _invalid("anthropic-version: header is required")
    if not isinstance(body, dict):
        raise _invalid("the body is not a JSON object")
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise _invalid("model: Field required")
    if not model.rpartition("/")[2].startswith("claude"):
        raise RequestError(404, "not_found_error", f"model: {model}")
    max_tokens = body.get("max_tokens")
    if not isinstance(max_tokens, int) or max_tokens < 1:
        raise _invalid("max_tokens: must be a positive integer")
    _check_messages(body.get("messages"))


def _check_messages(messages: object) -> None:
    if not isinstance(messages, list) or not messages:
        raise _invalid("messages: at least one message is required")
    open_calls: set[object] = set()
    # A client may put system messages between the others (beta mid-conversation-tool-changes-2026-07-01, as Claude Code
    # 2.1.330 sends it).
    talk = [entry for entry in messages if not _is_system(entry)]
    if not talk:
        raise _invalid("messages: at least one message is required")
    for index, message in enumerate(talk):
        wanted = "assistant" if index % 2 else "user"
        if not isinstance(message, dict) or message.get("role") != wanted:
            raise _invalid(f"messages.{index}: roles must alternate, beginning with user")
        content = message.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not isinstance(blocks, list) or not blocks:
            raise _invalid(f"messages.{index}: content must not be empty")
        if not all(
            isinstance(block, dict) and isinstance(block.get("type"), str) for block in blocks
        ):
            raise _invalid(f"messages.{index}: every content block needs a type")
        if any(block["type"] == "text" and not str(block.get("text")).strip() for block in blocks):
            raise _invalid(f"messages.{index}: text content blocks must be non-empty")
        results = {block.get("tool_use_id") for block in blocks if block["type"] == "tool_result"}
        if wanted == "user" and results != open_calls:
            raise _invalid(f"messages.{index}: tool_use and tool_result blocks do not match")
        open_calls = {block.get("id") for block in blocks if block["type"] == "tool_use"}
    if talk[-1]["role"] != "user":
        raise _invalid("messages: the last message must be the user's")


def _is_system(message: object) -> bool:
    return isinstance(message, dict) and message.get("role") == "system"


def _invalid(message: str) -> RequestError:
    return RequestError(400, "invalid_request_error", message)


def _message(body: dict[str, Any], answer: Answer) -> dict[str, Any]:
    """The complete answer as one Message object."""
    content: list[dict[str, Any]] = [{"type": "text", "text": answer.text}] if answer.text else []
    stop_reason = "refusal" if answer.shape is Shape.REFUSED else "end_turn"
    if answer.tool is not None:
        call_id = f"toolu_offline_{secrets.token_hex(8)}"
        tool = {
            "type": "tool_use",
            "id": call_id,
            "name": answer.tool.name,
            "input": answer.tool.input,
        }
        content.append(tool)
        stop_reason = "tool_use"
    written = answer.text + (json.dumps(answer.tool.input) if answer.tool else "")
    if len(written) > body["max_tokens"] * _CHARS_PER_TOKEN:
        content = [{"type": "text", "text": written[: body["max_tokens"] * _CHARS_PER_TOKEN]}]
        written = content[0]["text"]
        stop_reason = "max_tokens"
    return {
        "id": f"msg_offline_{secrets.token_hex(8)}",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": _usage(body, written),
    }


def _usage(body: dict[str, Any], written: str) -> dict[str, int]:
    """Plausible counts: with a cache mark all but the newest exchange is read from the cache, that one is written."""
    sizes = [len(json.dumps(message)) // _CHARS_PER_TOKEN + 1 for message in body["messages"]]
    prompt = (
        len(json.dumps(body.get("system", ""))) + len(json.dumps(body.get("tools", "")))
    ) // _CHARS_PER_TOKEN
    total = prompt + sum(sizes)
    output = len(written) // _CHARS_PER_TOKEN + 1
    read = created = 0
    if '"cache_control"' in json.dumps(body):
        read = prompt + sum(sizes[:-2]) if len(sizes) > 1 else 0
        created = total - read - 3
    return {
        "input_tokens": total - read - created,
        "cache_creation_input_tokens": created,
        "cache_read_input_tokens": read,
        "output_tokens": output,
    }


async def _stream(
    message: dict[str, Any],
    answer: Answer,
    pace: ModelPace,
    sleep: Callable[[float], Awaitable[None]],
) -> AsyncIterator[bytes]:
    usage = message["usage"]
    start = {**message, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    yield _event("message_start", message=start)
    yield _event("ping")
    if answer.shape is Shape.STALLED:
        await sleep(_STALL_S)
    for index, block in enumerate(message["content"]):
        empty = {**block, "text": ""} if block["type"] == "text" else {**block, "input": {}}
        yield _event("content_block_start", index=index, content_block=empty)
        pieces = _pieces(block, answer.shape)
        pause_s = _pause_s(answer, pace, len(pieces))
        for number, delta in enumerate(pieces):
            if answer.shape is Shape.CUT and number >= len(pieces) / 2:
                return
            yield _event("content_block_delta", index=index, delta=delta)
            if pause_s:
                await sleep(pause_s)
        yield _event("content_block_stop", index=index)
    end = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield _event("message_delta", delta=end, usage={"output_tokens": usage["output_tokens"]})
    yield _event("message_stop")


def _pieces(block: dict[str, Any], shape: Shape) -> list[dict[str, str]]:
    """The deltas that make up one content block."""
    if block["type"] == "tool_use":
        text = json.dumps(block["input"])
        half = len(text) // 2
        return [
            {"type": "input_json_delta", "partial_json": part}
            for part in ("", text[:half], text[half:])
        ]
    text = block["text"]
    if shape is Shape.SLOW:
        parts = re.findall(r"\S+\s*", text)
    else:
        parts = [text[start : start + _DELTA_CHARS] for start in range(0, len(text), _DELTA_CHARS)]
    return [{"type": "text_delta", "text": part} for part in parts]


def _pause_s(answer: Answer, pace: ModelPace, pieces: int) -> float:
    if answer.shape is not Shape.SLOW:
        return min(pace.word_s * _DELTA_CHARS / _WORD_CHARS, _MAX_NORMAL_S / max(1, pieces))
    return pace.slow_word_s if answer.number is None else answer.number / max(1, pieces)


def _event(kind: str, **fields: object) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()
