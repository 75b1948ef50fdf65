"""OpenAI's Chat Completions API, as the offline model speaks it.

Shapes of messages and chunks. Source: OpenAI API reference, "Chat Completions" and "The chat completion chunk object", read
2026-11, and what OpenCode 1.18.33 and Copilot CLI 1.0.102 send and accept.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from typing_extensions import override

from app.playground.model import openai
from app.playground.model.answers import Shape
from app.playground.model.protocol import (
    Block,
    Reply,
    Stop,
    Stream,
    data_event,
    split_input,
    split_text,
)
from app.playground.model.question import Message, Question, RequestError, Tool, wire_chars

_FINISH_REASONS = {
    Stop.DONE: "stop",
    Stop.TOOL: "tool_calls",
    Stop.LENGTH: "length",
    Stop.REFUSED: "stop",
}


class ChatCompletions(openai.OpenAiProtocol):
    """POST /v1/chat/completions."""

    garbage = b"data: {<html>no gateway speaks like this</html>\n\n"

    def __init__(self) -> None:
        self._has_usage = False

    @override
    def read(self, headers: Mapping[str, str], body: object) -> Question:
        fields = openai.check_caller(headers, body)
        sent = fields.get("messages")
        if not isinstance(sent, list) or not sent:
            raise openai.invalid("Missing required parameter: 'messages'.")
        _check_calls(sent)
        if sent[-1].get("role") not in ("user", "tool"):
            raise openai.invalid("the last message must be the user's, or a tool's")
        options = fields.get("stream_options")
        if options is not None and not fields.get("stream"):
            raise openai.invalid("The 'stream_options' parameter is only allowed with 'stream'.")
        self._has_usage = bool((options or {}).get("include_usage"))
        return Question(
            model=fields["model"],
            messages=[said for message in sent for said in _said(message)],
            system="\n".join(
                openai.text_of(message.get("content"))
                for message in sent
                if message["role"] in ("system", "developer")
            ),
            tools={tool.name: tool for tool in _tools(fields.get("tools") or ())},
            schema=_schema(fields.get("response_format")),
            max_output_tokens=openai.read_limit(fields, "max_completion_tokens", "max_tokens"),
            is_stream=bool(fields.get("stream")),
            prompt_chars=wire_chars(fields.get("tools", "")),
            message_chars=[wire_chars(message) for message in sent],
        )

    @override
    def plain(self, question: Question, reply: Reply) -> dict[str, Any]:
        message: dict[str, Any] = {
            "role": "assistant",
            "content": reply.text or None,
            "refusal": openai.REFUSAL if reply.stop is Stop.REFUSED else None,
        }
        if reply.tool is not None:
            message["tool_calls"] = [_call(reply)]
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": _FINISH_REASONS[reply.stop],
        }
        return {
            **_head(question, "chat.completion"),
            "choices": [choice],
            "usage": _usage(reply),
        }

    @override
    def stream(self, question: Question, reply: Reply, shape: Shape) -> Stream:
        head = _head(question, "chat.completion.chunk")
        if self._has_usage:
            head["usage"] = None

        def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
            return data_event(head | {"choices": [choice]})

        blocks = []
        field, text = (
            ("refusal", openai.REFUSAL) if reply.stop is Stop.REFUSED else ("content", reply.text)
        )
        if text:
            pieces = [chunk({field: piece}) for piece in split_text(text, shape)]
            blocks.append(Block(pieces=pieces))
        if reply.tool is not None:
            call = _call(reply)
            blocks.append(Block(pieces=[chunk({"tool_calls": [part]}) for part in _parts(call)]))
        closing = chunk({}, _FINISH_REASONS[reply.stop])
        if self._has_usage:
            closing += data_event(head | {"choices": [], "usage": _usage(reply)})
        return Stream(
            opening=chunk({"role": "assistant", "content": "", "refusal": None}),
            blocks=blocks,
            closing=closing + b"data: [DONE]\n\n",
        )


def _check_calls(messages: Sequence[object]) -> None:
    """Each call is answered right behind the message that makes it."""
    open_calls: list[object] = []
    for message in messages:
        if not isinstance(message, dict):
            raise openai.invalid("Invalid type for 'messages[0]': expected an object.")
        role = message.get("role")
        if role == "tool":
            if message.get("tool_call_id") not in open_calls:
                raise openai.invalid(
                    "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
                )
            open_calls.remove(message["tool_call_id"])
            continue
        if open_calls:
            raise _unanswered(open_calls)
        if role not in ("system", "developer", "user", "assistant"):
            raise openai.invalid(
                f"Invalid value: '{role}'. Supported values are: 'system', 'assistant', 'user', 'function', 'tool', and 'developer'.",
                code="invalid_value",
            )
        open_calls = [call.get("id") for call in message.get("tool_calls") or ()]
        if not open_calls and role != "assistant" and message.get("content") is None:
            raise openai.invalid(f"Invalid value for 'content' of a {role} message: got null.")
    if open_calls:
        raise _unanswered(open_calls)


def _unanswered(calls: Sequence[object]) -> RequestError:
    return openai.invalid(
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "
        f"The following tool_call_ids did not have response messages: {', '.join(map(str, calls))}"
    )


def _said(message: dict[str, Any]) -> Iterator[Message]:
    role = message["role"]
    if role in ("user", "assistant", "tool"):
        yield Message(role=role, text=openai.text_of(message.get("content")))


def _tools(given: Sequence[dict[str, Any]]) -> Iterator[Tool]:
    for tool in given:
        kind = tool.get("type")
        if kind not in ("function", "custom"):
            raise openai.invalid(
                f"Invalid value: '{kind}'. Supported values are: 'function' and 'custom'.",
                code="invalid_value",
            )
        yield openai.read_tool(tool.get(kind) or {}, is_freeform=kind == "custom")


def _schema(response_format: object) -> Mapping[str, Any] | None:
    match response_format:
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return schema
        case {"type": "json_object"}:
            return {"type": "object"}
        case _:
            return None


def _head(question: Question, kind: str) -> dict[str, Any]:
    return {
        "id": openai.new_id("chatcmpl"),
        "object": kind,
        "created": int(time.time()),
        "model": question.model,
    }


def _call(reply: Reply) -> dict[str, Any]:
    tool = reply.tool
    assert tool is not None  # noqa: S101 - asked for by callers that have one
    call_id = openai.new_id("call")
    if tool.is_freeform:
        custom = {"name": tool.name, "input": tool.written}
        return {"id": call_id, "type": "custom", "custom": custom}
    function = {"name": tool.name, "arguments": tool.written}
    return {"id": call_id, "type": "function", "function": function}


def _parts(call: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Returns a call as its deltas: its name first, then what it is given, in pieces."""
    kind = call["type"]
    field = "arguments" if kind == "function" else "input"
    first, *rest = split_input(call[kind][field])
    yield {"index": 0} | call | {kind: call[kind] | {field: first}}
    for piece in rest:
        yield {"index": 0, kind: {field: piece}}


def _usage(reply: Reply) -> dict[str, Any]:
    counts = reply.counts
    return {
        "prompt_tokens": counts.input_tokens,
        "completion_tokens": counts.output_tokens,
        "total_tokens": counts.input_tokens + counts.output_tokens,
        "prompt_tokens_details": {"cached_tokens": openai.cached_tokens(counts)},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
