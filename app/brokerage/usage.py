"""Reads usage out of a model's answer while its bytes pass by; keeps only counters and one line."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from app.runs.model import Usage

MAX_LINE_BYTES = 1024 * 1024
MAX_BODY_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one event tells; later counts take the place of earlier ones."""

    counts: Mapping[str, int] = field(default_factory=dict)
    """By the names of `Usage`'s fields."""
    has_started: bool = False
    """It is a piece of the model's own output."""
    error: str = ""
    """The provider's error type or code."""


ReadEvent = Callable[[dict[str, Any]], Seen]


class UsageReader:
    """Feed it every chunk. Understands the stream form and the plain form of an answer."""

    def __init__(self, read_event: ReadEvent, *, is_stream: bool) -> None:
        self._read_event = read_event
        self._is_stream = is_stream
        self._buffer = b""
        self._counts: dict[str, int] = {}
        self.error = ""
        """The provider's error type, if one was seen."""
        self.pieces = 0
        """Of the model's own output, as they were streamed; each is a token at least."""

    @property
    def has_started(self) -> bool:
        """True from the first piece of the model's own output."""
        return self.pieces > 0

    def feed(self, chunk: bytes) -> None:
        self._buffer += chunk
        if not self._is_stream:
            self._buffer = self._buffer[:MAX_BODY_BYTES]
            return
        *lines, self._buffer = self._buffer.split(b"\n")
        self._buffer = self._buffer[-MAX_LINE_BYTES:]
        for line in lines:
            if line.startswith(b"data:"):
                self._read(line[5:])

    def finish(self) -> Usage:
        """What was counted."""
        if not self._is_stream:
            self._read(self._buffer)
        count = self._counts.get
        return Usage(
            input_tokens=count("input_tokens", 0),
            output_tokens=count("output_tokens", 0),
            cache_read_tokens=count("cache_read_tokens", 0),
            cache_creation_tokens=count("cache_creation_tokens", 0),
            cache_creation_1h_tokens=count("cache_creation_1h_tokens", 0),
        )

    def _read(self, data: bytes) -> None:
        try:
            found: Any = json.loads(data)
        except (ValueError, RecursionError):
            return
        # Gemini's stream without server-sent events is one list.
        for event in found if isinstance(found, list) else [found]:
            if isinstance(event, dict):
                seen = self._read_event(event)
                self._counts.update(seen.counts)
                self.pieces += seen.has_started
                self.error = seen.error or self.error
