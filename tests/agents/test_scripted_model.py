"""The anthropic agent against answers the offline model does not give: rare errors, rare stop reasons, rude input."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agent_scripts.events import AgentErrorCode, ToolFinished
from tests.agents.bench import Bench, serve
from tests.long import long_but

pytestmark = pytest.mark.agents
_BY_STATUS = AgentErrorCode.MODEL_BILLING
_IN_MID_STREAM = AgentErrorCode.MODEL_OVERLOADED
_AT_THE_END = AgentErrorCode.NO_ANSWER

Block = dict[str, Any]
Serve = Callable[..., AbstractAsyncContextManager["Script"]]


@dataclass
class Script:
    """Answers to give one after the other, the last one for ever, and the requests that came."""

    answers: list[Response]
    requests: list[dict[str, Any]] = field(default_factory=list)

    async def answer(self, request: Request) -> Response:
        self.requests.append(await request.json())
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def message(stop_reason: str | None, *blocks: Block) -> Response:
    """A stream of whole blocks. Source: anthropic 2.12.0, types/raw_message_stream_event.py."""
    start: Block = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-x",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
    events: list[Block] = [{"type": "message_start", "message": start}]
    for index, block in enumerate(blocks):
        is_text = block["type"] == "text"
        empty = {**block, "text": ""} if is_text else {**block, "input": {}}
        delta = (
            {"type": "text_delta", "text": block["text"]}
            if is_text
            else {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        )
        events.append({"type": "content_block_start", "index": index, "content_block": empty})
        events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events.append({"type": "content_block_stop", "index": index})
    if stop_reason is not None:
        end = {"stop_reason": stop_reason, "stop_sequence": None}
        events.append({"type": "message_delta", "delta": end, "usage": {"output_tokens": 5}})
        events.append({"type": "message_stop"})
    return stream(*events)


def stream(*events: Block) -> Response:
    body = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    return Response(body, media_type="text/event-stream")


def failure(status: int, kind: str, words: str) -> Response:
    return JSONResponse(
        {"type": "error", "error": {"type": kind, "message": words}}, status_code=status
    )


def text(value: str) -> Block:
    return {"type": "text", "text": value}


def call(tool: str, **arguments: object) -> Block:
    return {"type": "tool_use", "id": "toolu_1", "name": tool, "input": arguments}


@pytest.fixture
def scripted(bench: Bench) -> Serve:
    @asynccontextmanager
    async def start(*answers: Response) -> AsyncIterator[Script]:
        script = Script(answers=list(answers))
        app = Starlette(routes=[Route("/v1/messages", script.answer, methods=["POST"])])
        async with serve(app, bench.socket_path):
            yield script

    return start


@pytest.mark.parametrize(
    ("answer", "code"),
    long_but(
        [
            (failure(401, "authentication_error", "bad key"), AgentErrorCode.MODEL_AUTH_FAILED),
            (failure(403, "permission_error", "no"), AgentErrorCode.MODEL_AUTH_FAILED),
            (failure(402, "billing_error", "no credit"), AgentErrorCode.MODEL_BILLING),
            (failure(404, "not_found_error", "model: x"), AgentErrorCode.MODEL_NOT_FOUND),
            (failure(413, "request_too_large", "too large"), AgentErrorCode.MODEL_CONTEXT_EXCEEDED),
            (failure(400, "invalid_request_error", "bad field"), AgentErrorCode.EXECUTION_FAILED),
            (
                stream({"type": "error", "error": {"type": "overloaded_error", "message": "o"}}),
                AgentErrorCode.MODEL_OVERLOADED,
            ),
            (
                stream({"type": "error", "error": {"type": "api_error", "message": "o"}}),
                AgentErrorCode.MODEL_UNAVAILABLE,
            ),
            (
                stream({"type": "error", "error": {"type": "rate_limit_error", "message": "o"}}),
                AgentErrorCode.MODEL_RATE_LIMITED,
            ),
            (
                Response(
                    "event: message_start\ndata: {not json\n\n", media_type="text/event-stream"
                ),
                AgentErrorCode.MODEL_UNAVAILABLE,
            ),
            (Response("", media_type="text/event-stream"), AgentErrorCode.MODEL_UNAVAILABLE),
            (message(None, text("half an ans")), AgentErrorCode.MODEL_UNAVAILABLE),
            (
                message("model_context_window_exceeded", text("a")),
                AgentErrorCode.MODEL_CONTEXT_EXCEEDED,
            ),
            (message("refusal"), AgentErrorCode.MODEL_REFUSED),
            (message("end_turn"), AgentErrorCode.NO_ANSWER),
        ],
        lambda row: row[1] in (_BY_STATUS, _IN_MID_STREAM, _AT_THE_END),
    ),
)
async def test_failures(
    bench: Bench, scripted: Serve, answer: Response, code: AgentErrorCode
) -> None:
    """Errors by status, errors in mid-stream, cut streams and stop reasons have their codes."""
    async with scripted(answer):
        turn = await bench.ask("hello")
    assert turn.finished.error is code, turn.finished
    assert "Traceback" not in turn.stderr


async def test_passing_failure_is_retried(bench: Bench, scripted: Serve) -> None:
    """One 529 costs no answer."""
    async with scripted(failure(529, "overloaded_error", "o"), message("end_turn", text("fine"))):
        turn = await bench.ask("hello")
    assert turn.finished.error is None
    assert turn.finished.text == "fine"


async def test_last_turn_is_the_answer(bench: Bench, scripted: Serve) -> None:
    """Text of earlier model turns is only streamed; a paused turn and its continuation are one."""
    answers = (
        message("tool_use", text("Let me look."), call("shell", command="echo hi")),
        message("pause_turn", text("It says ")),
        message("end_turn", text("hi.")),
    )
    async with scripted(*answers) as script:
        turn = await bench.ask("hello")
    assert turn.finished.text == "It says hi."
    result = script.requests[1]["messages"][-1]["content"][0]
    assert (result["type"], result["content"], result["is_error"]) == (
        "tool_result",
        "hi\n[exit code 0]",
        False,
    )
    assert script.requests[2]["messages"][-1]["role"] == "assistant"


@pytest.mark.parametrize(
    ("block", "words"),
    long_but(
        [
            (call("teleport"), "no tool 'teleport'"),
            (call("shell"), "command must be given"),
            (
                call("shell", command="sleep 60 & setsid -f sleep 60; sleep 60", timeout_s=1),
                "killed: still running after 1 s",
            ),
            (call("shell", command="head -c 200000 /dev/zero | tr '\\0' x; false"), "bytes cut"),
            (call("edit_file", path="none.txt", action="view"), "FileNotFoundError"),
        ],
        lambda row: row[1] in ("no tool 'teleport'", "killed: still running after 1 s"),
    ),
)
async def test_tool_failures_are_told_to_the_model(
    bench: Bench, scripted: Serve, block: Block, words: str
) -> None:
    """What a tool cannot do is a result marked as an error, and the turn goes on."""
    async with scripted(message("tool_use", block), message("end_turn", text("I see."))) as script:
        turn = await bench.ask("hello")
    assert turn.finished.text == "I see."
    result = script.requests[1]["messages"][-1]["content"][0]
    assert words in result["content"]
    assert result["is_error"] is True
    assert len(result["content"]) < 31_000
    assert [event.is_error for event in turn.events if isinstance(event, ToolFinished)] == [True]


async def test_broken_stream_is_asked_for_again(bench: Bench, scripted: Serve) -> None:
    """A stream that fails before its first word is repeated; nobody has seen anything of it."""
    overloaded = {"type": "error", "error": {"type": "overloaded_error", "message": "o"}}
    async with scripted(stream(overloaded), message("end_turn", text("fine"))) as script:
        turn = await bench.ask("hello")
    assert (turn.finished.error, turn.finished.text) == (None, "fine")
    assert script.requests[0] == script.requests[1]
