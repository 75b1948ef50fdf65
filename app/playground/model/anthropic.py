"""The Anthropic Messages API, as the offline model speaks it.

Shapes of requests, streams and errors. Source: Anthropic Messages API, "Streaming messages" and "Errors", and the types
of anthropic 2.12.0, read 2026-11.
"""

import base64
import json
import re
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from typing_extensions import override

from app.playground.model.answers import Shape
from app.playground.model.protocol import (
    Block,
    OfflineProtocol,
    Refusal,
    Reply,
    Stop,
    Stream,
    named_event,
    split_input,
    split_text,
)
from app.playground.model.question import REVOKED, Message, Question, RequestError, Tool, wire_chars

_FAILURES: Mapping[Shape, Refusal] = {
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
_IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_TOLD = re.compile(
    r"The user sent a new message while you were working:\n(.*?)\n\nThis is how Claude Code surfaces",
    re.DOTALL,
)
"""How Claude Code 2.1.330 puts what it is told in mid-turn, as recorded 2026-11."""
_IMAGE_BYTES = 5_000_000
"""In base64."""
_STOP_REASONS = {
    Stop.DONE: "end_turn",
    Stop.TOOL: "tool_use",
    Stop.LENGTH: "max_tokens",
    Stop.REFUSED: "refusal",
}


class AnthropicMessages(OfflineProtocol):
    """POST /v1/messages."""

    request_id_header = "request-id"
    failures = _FAILURES
    garbage = b"event: message_start\ndata: {<html>no gateway speaks like this</html>\n\n"

    @override
    def read(self, headers: Mapping[str, str], body: object) -> Question:
        fields = _check(headers, body)
        has_mark = '"cache_control"' in json.dumps(fields)
        return Question(
            model=fields["model"],
            messages=[said for message in fields["messages"] for said in _said(message)],
            system=_text_of(fields.get("system") or ""),
            tools={
                str(tool.get("name")): Tool(
                    name=str(tool.get("name")),
                    properties=(tool.get("input_schema") or {}).get("properties") or {},
                )
                for tool in fields.get("tools") or ()
            },
            max_output_tokens=fields["max_tokens"],
            is_stream=bool(fields.get("stream")),
            uses_cache=has_mark,
            prompt_chars=wire_chars(fields.get("system", "")) + wire_chars(fields.get("tools", "")),
            message_chars=[wire_chars(message) for message in fields["messages"]],
        )

    @override
    def error(self, problem: RequestError, request_id: str) -> dict[str, Any]:
        error = {"type": problem.kind, "message": str(problem)}
        return {"type": "error", "error": error, "request_id": request_id}

    @override
    def plain(self, question: Question, reply: Reply) -> dict[str, Any]:
        content: list[dict[str, Any]] = [{"type": "text", "text": reply.text}] if reply.text else []
        if reply.tool is not None:
            call_id = f"toolu_offline_{secrets.token_hex(8)}"
            name, given = reply.tool.name, reply.tool.input
            content.append({"type": "tool_use", "id": call_id, "name": name, "input": given})
        return {
            "id": f"msg_offline_{secrets.token_hex(8)}",
            "type": "message",
            "role": "assistant",
            "model": question.model,
            "content": content,
            "stop_reason": _STOP_REASONS[reply.stop],
            "stop_sequence": None,
            "usage": _usage(question, reply),
        }

    @override
    def stream(self, question: Question, reply: Reply, shape: Shape) -> Stream:
        message = self.plain(question, reply)
        usage = message["usage"]
        start = {"content": [], "stop_reason": None, "usage": usage | {"output_tokens": 1}}
        end = {"stop_reason": message["stop_reason"], "stop_sequence": None}
        count = {"output_tokens": usage["output_tokens"]}
        return Stream(
            opening=named_event("message_start", message=message | start) + named_event("ping"),
            blocks=[_block(index, block, shape) for index, block in enumerate(message["content"])],
            closing=named_event("message_delta", delta=end, usage=count)
            + named_event("message_stop"),
        )


def _check(headers: Mapping[str, str], body: object) -> dict[str, Any]:
    """Refuse what the API refuses."""
    bearer = headers.get("authorization", "").lower().startswith("bearer ")
    if not headers.get("x-api-key") and not bearer:
        raise RequestError(401, "authentication_error", "x-api-key header is required")
    if REVOKED in headers.get("x-api-key", ""):
        raise RequestError(401, "authentication_error", "invalid x-api-key")
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
    return body


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
        blocks = _blocks(message)
        if not blocks:
            raise _invalid(f"messages.{index}: content must not be empty")
        for block in blocks:
            _check_block(index, block)
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


def _blocks(message: dict[str, Any]) -> list[Any]:
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content if isinstance(content, list) else []


def _said(message: dict[str, Any]) -> list[Message]:
    blocks = _blocks(message)
    if message["role"] == "system":
        told = _TOLD.findall(_text_of(blocks))
        return [Message(role="user", text=text, is_beside=True) for text in told]
    results = [block for block in blocks if block["type"] == "tool_result"]
    given = [Message(role="tool", text=_text_of(block.get("content", ""))) for block in results]
    text = _text_of([block for block in blocks if not _is_reminder(block)])
    if given and not text:
        return given
    return [*given, Message(role=message["role"], text=text, is_beside=bool(given))]


def _is_reminder(block: dict[str, Any]) -> bool:
    """Claude Code adds such blocks to what a person wrote."""
    return str(block.get("text")).startswith("<system-reminder>")


def _text_of(content: str | list[dict[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(_SHOWN[block["type"]](block) for block in content if block["type"] in _SHOWN)


_SHOWN: Mapping[str, Callable[[dict[str, Any]], str]] = {
    "image": lambda block: f"[{block['source']['media_type']}, {_size_of_image(block):,} bytes]",
    "text": lambda block: str(block["text"]),
}


def _size_of_image(block: dict[str, Any]) -> int:
    return len(base64.b64decode(block["source"]["data"]))


def _check_block(index: int, block: object) -> None:
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        raise _invalid(f"messages.{index}: every content block needs a type")
    if block["type"] == "text" and not str(block.get("text")).strip():
        raise _invalid(f"messages.{index}: text content blocks must be non-empty")
    if block["type"] == "image":
        _check_image(index, block)


def _check_image(index: int, block: dict[str, Any]) -> None:
    """Source: Anthropic Messages API, "Vision": base64, four types, at most 5 MB each; read 2026-11."""
    source = block.get("source")
    if not isinstance(source, dict) or source.get("media_type") not in _IMAGE_TYPES:
        raise _invalid(f"messages.{index}: image.source: media_type is not supported")
    try:
        base64.b64decode(source.get("data", ""), validate=True)
    except ValueError as exc:
        raise _invalid(f"messages.{index}: image.source.data: invalid base64") from exc
    if not 0 < len(source["data"]) <= _IMAGE_BYTES:
        raise _invalid(f"messages.{index}: image exceeds 5 MB maximum")


def _usage(question: Question, reply: Reply) -> dict[str, int]:
    """Counts tokens: with a cache mark all but the newest exchange is read from the cache, that one is written."""
    counts = reply.counts
    read = counts.earlier_tokens if question.uses_cache else 0
    created = counts.input_tokens - read - 3 if question.uses_cache else 0
    return {
        "input_tokens": counts.input_tokens - read - created,
        "cache_creation_input_tokens": created,
        "cache_read_input_tokens": read,
        "output_tokens": counts.output_tokens,
    }


def _block(index: int, block: dict[str, Any], shape: Shape) -> Block:
    is_text = block["type"] == "text"
    empty = block | {"text": ""} if is_text else block | {"input": {}}
    if is_text:
        deltas = [
            {"type": "text_delta", "text": piece} for piece in split_text(block["text"], shape)
        ]
    else:
        deltas = [
            {"type": "input_json_delta", "partial_json": piece}
            for piece in split_input(json.dumps(block["input"]))
        ]
    return Block(
        start=named_event("content_block_start", index=index, content_block=empty),
        pieces=[named_event("content_block_delta", index=index, delta=delta) for delta in deltas],
        end=named_event("content_block_stop", index=index),
    )
