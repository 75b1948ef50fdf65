"""Rules for Google's Gemini API: what a run may request, and how usage is read from an answer. Pure.

What Gemini CLI 0.61.0 sends, as recorded in 2026-11, passes. Other sources: Gemini API reference, "Generating content",
"Token counting" and "Troubleshooting", read 2026-11.
"""

import json
import re
from collections.abc import Mapping
from http import HTTPStatus
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
from app.runs.broker import CONTEXT_EXCEEDED, ModelGrant

FIELDS = frozenset(
    {
        *("contents", "systemInstruction", "tools", "toolConfig", "generationConfig"),
        "safetySettings",
    }
)
"""Everything else is refused, in whatever spelling: `cachedContent` is kept at the provider, and what is new is not known to
be harmless."""
CONFIG_FIELDS = frozenset(
    {
        *("temperature", "topP", "topK", "seed", "candidateCount", "maxOutputTokens"),
        *("stopSequences", "presencePenalty", "frequencyPenalty", "thinkingConfig"),
        *("responseMimeType", "responseSchema", "responseJsonSchema", "mediaResolution"),
    }
)
PART_FIELDS = frozenset(
    {
        *("text", "thought", "thoughtSignature", "inlineData", "functionCall"),
        *("functionResponse", "mediaResolution"),
    }
)
"""`fileData` would be fetched; the code that `executableCode` speaks of would run at the provider."""
_PATH = re.compile(r"/v1beta/models/([^/:?#]+):(generateContent|streamGenerateContent|countTokens)")
_TOO_LONG = "exceeds the maximum number of tokens allowed"
_INVALID_KEY = "API_KEY_INVALID"
"""As `reason`: wrong, taken back or expired. Source: google-gemini/gemini-cli, issue 25198, read 2026-11."""
_KINDS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    413: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    502: "UNAVAILABLE",
}


def check_content(incoming: IncomingRequest, grant: ModelGrant) -> ModelRequest | Refusal:
    """Checks a request against its grant. The model is in its path, and an answer has the run's limit."""
    found = _PATH.fullmatch(incoming.path)
    if found is None:
        message = f"no such method: {incoming.path[:NAME_CHARS]}"
        return Refusal(status=404, kind="not_found_error", message=message)
    model, method = found.groups()
    if model not in grant.models:
        return forbidden(f"model {quote(model)} is not allowed for this run")
    fields = read_object(incoming.body)
    if fields is None:
        return invalid("the body must be a JSON object")
    fields = without_empty(fields, FIELDS)
    if problem := _problem(fields):
        return forbidden(problem)
    if method != "countTokens":
        config = fields.get("generationConfig") or {}
        limit = min(
            config.get("maxOutputTokens") or grant.max_output_tokens, grant.max_output_tokens
        )
        fields["generationConfig"] = config | {"maxOutputTokens": limit}
    query = "?alt=sse" if incoming.query.get("alt") == "sse" else ""
    return ModelRequest(
        model=model,
        path=f"/v1beta/models/{model}:{method}{query}",
        body=json.dumps(fields).encode(),
        has_output=method != "countTokens",
    )


def read_content_event(event: dict[str, Any]) -> EventUsage:
    """Reads the usage in one chunk, or in a whole answer. Each chunk has all counts so far; thoughts are output."""
    match event:
        case {"error": dict(error)}:
            return EventUsage(error=_error_name(error))
        case {"totalTokens": _}:  # counted, not read
            return EventUsage()
        case _:
            usage = event.get("usageMetadata")
            counts = _counts(usage) if isinstance(usage, dict) else {}
            said = event.get("candidates")
            return EventUsage(counts=counts, has_started=bool(said), output_bytes=text_bytes(said))


def _error_name(error: Mapping[str, Any]) -> str:
    """Returns what an error is called, by its words where it has no name of its own. Source: Gemini API, INVALID_ARGUMENT, run 2026-11."""
    words = json.dumps(error, ensure_ascii=False)
    if _TOO_LONG in words:
        return CONTEXT_EXCEEDED
    if _INVALID_KEY in words:
        return _INVALID_KEY
    return str(error.get("status") or error.get("code") or "error")[:NAME_CHARS]


def render_error(refused: Refusal) -> dict[str, Any]:
    """Renders a refusal as Google's APIs do."""
    status = _KINDS.get(refused.status, HTTPStatus(refused.status).name)
    return {"error": {"code": refused.status, "message": refused.message, "status": status}}


def _problem(fields: Mapping[str, Any]) -> str:
    if unknown := find_unknown(fields, FIELDS):
        return f"the field {unknown!r} is not passed on"
    return (
        _config_problem(fields.get("generationConfig"))
        or _tools_problem(fields.get("tools"), fields.get("toolConfig"))
        or _contents_problem(fields.get("contents"))
        or _contents_problem(fields.get("systemInstruction"))
    )


def _config_problem(config: object) -> str:
    if config is None:
        return ""
    if not isinstance(config, dict):
        return "generationConfig is no object"
    if unknown := find_unknown(config, CONFIG_FIELDS):
        return f"the field {unknown!r} of generationConfig is not passed on"
    if config.get("candidateCount") not in (None, 1):
        return "a run has one candidate per call"
    limit = config.get("maxOutputTokens")
    if limit is not None and not is_count(limit):
        return f"maxOutputTokens {quote(limit)} is no number of tokens"
    return ""


def _tools_problem(tools: object, config: object) -> str:
    for tool in tools if isinstance(tools, list) else [tools]:
        names = (
            [name for name, value in tool.items() if value is not None]
            if isinstance(tool, dict)
            else []
        )
        if others := [name for name in names if name != "functionDeclarations"]:
            return f"tool {quote(others[0])} would run outside the sandbox"
    if isinstance(config, dict) and (
        unknown := find_unknown(config, frozenset({"functionCallingConfig"}))
    ):
        return f"the field {unknown!r} of toolConfig is not passed on"
    return ""


def _contents_problem(contents: object) -> str:
    for content in contents if isinstance(contents, list) else [contents]:
        if isinstance(content, dict):
            if unknown := find_unknown(content, frozenset({"role", "parts"})):
                return f"the field {unknown!r} of a content is not passed on"
            if problem := _parts_problem(content.get("parts")):
                return problem
    return ""


def _parts_problem(parts: object) -> str:
    for part in parts if isinstance(parts, list) else [parts]:
        if not isinstance(part, dict):
            continue
        if unknown := find_unknown(part, PART_FIELDS):
            return f"content by {unknown!r} would come from outside the sandbox, or is not known"
        response = part.get("functionResponse")
        if isinstance(response, dict) and (problem := _parts_problem(response.get("parts"))):
            return problem
    return ""


def _counts(usage: Mapping[str, Any]) -> dict[str, int]:
    def count(name: str) -> int:
        value = usage.get(name)
        return value if isinstance(value, int) and value > 0 else 0

    cached = count("cachedContentTokenCount")
    return {
        "input_tokens": max(
            0, count("promptTokenCount") + count("toolUsePromptTokenCount") - cached
        ),
        "cache_read_tokens": cached,
        "output_tokens": count("candidatesTokenCount") + count("thoughtsTokenCount"),
    }
