"""Rules for OpenAI's Responses and Chat Completions: what a run may request, and how usage is read from an answer. Pure.

What CLIs send, as recorded from Codex 0.169.0, OpenCode 1.18.33 and Copilot CLI 1.0.102 in 2026-11, passes. Other sources:
OpenAI API reference, "Responses", "Chat Completions" and "Error codes", read 2026-11.
"""

import json
from collections.abc import Mapping
from typing import Any

from app.brokerage.http import (
    NAME_CHARS,
    IncomingRequest,
    ModelRequest,
    Refusal,
    find_unknown,
    forbidden,
    invalid,
    is_count,
    quote,
    read_object,
    without_empty,
)
from app.brokerage.usage import EventUsage, text_bytes
from app.runs.broker import ModelGrant

RESPONSES_FIELDS = frozenset(
    {
        *("model", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls"),
        *("max_output_tokens", "max_tool_calls", "stream", "stream_options", "store", "include"),
        *("reasoning", "text", "temperature", "top_p", "top_logprobs", "truncation"),
        *("prompt_cache_key", "safety_identifier", "client_metadata"),
    }
)
"""Everything else is refused: `previous_response_id`, `conversation`, `prompt` and `background` keep things at the provider,
`service_tier` has another price; and what is new is not known to be harmless."""
CHAT_FIELDS = frozenset(
    {
        *("model", "messages", "tools", "tool_choice", "parallel_tool_calls", "response_format"),
        *("max_tokens", "max_completion_tokens", "stream", "stream_options", "store", "stop"),
        *("reasoning_effort", "verbosity", "temperature", "top_p", "frequency_penalty"),
        *("presence_penalty", "seed", "logprobs", "top_logprobs", "logit_bias"),
        *("prompt_cache_key", "safety_identifier"),
    }
)
"""Everything else is refused, as above. `web_search_options` searches, `functions` is the old form of tools."""
INPUT_ITEMS = frozenset(
    {
        *("message", "agent_message", "reasoning", "function_call", "function_call_output"),
        *("custom_tool_call", "custom_tool_call_output", "tool_search_call", "tool_search_output"),
        *("local_shell_call", "local_shell_call_output", "shell_call", "shell_call_output"),
        *("apply_patch_call", "apply_patch_call_output"),
        *("compaction", "compaction_summary", "context_compaction", "compaction_trigger"),
    }
)
"""Items of a conversation that the client keeps; `item_reference` belongs to one that the provider keeps."""
PARTS = frozenset(
    {
        *("text", "input_text", "output_text", "summary_text", "reasoning_text", "refusal"),
        *("image_url", "input_image", "input_audio", "file", "input_file", "encrypted_content"),
    }
)
"""Kinds of parts that a message or a tool's output may have."""
OWN_TOOLS = frozenset({"function", "custom", "local_shell", "apply_patch"})
"""Tools that run where the agent is."""
LEFT_OUT_TOOLS = ("web_search", "image_generation")
"""Prefixes of the names of tools that run at the provider and that CLIs offer unasked: the model is not told of them.
Others of the kind are refused: whoever sends them relies on them."""
INCLUDES = frozenset({"reasoning.encrypted_content", "message.output_text.logprobs"})
OUTSIDE_FIELDS = ("file_id", "file_url", "container_id", "server_url", "connector_id")
"""Fields of content that would be fetched, or belong to the operator's account."""
_USUAL_TIERS = ("auto", "default")

_MAX_TOKENS = {"responses": ("max_output_tokens",), "chat": ("max_completion_tokens", "max_tokens")}
_STATUS_CODES = {
    401: "invalid_api_key",
    403: "model_not_allowed",
    413: "request_too_large",
    429: "rate_limit_exceeded",
}


def check_responses(incoming: IncomingRequest, grant: ModelGrant) -> ModelRequest | Refusal:
    """Checks a Responses request against its grant. The answer is not stored, and no longer than allowed."""
    fields = _read(incoming.body, RESPONSES_FIELDS)
    if isinstance(fields, Refusal):
        return fields
    tools = _own_tools(fields.get("tools"))
    problem = (
        tools
        if isinstance(tools, str)
        else _problem(fields, grant, RESPONSES_FIELDS) or _input_problem(fields.get("input"))
    )
    if problem:
        return forbidden(str(problem))
    if fields.get("include") and not _is_included(fields["include"]):
        return forbidden(f"{quote(fields['include'])} is not included")
    if "tools" in fields:
        fields["tools"] = tools
    _limit(fields, grant, "responses")
    # The provider's own default is to keep it.
    return _granted(incoming, fields | {"store": False})


def check_chat(incoming: IncomingRequest, grant: ModelGrant) -> ModelRequest | Refusal:
    """Checks a Chat Completions request against its grant. A stream ends with its usage, whether the client asks for it or not."""
    fields = _read(incoming.body, CHAT_FIELDS)
    if isinstance(fields, Refusal):
        return fields
    if fields.get("n") == 1:
        del fields["n"]
    problem = (
        _problem(fields, grant, CHAT_FIELDS)
        or _chat_tools_problem(fields.get("tools"))
        or _content_problem(fields.get("messages"))
    )
    if problem:
        return forbidden(problem)
    _limit(fields, grant, "chat")
    if fields.get("stream"):
        options = fields.get("stream_options")
        given = options if isinstance(options, dict) else {}
        fields["stream_options"] = given | {"include_usage": True}
    return _granted(incoming, fields)


def read_responses_event(event: dict[str, Any]) -> EventUsage:
    """Reads the usage in one event, or in a whole answer."""
    kind = str(event.get("type", ""))
    if kind.endswith(".delta"):
        return EventUsage(has_started=True, output_bytes=text_bytes(event.get("delta")))
    response = event.get("response")
    whole = response if isinstance(response, dict) else event
    error = event if kind == "error" and "error" not in event else whole.get("error")
    return EventUsage(
        counts=_responses_counts(whole.get("usage")),
        error=_error_name(error) if isinstance(error, dict) else "",
    )


def read_chat_event(event: dict[str, Any]) -> EventUsage:
    """Reads the usage in one chunk, or in a whole answer."""
    error = event.get("error")
    if isinstance(error, dict):
        return EventUsage(error=_error_name(error))
    usage = event.get("usage")
    counts = _counts(usage, "prompt", "completion") if isinstance(usage, dict) else {}
    match event:
        case {"choices": [{"delta": dict(delta)}, *_]}:
            # Servers that speak like OpenAI have names of their own for what their models think.
            has_started = any(said for name, said in delta.items() if name != "role")
            return EventUsage(
                counts=counts, has_started=has_started, output_bytes=text_bytes(delta)
            )
        case _:
            return EventUsage(counts=counts)


def render_error(refused: Refusal) -> dict[str, Any]:
    """Renders a refusal as OpenAI's endpoints do."""
    error = {
        "message": refused.message,
        "type": "server_error" if refused.status >= 500 else "invalid_request_error",  # noqa: PLR2004 - HTTP
        "param": None,
        "code": _STATUS_CODES.get(refused.status),
    }
    return {"error": error}


def _read(body: bytes, known: frozenset[str]) -> dict[str, Any] | Refusal:
    fields = read_object(body)
    if fields is None or not isinstance(fields.get("model"), str):
        return invalid("the body must be a JSON object with a model")
    fields = without_empty(fields, known)
    if fields.get("service_tier") in _USUAL_TIERS:
        del fields["service_tier"]
    return fields


def _granted(incoming: IncomingRequest, fields: dict[str, Any]) -> ModelRequest:
    return ModelRequest(model=fields["model"], path=incoming.path, body=json.dumps(fields).encode())


def _problem(fields: Mapping[str, Any], grant: ModelGrant, known: frozenset[str]) -> str:
    if fields["model"] not in grant.models:
        return f"model {quote(fields['model'])} is not allowed for this run"
    if unknown := find_unknown(fields, known):
        return f"the field {unknown!r} is not passed on"
    if fields.get("store"):
        return "answers are not stored at the provider"
    for name in ("max_output_tokens", "max_completion_tokens", "max_tokens"):
        value = fields.get(name)
        if value is not None and not is_count(value):
            return f"{name} {quote(value)} is no number of tokens"
    return ""


def _is_included(include: object) -> bool:
    return isinstance(include, list) and all(
        isinstance(one, str) and one in INCLUDES for one in include
    )


def _limit(fields: dict[str, Any], grant: ModelGrant, api: str) -> None:
    """Caps the answer at the run's limit: CLIs of this protocol name no limit, or the model's own."""
    names = [name for name in _MAX_TOKENS[api] if fields.get(name) is not None]
    for name in names:
        fields[name] = min(fields[name], grant.max_output_tokens)
    if not names:
        fields[_MAX_TOKENS[api][0]] = grant.max_output_tokens


def _own_tools(tools: object) -> list[dict[str, Any]] | str:
    """Returns the tools that run where the agent is, or what is wrong with them."""
    kept: list[dict[str, Any]] = []
    for tool in tools if isinstance(tools, list) else ():
        kind = tool.get("type") if isinstance(tool, dict) else None
        if str(kind).startswith(LEFT_OUT_TOOLS):
            continue
        match tool:
            case {"type": "namespace", "tools": list(inner)}:
                found = _own_tools(inner)
                if isinstance(found, str):
                    return found
                kept.append(tool | {"tools": found})
            case {"type": "tool_search", "execution": "client"} | {
                "type": "shell",
                "environment": {"type": "local"},
            }:
                kept.append(tool)
            case {"type": str(own)} if own in OWN_TOOLS:
                kept.append(tool)
            case _:
                return f"tool {quote(kind)} would run outside the sandbox"
    return kept


def _chat_tools_problem(tools: object) -> str:
    for tool in tools if isinstance(tools, list) else ():
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind not in ("function", "custom"):
            return f"tool {quote(kind)} would run outside the sandbox"
    return ""


def _input_problem(given: object) -> str:
    for item in given if isinstance(given, list) else ():
        kind = item.get("type", "message") if isinstance(item, dict) else None
        if str(kind) not in INPUT_ITEMS:
            return f"an item {quote(kind)} is not passed on"
        if kind == "tool_search_output" and isinstance(found := _own_tools(item.get("tools")), str):
            return found
        if item.get("role") not in (None, "user", "assistant", "system", "developer"):
            return f"the role {quote(item['role'])} is not passed on"
    return _content_problem(given)


def _content_problem(content: object) -> str:
    """Describes content that would be fetched from outside, or belongs to the operator's account."""
    waiting = [(content, False)]
    while waiting:
        part, is_part = waiting.pop()
        if isinstance(part, list):
            waiting += [(one, is_part) for one in part]
        elif isinstance(part, dict):
            kind = part.get("type")
            if is_part and kind is not None and kind not in PARTS:
                return f"a part {quote(kind)} is not passed on"
            if (name := _outside_field(part)) is not None:
                return f"content by {name!r} would come from outside the sandbox"
            waiting += [(part.get(name), True) for name in ("content", "output", "summary")]
            waiting.append((part.get("file"), False))
    return ""


def _outside_field(part: Mapping[str, Any]) -> str | None:
    """Returns the field by which a part leads outside: servers that speak this protocol have more of them than OpenAI's own."""
    for name, value in part.items():
        is_lost = name in OUTSIDE_FIELDS and value is not None
        # An earlier answer's, at the provider.
        is_lost |= name == "audio" and isinstance(value, dict)
        is_lost |= name.endswith("url") and not _is_inline(value)
        is_lost |= name == "file_data" and "://" in str(value)
        if is_lost:
            return name
    return None


def _is_inline(image: object) -> bool:
    url = image.get("url") if isinstance(image, dict) else image
    return url is None or (isinstance(url, str) and url.startswith("data:"))


def _responses_counts(usage: object) -> dict[str, int]:
    return _counts(usage, "input", "output") if isinstance(usage, dict) else {}


def _counts(usage: Mapping[str, Any], into: str, out: str) -> dict[str, int]:
    """Converts counts: OpenAI's input tokens include the cached ones, ours do not."""
    details = usage.get(f"{into}_tokens_details")
    cached = _count((details if isinstance(details, dict) else {}).get("cached_tokens"))
    return {
        "input_tokens": max(0, _count(usage.get(f"{into}_tokens")) - cached),
        "cache_read_tokens": cached,
        "output_tokens": _count(usage.get(f"{out}_tokens")),
    }


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _error_name(error: Mapping[str, Any]) -> str:
    return str(error.get("code") or error.get("type") or "error")[:NAME_CHARS]
