"""The protocols of models as data: their endpoints, what a run may request of each, and how a refusal reads."""

from collections.abc import Callable
from dataclasses import dataclass

from app.brokerage.http import IncomingRequest, ModelRequest, Refusal, RenderError
from app.brokerage.rules import anthropic, gemini, openai
from app.brokerage.usage import ReadEvent
from app.runs.broker import ModelGrant

Check = Callable[[IncomingRequest, ModelGrant], ModelRequest | Refusal]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One endpoint of a protocol."""

    path: str
    """The route below the protocol's own path; all are POST."""
    check: Check
    read_event: ReadEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class WireProtocol:
    """A model API that the broker proxies."""

    name: str
    """Its part of the broker's paths: `/broker/{name}`."""
    endpoints: tuple[Endpoint, ...]
    render_error: RenderError
    request_headers: tuple[str, ...] = ()
    """All request headers that are forwarded, beside some values of `accept`; others could choose an account or a feature."""
    response_prefixes: tuple[str, ...]
    """Prefixes of the answer's headers that are forwarded."""


ANTHROPIC = WireProtocol(
    name="anthropic",
    endpoints=tuple(
        Endpoint(
            path=path,
            check=anthropic.check_messages,
            read_event=anthropic.read_messages_event,
        )
        for path in ("/v1/messages", "/v1/messages/count_tokens")
    ),
    render_error=anthropic.render_error,
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
            check=openai.check_responses,
            read_event=openai.read_responses_event,
        ),
        Endpoint(
            path="/v1/chat/completions",
            check=openai.check_chat,
            read_event=openai.read_chat_event,
        ),
    ),
    render_error=openai.render_error,
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
            check=gemini.check_content,
            read_event=gemini.read_content_event,
        ),
    ),
    render_error=gemini.render_error,
    response_prefixes=("content-type", "retry-after"),
)
PROTOCOLS = (ANTHROPIC, OPENAI, GEMINI)
