"""What a request asks of the offline model, whichever protocol it came by."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

_ADDED = (
    "system-reminder",  # Claude Code 2.1.330
    "environment_context",  # Codex 0.169.0
    "user_instructions",
    "turn_aborted",
    "session_context",  # Gemini CLI 0.61.0
    "current_datetime",  # Copilot CLI 1.0.102
    "reminder",
)
"""What clients put around a person's words, as recorded from them 2026-11."""
_ADDED_BLOCK = re.compile(rf"\s*<({'|'.join(_ADDED)})>.*?</\1>\s*", re.DOTALL)
_ADDED_START = re.compile(rf"\s*<({'|'.join(_ADDED)})>")


REVOKED = "revoked"
"""A key with this in it is refused, as one that was taken back."""


class RequestError(Exception):
    """The request is refused, as the API would refuse it."""

    def __init__(self, status: int, kind: str, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        """Anthropic's and OpenAI's `error.type`, Gemini's `error.status`."""
        self.code = code
        """OpenAI's `error.code`, the reason in Gemini's `error.details`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of the conversation. What tools gave back is one message each."""

    role: Literal["user", "assistant", "tool"]
    text: str = field(repr=False)
    is_beside: bool = False
    """It came with what tools gave back, as what is told an agent in mid-run does: it goes on with what was asked before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool that the request offers, by the name under which it can be asked for."""

    name: str
    properties: Mapping[str, Any] = field(default_factory=dict)
    """Of the schema of its arguments."""
    is_freeform: bool = False
    """Takes a text instead of JSON (OpenAI's custom tools)."""
    namespace: str = ""
    """What groups it (OpenAI); its `name` begins with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A checked request."""

    model: str
    messages: Sequence[Message]
    system: str = field(default="", repr=False)
    tools: Mapping[str, Tool] = field(default_factory=dict)
    schema: Mapping[str, Any] | None = None
    """JSON schema that the answer must keep to."""
    max_output_tokens: int | None = None
    is_stream: bool = False
    uses_cache: bool = True
    """What the request before held need not be read again."""
    prompt_chars: int = 0
    """Of system prompt and tools, as they were sent."""
    message_chars: Sequence[int] = ()
    """Of each message, as it was sent."""


def person_text(text: str) -> str:
    """Returns a message's text without what a client put before and behind it; empty when that was all."""
    while match := _ADDED_BLOCK.match(text):
        text = text[match.end() :]
    while (start := _last_block(text)) is not None:
        text = text[:start]
    return "" if _ADDED_START.match(text) else text


def wire_chars(value: object) -> int:
    """Returns how many characters a value takes in a request."""
    return len(json.dumps(value))


def _last_block(text: str) -> int | None:
    """Returns where an added block begins that goes to the end of the text."""
    stripped = text.rstrip()
    for name in _ADDED:
        if stripped.endswith(f"</{name}>"):
            start = stripped.rfind(f"<{name}>")
            return start if start >= 0 else None
    return None
