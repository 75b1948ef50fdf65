"""What a run may ask of a model: pure."""

import json
from dataclasses import dataclass, field
from typing import Any

from app.runs.ports import ModelGrant

CLIENT_TOOLS = ("custom", "bash_", "text_editor_", "computer_", "memory_")
"""Tools that run where the agent is. Others run at the provider and reach the internet for the sandbox.

Source: Anthropic API, tools of the Messages endpoint, read 2026-11.
"""


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
    if "mcp_servers" in fields:
        return "mcp_servers would reach the network from outside the sandbox"
    tools = fields.get("tools") or []
    kinds = [tool.get("type", "custom") for tool in tools if isinstance(tool, dict)]
    for kind in kinds:
        if not str(kind or "custom").startswith(CLIENT_TOOLS):
            return f"tool {kind!r} would run outside the sandbox"
    if _names_a_url(fields.get("messages")) or _names_a_url(fields.get("system")):
        return "content by URL would be fetched from outside the sandbox"
    return ""


def _names_a_url(content: object) -> bool:
    """Whether a block of content has a source to be fetched."""
    waiting = [content]
    while waiting:
        block = waiting.pop()
        if isinstance(block, list):
            waiting += block
        elif isinstance(block, dict):
            source = block.get("source")
            if isinstance(source, dict) and source.get("type") == "url":
                return True
            waiting += [block.get("content"), source]
    return False
