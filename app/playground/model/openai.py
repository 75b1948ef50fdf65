"""What OpenAI's two APIs have in common, as the offline model speaks them: keys, models, errors, cached tokens.

Source: OpenAI API reference, "Error codes" and "Prompt caching", and openai-python's error types, read 2026-11.
"""

import re
import secrets
from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from app.playground.model.answers import Shape
from app.playground.model.protocol import Counts, OfflineProtocol, Refusal
from app.playground.model.question import REVOKED, RequestError, Tool

REFUSAL = "I'm sorry, but I can't help with that (offline model, !refuse)."
TOO_LONG = (
    "Your input exceeds the context window of this model. Please adjust your input and try again."
)
CONTEXT_CODE = "context_length_exceeded"

_MODEL = re.compile(r"(gpt|o\d|codex|chatgpt)[\w.:-]*")
_CACHE_STEP_TOKENS = 128
_MIN_CACHED_TOKENS = 1024
"""Prompts are cached from 1,024 tokens on, in steps of 128. Source: OpenAI, Prompt caching, read 2026-11."""

_FAILURES: Mapping[Shape, Refusal] = {
    Shape.RATE_LIMITED: (
        429,
        "tokens",
        "Rate limit reached for this model (offline model, !429)",
        "rate_limit_exceeded",
    ),
    # OpenAI has no 529.
    Shape.OVERLOADED: (
        503,
        "server_error",
        "The engine is currently overloaded, please try again later (offline model, !529)",
        "server_is_overloaded",
    ),
    Shape.BROKEN: (
        500,
        "server_error",
        "The server had an error processing your request (offline model, !500)",
        None,
    ),
    Shape.CONTEXT: (400, "invalid_request_error", TOO_LONG, CONTEXT_CODE),
}


class OpenAiProtocol(OfflineProtocol):
    """Refuses as every endpoint of OpenAI's API does."""

    request_id_header = "x-request-id"
    failures = _FAILURES

    @override
    def error(self, problem: RequestError, request_id: str) -> dict[str, Any]:
        error = {"message": str(problem), "type": problem.kind, "param": None, "code": problem.code}
        return {"error": error}


def invalid(message: str, *, code: str | None = None) -> RequestError:
    """Returns a 400."""
    return RequestError(400, "invalid_request_error", message, code=code)


def check_caller(headers: Mapping[str, str], body: object) -> dict[str, Any]:
    """Returns the body of a request with a key and a known model.

    Raises:
        RequestError
    """
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        message = "You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer auth."
        raise RequestError(401, "invalid_request_error", message)
    if REVOKED in key:
        message = "Incorrect API key provided. You can find your API key in your settings."
        raise RequestError(401, "invalid_request_error", message, code="invalid_api_key")
    if not isinstance(body, dict):
        raise invalid("We could not parse the JSON body of your request.")
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise invalid("you must provide a model parameter")
    if not _MODEL.fullmatch(model.rpartition("/")[2]):
        message = f"The model `{model}` does not exist or you do not have access to it."
        raise RequestError(404, "invalid_request_error", message, code="model_not_found")
    return body


def text_of(content: object) -> str:
    """Returns the texts of a message's content, which is a text or parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [str(part.get("text", "")) for part in parts if isinstance(part, dict)]
    return "\n".join(text for text in texts if text)


def read_limit(fields: Mapping[str, Any], *names: str) -> int | None:
    """Returns the largest answer asked for, in tokens.

    Raises:
        RequestError: it is no positive integer.
    """
    for name in names:
        value = fields.get(name)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise invalid(
                f"Invalid '{name}': integer below minimum value.", code="integer_below_min_value"
            )
        return value
    return None


def read_tool(fields: Mapping[str, Any], *, is_freeform: bool, namespace: str = "") -> Tool:
    """Returns one function or custom tool.

    Raises:
        RequestError: it has no name.
    """
    name = fields.get("name")
    if not isinstance(name, str) or not name:
        raise invalid("Missing required parameter: 'tools[0].name'.")
    parameters = fields.get("parameters") or {}
    return Tool(
        name=f"{namespace}__{name}" if namespace else name,
        properties=parameters.get("properties") or {},
        is_freeform=is_freeform,
        namespace=namespace,
    )


def cached_tokens(counts: Counts) -> int:
    """Returns how much of the input was in the request before."""
    cached = counts.earlier_tokens // _CACHE_STEP_TOKENS * _CACHE_STEP_TOKENS
    return cached if cached >= _MIN_CACHED_TOKENS else 0


def new_id(prefix: str) -> str:
    """Returns such as `resp_offline0123456789abcdef`."""
    return f"{prefix}_offline{secrets.token_hex(8)}"
