"""The protocols that the broker speaks, as data: their endpoints, their rules, their words."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from app.brokerage import anthropic_rules, gemini_rules, openai_rules
from app.brokerage.requests import Asked, ModelRequest, Refused
from app.brokerage.usage import ReadEvent
from app.runs.broker_ports import ModelGrant

Check = Callable[[Asked, ModelGrant], ModelRequest | Refused]
RenderError = Callable[[Refused], Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One kind of request."""

    path: str
    """Below the protocol's own path, as a route; all are POST."""
    check: Check
    read_event: ReadEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class WireProtocol:
    name: str
    """Its part of the broker's paths: `/broker/{name}`."""
    endpoints: tuple[Endpoint, ...]
    render_error: RenderError
    request_headers: tuple[str, ...] = ()
    """All that pass, beside some values of `accept`; a client's others could choose an account or a feature."""
    response_prefixes: tuple[str, ...]
    """Beginnings of the names of headers that come back."""


ANTHROPIC = WireProtocol(
    name="anthropic",
    endpoints=tuple(
        Endpoint(
            path=path,
            check=anthropic_rules.check_messages,
            read_event=anthropic_rules.read_messages_event,
        )
        for path in ("/v1/messages", "/v1/messages/count_tokens")
    ),
    render_error=anthropic_rules.render_error,
    request_headers=("anthropic-version", "anthropic-beta"),
    response_prefixes=(
        "content-type",
        "retry-after",
        "request-id",
        "anthropic-ratelimit-",
        "x-should-retry",
    ),
)
OPENAI = WireProtocol(
    name="openai",
    endpoints=(
        Endpoint(
            path="/v1/responses",
            check=openai_rules.check_responses,
            read_event=openai_rules.read_responses_event,
        ),
        Endpoint(
            path="/v1/chat/completions",
            check=openai_rules.check_chat,
            read_event=openai_rules.read_chat_event,
        ),
    ),
    render_error=openai_rules.render_error,
    response_prefixes=(
        "content-type",
        "retry-after",
        "x-request-id",
        "x-ratelimit-",
        "x-should-retry",
    ),
)
GEMINI = WireProtocol(
    name="gemini",
    endpoints=(
        Endpoint(
            path="/v1beta/models/{action}",
            check=gemini_rules.check_content,
            read_event=gemini_rules.read_content_event,
        ),
    ),
    render_error=gemini_rules.render_error,
    response_prefixes=("content-type", "retry-after"),
)
PROTOCOLS = (ANTHROPIC, OPENAI, GEMINI)
