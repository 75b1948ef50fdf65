"""Rules for the Anthropic Messages API: what a run may request, and how usage is read from an answer. Pure."""

import json
from collections import Counter
from typing import Any

from app.brokerage.http import (
    IncomingRequest,
    ModelRequest,
    Refusal,
    find_unknown,
    forbidden,
    invalid,
    quote,
    read_object,
)
from app.brokerage.usage import EventUsage, text_bytes
from app.runs.broker import CONTEXT_EXCEEDED, ModelGrant

CLIENT_TOOLS = ("custom", "bash_", "text_editor_", "computer_", "memory_")
"""Prefixes of tools that run where the agent is. Others run at the provider and reach the internet for the sandbox.

Source: Anthropic API, tools of the Messages endpoint, read 2026-11.
"""

REQUEST_FIELDS = frozenset(
    {
        *("model", "messages", "system", "tools", "tool_choice", "metadata"),
        *("max_tokens", "stream"),
        *("thinking", "temperature", "top_p", "top_k", "stop_sequences", "cache_control"),
        *("context_management", "context_hint", "output_config", "safeguards"),
    }
)
"""Everything else is refused: `mcp_servers` reaches the network, `container` keeps files at the provider, `fallbacks` names other
models, `speed` and `service_tier` another price; and what is new is not known to be harmless.

Source: Anthropic Messages API; the list that Claude Code 2.1.330 has for the same purpose; read 2026-11.
"""
MESSAGE_FIELDS = frozenset({"role", "content", "output_config", "clear_at"})
INLINE_SOURCES = ("base64", "text", "content")
"""Sources of images and documents that are in the request itself; `url` would be fetched, `file` is of the operator's account."""

_PROMPT_TOO_LONG = "prompt is too long"
"""Source: Anthropic Messages API, "Errors" and context windows, read 2026-11; there is no error type of its own."""
_COUNTS = {
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cache_read_tokens": "cache_read_input_tokens",
    "cache_creation_tokens": "cache_creation_input_tokens",
}
"""Names of `Usage`'s fields, and the API's names for them."""


def check_messages(incoming: IncomingRequest, grant: ModelGrant) -> ModelRequest | Refusal:
    """Checks a request against its grant: the model, the size of the answer, and nothing that reaches the network elsewhere."""
    fields = read_object(incoming.body)
    if fields is None or not isinstance(fields.get("model"), str):
        return invalid("the body must be a JSON object with a model")
    problem = _problem(fields, grant)
    if problem:
        return forbidden(problem)
    return ModelRequest(
        model=fields["model"],
        path=incoming.path,
        body=json.dumps(fields).encode(),
        has_output=not incoming.path.endswith("/count_tokens"),
    )


def read_messages_event(event: dict[str, Any]) -> EventUsage:
    """Reads the usage in one event, or in a whole answer.

    Source: Anthropic Messages API, streaming: `message_start` carries the input counts, each `message_delta` the
    cumulative output count; read 2026-11.
    """
    match event:
        case {"type": "message_start", "message": {"usage": dict(usage)}}:
            return EventUsage(counts=_counts(usage))
        case {"type": "message_delta" | "message", "usage": dict(usage)}:
            return EventUsage(counts=_counts(usage))
        case {"type": "content_block_delta" | "content_block_start"}:
            return EventUsage(has_started=True, output_bytes=text_bytes(event))
        case {"type": "error", "error": {"type": str(error), **told}}:
            is_too_long = _PROMPT_TOO_LONG in str(told.get("message", "")).casefold()
            return EventUsage(error=CONTEXT_EXCEEDED if is_too_long else error)
        case _:
            return EventUsage()


def render_error(refused: Refusal) -> dict[str, Any]:
    """Renders a refusal as the Messages API does."""
    return {"type": "error", "error": {"type": refused.kind, "message": refused.message}}


def _counts(usage: dict[str, Any]) -> dict[str, int]:
    """Returns the counts including compaction, a call of its own that the counts of the answer itself leave out.

    Source: Claude documentation, Compaction, "Understanding usage", read 2026-11.
    """
    iterations = usage.get("iterations")
    counts = _own_counts(usage)
    together: Counter[str] = Counter()
    for one in iterations if isinstance(iterations, list) else ():
        together.update(_own_counts(one) if isinstance(one, dict) else {})
    return counts | {name: max(total, counts.get(name, 0)) for name, total in together.items()}


def _own_counts(usage: dict[str, Any]) -> dict[str, int]:
    creation = usage.get("cache_creation")
    kept = creation.get("ephemeral_1h_input_tokens") if isinstance(creation, dict) else None
    found = {name: usage.get(told) for name, told in _COUNTS.items()}
    found["cache_creation_1h_tokens"] = kept
    return {name: value for name, value in found.items() if isinstance(value, int)}


def _problem(fields: dict[str, Any], grant: ModelGrant) -> str:
    if fields["model"] not in grant.models:
        return f"model {quote(fields['model'])} is not allowed for this run"
    max_tokens = fields.get("max_tokens", 0)
    if not isinstance(max_tokens, int) or max_tokens > grant.max_output_tokens:
        return f"max_tokens {quote(max_tokens)} is more than {grant.max_output_tokens}"
    if unknown := find_unknown(fields, REQUEST_FIELDS):
        return f"the field {unknown!r} is not passed on"
    messages = fields.get("messages")
    for message in messages if isinstance(messages, list) else ():
        if isinstance(message, dict) and (unknown := find_unknown(message, MESSAGE_FIELDS)):
            return f"the field {unknown!r} of a message is not passed on"
    return (
        _tools_problem(fields.get("tools"))
        or _content_problem(messages)
        or _content_problem(fields.get("system"))
    )


def _tools_problem(tools: object) -> str:
    for tool in tools if isinstance(tools, list) else ():
        kind = tool.get("type", "custom") if isinstance(tool, dict) else None
        if not str(kind or "custom").startswith(CLIENT_TOOLS):
            return f"tool {quote(kind)} would run outside the sandbox"
    return ""


def _content_problem(content: object) -> str:
    """Describes content that would be fetched from outside, or would offer a tool in the middle of the conversation."""
    waiting = [content]
    while waiting:
        block = waiting.pop()
        if isinstance(block, list):
            waiting += block
        elif isinstance(block, dict):
            source, offered = block.get("source"), block.get("tool")
            if isinstance(source, dict) and source.get("type") not in INLINE_SOURCES:
                return f"content by {quote(source.get('type'))} would come from outside the sandbox"
            definition = offered.get("definition") if isinstance(offered, dict) else None
            if problem := _tools_problem([definition]) or _tools_problem(block.get("tools")):
                return problem
            waiting += [block.get("content"), source]
    return ""
