"""What an agent tells while it works, and what can go wrong with one, as codes: closed, the same for every agent."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal


class AgentErrorCode(StrEnum):
    """Stable. `agents/anthropic/inside` prints the same words, so the values are part of the wire format."""

    EXECUTION_FAILED = "execution_failed"
    NO_ANSWER = "no_answer"
    IDLE = "idle"
    TIMEOUT = "timeout"
    OUTPUT_LIMIT = "output_limit"
    DISK_LIMIT = "disk_limit"
    PROCESS_LIMIT = "process_limit"
    TURN_LIMIT = "turn_limit"
    SESSION_NOT_FOUND = "session_not_found"
    """The session to resume is not in this sandbox: begin one with the history. Nothing was asked of a model."""
    REQUEST_INVALID = "request_invalid"
    """The agent cannot be given this turn: the message says why. It was not started."""
    MODEL_RATE_LIMITED = "model_rate_limited"
    MODEL_OVERLOADED = "model_overloaded"
    MODEL_UNAVAILABLE = "model_unavailable"
    MODEL_CONTEXT_EXCEEDED = "model_context_exceeded"
    MODEL_REFUSED = "model_refused"
    MODEL_NOT_FOUND = "model_not_found"
    MODEL_AUTH_FAILED = "model_auth_failed"
    MODEL_BILLING = "model_billing"


class AgentError(Exception):
    """An agent did not bring its turn to an answer."""

    def __init__(self, code: AgentErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """A piece of the answer's text, in order."""

    text: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanStep:
    """What the agent means to do, in its own words, and how far it is."""

    title: str = field(repr=False)
    """One line, not masked, at most 200 characters."""
    status: Literal["pending", "in_progress", "completed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStarted:
    tool_id: str
    name: str
    """The agent's own tool name, such as `shell`."""
    argument: str = field(repr=False)
    """The argument a person would want to see (command, path), one line, not masked, at most 2,000 characters."""
    plan: tuple[PlanStep, ...] = ()
    """Not empty: the call does nothing but tell the agent's whole plan, as it is now; it may come again with the same id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFinished:
    tool_id: str
    is_error: bool
    output_bytes: int
    """Size of what the tool gave back to the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageHeard:
    """A message that was told while it works is part of the turn."""

    message_id: str
    """As it was told under."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageReported:
    """Usage of one model call (not cumulative), as the agent saw it."""

    model: str
    input_tokens: int
    """Uncached input only, as Anthropic reports it."""
    output_tokens: int
    cache_read_tokens: int = 0
    cache_creation_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFinished:
    """The outcome; the last event of every turn. Exactly one of `error` and a non-empty `text` decides."""

    text: str = field(repr=False)
    """The final answer; with an error, whatever text had been written before it."""
    error: AgentErrorCode | None = None
    detail: str = field(default="", repr=False)
    """Words for the operator's log, not masked."""
    agent_session_id: str | None = None
    """The session that the agent said it works in; None when it has none or did not say."""
    cost_usd: float | None = None
    """Of this turn alone, by the agent's own price list; None when it does not tell."""
    notes: tuple[str, ...] = field(default=(), repr=False)
    """What did not fail the turn but is worth knowing, such as an MCP server that did not start; whole sentences."""


AgentEvent = TextDelta | ToolStarted | ToolFinished | MessageHeard | UsageReported | TurnFinished
