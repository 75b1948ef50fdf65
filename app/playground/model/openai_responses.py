"""OpenAI's Responses API, as the offline model speaks it.

Shapes of items and events. Source: OpenAI API reference, "Responses" and "Streaming events", read 2026-11, and what Codex
0.169.0, OpenCode 1.18.33 and Copilot CLI 1.0.102 send and accept.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from typing_extensions import override

from app.playground.model import openai
from app.playground.model.answers import Shape
from app.playground.model.protocol import (
    Block,
    Reply,
    Stop,
    Stream,
    named_event,
    split_input,
    split_text,
)
from app.playground.model.question import Message, Question, RequestError, Tool, wire_chars

_CALLS = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}
_SILENT = ("reasoning", "item_reference", "compaction")
"""Items without a text for us."""


class OpenAiResponses(openai.OpenAiProtocol):
    """POST /v1/responses."""

    garbage = b"event: response.created\ndata: {<html>no gateway speaks like this</html>\n\n"

    def __init__(self) -> None:
        self._is_stream = False

    @override
    def read(self, headers: Mapping[str, str], body: object) -> Question:
        fields = openai.check_caller(headers, body)
        items = _items(fields.get("input"))
        _check_calls(items)
        self._is_stream = bool(fields.get("stream"))
        system, messages = _read_items(items)
        if not messages or messages[-1].role == "assistant":
            raise openai.invalid("the last item of 'input' must be a user message or an output")
        return Question(
            model=fields["model"],
            messages=messages,
            system=f"{fields.get('instructions') or ''}\n{system}",
            tools={tool.name: tool for tool in _tools(fields.get("tools") or ())},
            schema=_schema(fields.get("text")),
            max_output_tokens=openai.read_limit(fields, "max_output_tokens"),
            is_stream=self._is_stream,
            prompt_chars=wire_chars(fields.get("instructions", ""))
            + wire_chars(fields.get("tools", "")),
            message_chars=[wire_chars(item) for item in items],
        )

    @override
    def failure(self, shape: Shape) -> RequestError | None:
        # A stream has begun when the model finds that its input is too long: `response.failed` tells it.
        is_told_later = shape is Shape.CONTEXT and self._is_stream
        return None if is_told_later else super().failure(shape)

    @override
    def plain(self, question: Question, reply: Reply) -> dict[str, Any]:
        return _response(question, reply, _output(reply))

    @override
    def stream(self, question: Question, reply: Reply, shape: Shape) -> Stream:
        events = _Events()
        output = _output(reply)
        whole = _response(question, reply, output)
        begun = whole | {"status": "in_progress", "output": [], "usage": None}
        begun["incomplete_details"] = None
        opening = events.event("response.created", response=begun)
        opening += events.event("response.in_progress", response=begun)
        if shape is Shape.CONTEXT:
            error = {"code": openai.CONTEXT_CODE, "message": openai.TOO_LONG}
            failed = begun | {"status": "failed", "error": error}
            return Stream(
                opening=opening,
                blocks=(),
                closing=events.event("response.failed", response=failed),
            )
        blocks = [events.block(index, item, shape) for index, item in enumerate(output)]
        return Stream(
            opening=opening,
            blocks=blocks,
            closing=events.event(f"response.{whole['status']}", response=whole),
        )


class _Events:
    """Events of one stream, which are numbered."""

    def __init__(self) -> None:
        self._numbers = count()

    def event(self, kind: str, **fields: object) -> bytes:
        return named_event(kind, sequence_number=next(self._numbers), **fields)

    def block(self, index: int, item: dict[str, Any], shape: Shape) -> Block:
        where = {"item_id": item["id"], "output_index": index}
        empty = {"status": "in_progress"}
        match item["type"]:
            case "message":
                part = item["content"][0]
                return self._text_block(item | empty | {"content": []}, item, part, where, shape)
            case "function_call":
                name, field = "response.function_call_arguments", "arguments"
            case _:
                name, field = "response.custom_tool_call_input", "input"
        start = self.event(
            "response.output_item.added", output_index=index, item=item | empty | {field: ""}
        )
        pieces = [
            self.event(f"{name}.delta", **where, delta=piece) for piece in split_input(item[field])
        ]
        end = self.event(f"{name}.done", **where, **{field: item[field]})
        end += self.event("response.output_item.done", output_index=index, item=item)
        return Block(start=start, pieces=pieces, end=end)

    def _text_block(
        self,
        begun: dict[str, Any],
        item: dict[str, Any],
        part: dict[str, Any],
        where: dict[str, Any],
        shape: Shape,
    ) -> Block:
        field = "text" if part["type"] == "output_text" else "refusal"
        name = f"response.{part['type']}"
        index = where["output_index"]
        here = where | {"content_index": 0}
        start = self.event("response.output_item.added", output_index=index, item=begun)
        start += self.event("response.content_part.added", **here, part=part | {field: ""})
        pieces = [
            self.event(f"{name}.delta", **here, delta=piece)
            for piece in split_text(part[field], shape)
        ]
        end = self.event(f"{name}.done", **here, **{field: part[field]})
        end += self.event("response.content_part.done", **here, part=part)
        end += self.event("response.output_item.done", output_index=index, item=item)
        return Block(start=start, pieces=pieces, end=end)


def _items(given: object) -> list[dict[str, Any]]:
    if isinstance(given, str) and given:
        return [{"type": "message", "role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise openai.invalid("Missing required parameter: 'input'.")
    if not all(isinstance(item, dict) for item in given):
        raise openai.invalid("Invalid type for 'input[0]': expected an object.")
    return [{"type": "message"} | item for item in given]


def _check_calls(items: Sequence[dict[str, Any]]) -> None:
    """Each call has its output, each output its call before it."""
    called: dict[object, str] = {}
    answered: set[object] = set()
    for item in items:
        kind, call_id = item["type"], item.get("call_id")
        if kind in _CALLS:
            called[call_id] = _CALLS[kind]
        elif kind in _CALLS.values():
            if called.get(call_id) != kind:
                raise openai.invalid(
                    f"No tool call found for function call output with call_id {call_id}."
                )
            answered.add(call_id)
    missing = [call_id for call_id in called if call_id not in answered]
    if missing:
        raise openai.invalid(f"No tool output found for function call {missing[0]}.")


def _read_items(items: Sequence[dict[str, Any]]) -> tuple[str, list[Message]]:
    """Returns what the system says, and the conversation."""
    system: list[str] = []
    messages: list[Message] = []
    for index, item in enumerate(items):
        match item:
            case {"type": "message", "role": "system" | "developer", "content": content}:
                system.append(openai.text_of(content))
            case {"type": "message", "role": "user" | "assistant" as role, "content": content}:
                messages.append(Message(role=role, text=openai.text_of(content)))
            case {"type": "message"}:
                raise openai.invalid(
                    f"Invalid value: '{item.get('role')}'. Supported values are: 'assistant', 'system', 'developer', and 'user'.",
                    code="invalid_value",
                )
            case {"type": kind} if kind in _CALLS.values():
                messages.append(Message(role="tool", text=openai.text_of(item.get("output", ""))))
            case {"type": kind} if kind in _CALLS or kind in _SILENT:
                pass
            case _:
                raise openai.invalid(
                    f"Invalid value: '{item['type']}' (input[{index}].type).", code="invalid_value"
                )
    return "\n".join(system), messages


def _tools(given: Sequence[dict[str, Any]]) -> Iterator[Tool]:
    for tool in given:
        match tool.get("type"):
            case "function":
                yield openai.read_tool(tool, is_freeform=False)
            case "custom":
                yield openai.read_tool(tool, is_freeform=True)
            case "namespace":
                for inner in tool.get("tools") or ():
                    yield openai.read_tool(
                        inner, is_freeform=inner.get("type") == "custom", namespace=tool["name"]
                    )
            case _:  # it would run at the provider
                pass


def _schema(text: object) -> Mapping[str, Any] | None:
    match text:
        case {"format": {"type": "json_schema", "schema": dict(schema)}}:
            return schema
        case {"format": {"type": "json_object"}}:
            return {"type": "object"}
        case _:
            return None


def _output(reply: Reply) -> list[dict[str, Any]]:
    output: list[dict[str, Any]] = []
    is_refused = reply.stop is Stop.REFUSED
    if reply.text or is_refused:
        part: dict[str, Any] = {"type": "output_text", "text": reply.text, "annotations": []}
        if is_refused:
            part = {"type": "refusal", "refusal": openai.REFUSAL}
        status = "incomplete" if reply.stop is Stop.LENGTH else "completed"
        output.append(
            {
                "id": openai.new_id("msg"),
                "type": "message",
                "status": status,
                "role": "assistant",
                "content": [part],
            }
        )
    if reply.tool is not None:
        kind = "custom_tool_call" if reply.tool.is_freeform else "function_call"
        call = {
            "id": openai.new_id("ctc" if reply.tool.is_freeform else "fc"),
            "type": kind,
            "status": "completed",
            "call_id": openai.new_id("call"),
            "name": reply.tool.name,
            "input" if reply.tool.is_freeform else "arguments": reply.tool.written,
        }
        if reply.tool.namespace:
            call["namespace"] = reply.tool.namespace
        output.append(call)
    return output


def _response(question: Question, reply: Reply, output: list[dict[str, Any]]) -> dict[str, Any]:
    is_cut = reply.stop is Stop.LENGTH
    counts = reply.counts
    return {
        "id": openai.new_id("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "status": "incomplete" if is_cut else "completed",
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "instructions": None,
        "max_output_tokens": question.max_output_tokens,
        "model": question.model,
        "output": output,
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "store": False,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": counts.input_tokens,
            "input_tokens_details": {"cached_tokens": openai.cached_tokens(counts)},
            "output_tokens": counts.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": counts.input_tokens + counts.output_tokens,
        },
    }
