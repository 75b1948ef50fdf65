"""Reads usage out of a Messages API answer while its bytes pass by; keeps only counters and one line."""

import json
from typing import Any

from app.runs.model import Usage

MAX_LINE_BYTES = 1024 * 1024
MAX_BODY_BYTES = 16 * 1024 * 1024


class UsageReader:
    """Feed it every chunk. Understands the stream form and the plain form of an answer.

    Source: Anthropic Messages API, streaming: `message_start` carries the input counts, each `message_delta` the
    cumulative output count; read 2026-11.
    """

    def __init__(self, *, is_stream: bool) -> None:
        self._is_stream = is_stream
        self._buffer = b""
        self._counts: dict[str, int] = {}
        self.error = ""
        """The provider's error type, if one was seen."""
        self.has_started = False
        """True from the first piece of the model's own output."""

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
            cache_read_tokens=count("cache_read_input_tokens", 0),
            cache_creation_tokens=count("cache_creation_input_tokens", 0),
        )

    def _read(self, data: bytes) -> None:
        try:
            event: Any = json.loads(data)
        except ValueError:
            return
        if not isinstance(event, dict):
            return
        match event:
            case {"type": "message_start", "message": {"usage": dict(usage)}}:
                self._count(usage)
            case {"type": "message_delta" | "message", "usage": dict(usage)}:
                self._count(usage)
            case {"type": "content_block_delta" | "content_block_start"}:
                self.has_started = True
            case {"type": "error", "error": {"type": str(error)}}:
                self.error = error
            case _:
                pass

    def _count(self, usage: dict[str, Any]) -> None:
        self._counts.update(
            {name: value for name, value in usage.items() if isinstance(value, int)}
        )
