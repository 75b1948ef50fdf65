"""Reads usage out of a model's answer while its bytes pass by; keeps only counters and one line."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from app.runs.model import Usage

MAX_LINE_BYTES = 1024 * 1024
"""Of a stream's line, or of a whole answer, that is read as it is; of a longer one its end is, where providers have the usage."""
TAIL_BYTES = 16 * 1024
BYTES_PER_TOKEN = 4
"""About; for what nobody has counted."""
_NO_TEXT = frozenset({"id", "role", "signature", "thoughtSignature", "type"})
"""Members of a streamed piece that the model did not write."""
_USAGE = re.compile(r'"(usage|usageMetadata)"\s*:\s*(?=\{)')
"""Never inside a string, where quotes are escaped."""
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one event tells; later counts take the place of earlier ones."""

    counts: Mapping[str, int] = field(default_factory=dict)
    """By the names of `Usage`'s fields."""
    has_started: bool = False
    """It is a piece of the model's own output."""
    said_bytes: int = 0
    """Of the text in that piece."""
    error: str = ""
    """The provider's error type or code."""


def text_bytes(piece: object) -> int:
    """Of all that a model wrote in a piece of its output, whatever the names that it stands under."""
    total, waiting = 0, [piece]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            total += len(one.encode("utf-8", "replace"))
        elif isinstance(one, list):
            waiting += one
        elif isinstance(one, dict):
            waiting += [value for name, value in one.items() if name not in _NO_TEXT]
    return total


ReadEvent = Callable[[dict[str, Any]], Seen]


class UsageReader:
    """Feed it every chunk. Understands the stream form and the plain form of an answer."""

    def __init__(self, read_event: ReadEvent, *, is_stream: bool) -> None:
        self._read_event = read_event
        self._is_stream = is_stream
        self._line = bytearray()
        self._is_cut = False
        """The front of the line was too much to keep."""
        self._counts: dict[str, int] = {}
        self._answered_bytes = 0
        self._piece_tokens = 0
        self.error = ""
        """The provider's error type, if one was seen."""
        self.has_started = False
        """True from the first piece of the model's own output."""
        self.is_sure = True
        """False once counts were found in what could not be read as a whole: there may be others that were not."""

    def feed(self, chunk: bytes) -> None:
        self._answered_bytes += len(chunk)
        if not self._is_stream:
            self._keep(chunk)
            return
        first, *others = chunk.replace(b"\r", b"\n").split(b"\n")
        self._keep(first)
        for part in others:
            self._end_line()
            self._keep(part)

    def finish(self) -> Usage:
        """What was counted. May be repeated."""
        self._end_line()
        count = self._counts.get
        return Usage(
            input_tokens=count("input_tokens", 0),
            output_tokens=count("output_tokens", 0),
            cache_read_tokens=count("cache_read_tokens", 0),
            cache_creation_tokens=count("cache_creation_tokens", 0),
            cache_creation_1h_tokens=count("cache_creation_1h_tokens", 0),
        )

    def guess_output_tokens(self, *, is_whole: bool) -> int:
        """By the bytes; each piece of a stream is a token at least. Of a stream that broke off, what came before them is none."""
        if self._is_stream and (self._piece_tokens or not is_whole):
            return self._piece_tokens
        return self._answered_bytes // BYTES_PER_TOKEN

    def _keep(self, part: bytes) -> None:
        self._line += part
        if len(self._line) > MAX_LINE_BYTES:
            del self._line[:-TAIL_BYTES]
            self._is_cut = True

    def _end_line(self) -> None:
        line, is_cut = bytes(self._line), self._is_cut
        self._line.clear()
        self._is_cut = False
        if not line or (self._is_stream and not is_cut and not line.startswith(b"data:")):
            return
        data = line.removeprefix(b"data:")
        # What is not whole, as its reader left before its last byte, has counts nevertheless.
        if is_cut or not self._read(data):
            self._read_tail(data[-TAIL_BYTES:])

    def _read(self, data: bytes) -> bool:
        """Whether it is JSON."""
        try:
            found: Any = json.loads(data)
        except (ValueError, RecursionError):
            return False
        # Gemini's stream without server-sent events is one list.
        for event in found if isinstance(found, list) else [found]:
            if isinstance(event, dict):
                seen = self._read_event(event)
                self._counts.update(seen.counts)
                self.error = seen.error or self.error
                if seen.has_started:
                    self.has_started = True
                    self._piece_tokens += max(1, seen.said_bytes // BYTES_PER_TOKEN)
        return True

    def _read_tail(self, tail: bytes) -> None:
        """Counts of whatever is called usage there: the largest, as a request that is repeated in its answer may have some, too."""
        text = tail.decode("utf-8", "replace")
        at = 0
        while name := _USAGE.search(text, at):
            at = name.end()
            try:
                found, at = _DECODER.raw_decode(text, at)
            except (ValueError, RecursionError):
                continue
            counts = self._read_event({"type": "message", name[1]: found}).counts
            self.is_sure = self.is_sure and not counts
            for kind, count in counts.items():
                self._counts[kind] = max(count, self._counts.get(kind, 0))
