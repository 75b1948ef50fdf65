"""What a run may ask of a model: pure."""

import json
from dataclasses import dataclass, field
from typing import Any

from app.runs.ports import ModelGrant

CLIENT_TOOLS = ("custom", "bash_", "text_editor_", "computer_", "memory_")
"""Tools that run where the agent is. Others run at the provider and reach the internet for the sandbox.

Source: Anthropic API, tools of the Messages endpoint, read 2026-11.
"""

REQUEST_FIELDS = frozenset(
    {
        *(
            "model",
            "messages",
            "system",
            "tools",
            "tool_choice",
            "metadata",
            "max_tokens",
            "stream",
        ),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """In the provider's words: HTTP status, error type, message."""

    status: int
    kind: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """A request that may go on. `body` is written anew: two readers of one text may read it differently."""

    model: str
    body: bytes = field(repr=False)


def unauthorized(reason: str) -> Refused:
    """Whose token it is does not count here."""
    return Refused(status=401, kind="authentication_error", message=reason)


def check_request(body: bytes, grant: ModelGrant) -> ModelRequest | Refused:
    """Whether a request keeps to its grant: model, size of the answer, and nothing that reaches the network elsewhere."""
    try:
        fields: Any = json.loads(body)
        written = json.dumps(fields).encode()
    except (ValueError, RecursionError):
        fields, written = None, b""
    if not isinstance(fields, dict) or not isinstance(fields.get("model"), str):
        return Refused(
            status=400,
            kind="invalid_request_error",
            message="the body must be a JSON object with a model",
        )
    problem = _problem(fields, grant)
    if problem:
        return Refused(status=403, kind="permission_error", message=problem)
    return ModelRequest(model=fields["model"], body=written)


def _problem(fields: dict[str, Any], grant: ModelGrant) -> str:
    if fields["model"] not in grant.models:
        return f"model {fields['model']!r} is not allowed for this run"
    max_tokens = fields.get("max_tokens", 0)
    if not isinstance(max_tokens, int) or max_tokens > grant.max_output_tokens:
        return f"max_tokens {max_tokens!r} is more than {grant.max_output_tokens}"
    if unknown := _first_unknown(fields, REQUEST_FIELDS):
        return f"the field {unknown!r} is not passed on"
    messages = fields.get("messages")
    for message in messages if isinstance(messages, list) else ():
        if isinstance(message, dict) and (unknown := _first_unknown(message, MESSAGE_FIELDS)):
            return f"the field {unknown!r} of a message is not passed on"
    return (
        _tools_problem(fields.get("tools"))
        or _content_problem(messages)
        or _content_problem(fields.get("system"))
    )


def _first_unknown(fields: dict[str, Any], known: frozenset[str]) -> str:
    return next((name[:80] for name in fields if name not in known), "")


def _tools_problem(tools: object) -> str:
    for tool in tools if isinstance(tools, list) else ():
        kind = tool.get("type", "custom") if isinstance(tool, dict) else None
        if not str(kind or "custom").startswith(CLIENT_TOOLS):
            return f"tool {kind!r} would run outside the sandbox"
    return ""


def _content_problem(content: object) -> str:
    """What in a block of content would be fetched, or would offer a tool in the middle of the conversation."""
    waiting = [content]
    while waiting:
        block = waiting.pop()
        if isinstance(block, list):
            waiting += block
        elif isinstance(block, dict):
            source, offered = block.get("source"), block.get("tool")
            if isinstance(source, dict) and source.get("type") not in INLINE_SOURCES:
                return (
                    f"content by {str(source.get('type'))[:80]} would come from outside the sandbox"
                )
            definition = offered.get("definition") if isinstance(offered, dict) else None
            if problem := _tools_problem([definition]) or _tools_problem(block.get("tools")):
                return problem
            waiting += [block.get("content"), source]
    return ""
