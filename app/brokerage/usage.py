"""The usage of a model call: read from the answer's bytes while they pass, and estimated where nothing was counted."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from app.runs.broker import CLIENT_GONE, NO_ANSWER
from app.runs.model import ModelCall, Usage

MAX_LINE_BYTES = 1024 * 1024
"""The longest line of a stream, or whole answer, that is parsed; of a longer one only the end is, where providers put the usage."""
TAIL_BYTES = 16 * 1024
BYTES_PER_TOKEN = 4
"""A rough ratio, for calls whose provider reports no counts."""
_NO_TEXT = frozenset({"id", "role", "signature", "thoughtSignature", "type"})
"""Fields of a streamed piece that are not text of the model."""
_USAGE = re.compile(r'"(usage|usageMetadata)"\s*:\s*(?=\{)')
"""Does not match inside a JSON string, where quotes are escaped."""
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True, kw_only=True)
class EventUsage:
    """The usage that one event of an answer reports; later counts replace earlier ones."""

    counts: Mapping[str, int] = field(default_factory=dict)
    """Keyed by the names of `Usage`'s fields."""
    has_started: bool = False
    """Whether the event is a piece of the model's own output."""
    output_bytes: int = 0
    """The size of the text in that piece."""
    error: str = ""
    """The provider's error type or code."""


def text_bytes(piece: object) -> int:
    """Counts the bytes of all text that a model wrote in a piece of its output, under whatever field names."""
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


ReadEvent = Callable[[dict[str, Any]], EventUsage]


class UsageReader:
    """Reads usage from an answer's chunks, in stream form or plain; keeps only counters and one line."""

    def __init__(self, read_event: ReadEvent, *, is_stream: bool) -> None:
        self._read_event = read_event
        self._is_stream = is_stream
        self._line = bytearray()
        self._is_cut = False
        """Whether the start of the current line was dropped because it was too long."""
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
        """Returns the usage counted so far. May be called repeatedly."""
        self._end_line()
        count = self._counts.get
        return Usage(
            input_tokens=count("input_tokens", 0),
            output_tokens=count("output_tokens", 0),
            cache_read_tokens=count("cache_read_tokens", 0),
            cache_creation_tokens=count("cache_creation_tokens", 0),
            cache_creation_1h_tokens=count("cache_creation_1h_tokens", 0),
        )

    @property
    def has_read(self) -> bool:
        """Returns whether anything of a model's was in it: a piece of its output, or a count."""
        return self.has_started or bool(self._counts)

    def guess_output_tokens(self, *, is_whole: bool) -> int:
        """Estimates output tokens by bytes: at least one for each piece of a stream, and none for a stream that broke off before its first."""
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
        """Reads one line's events; returns whether it was valid JSON."""
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
                    self._piece_tokens += max(1, seen.output_bytes // BYTES_PER_TOKEN)
        return True

    def _read_tail(self, tail: bytes) -> None:
        """Takes the largest counts of all usage objects there: an answer that repeats its request may contain others."""
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


@dataclass(slots=True, kw_only=True)
class ProxiedCall:
    """One model call while it passes through. An answer that nobody counted is estimated, so that none is free."""

    model: str
    started_at: datetime
    status: int
    reader: UsageReader
    asked_bytes: int
    has_output: bool
    """False for a call that only counts tokens, which costs nothing."""
    first_token_at: datetime | None = None
    error: str = ""
    """Why the call broke off."""
    is_whole: bool = False
    """Whether the answer came to its end and the client took it."""
    is_reported: bool = False

    def usage(self) -> Usage:
        """Returns the usage counted, or an estimate for an answer that broke off or whose provider reports no counts."""
        counted = self.reader.finish()
        # Some providers tell the counts in their last event alone, some never: an agent could read all but that.
        cached = counted.cache_read_tokens + counted.cache_creation_tokens
        is_told = bool(counted.input_tokens or cached) and self.reader.is_sure
        if not self._is_paid or (is_told and self.is_whole):
            return counted
        asked = 0 if is_told else self.asked_bytes // BYTES_PER_TOKEN - cached
        answered = self.reader.guess_output_tokens(is_whole=self.is_whole)
        return replace(
            counted,
            input_tokens=max(counted.input_tokens, asked),
            output_tokens=max(counted.output_tokens, answered),
        )

    def ended(self, at: datetime) -> ModelCall:
        """Returns the record of the call, which ended at this time."""
        usage = self.usage()
        is_ok = 200 <= self.status < 300  # noqa: PLR2004 - HTTP's success class
        is_nothing = is_ok and self.has_output and not self.reader.has_read
        return ModelCall(
            model=self.model,
            started_at=self.started_at,
            first_token_at=self.first_token_at,
            ended_at=at,
            status=self.status,
            usage=usage,
            error=self.error or self.reader.error or (NO_ANSWER if is_nothing else ""),
            has_output=self.has_output,
        )

    @property
    def _is_paid(self) -> bool:
        """Whether the model began to work; false for a call that failed before its first token, whatever its status."""
        if not self.has_output or (self.reader.error and not self.reader.has_started):
            return False
        return 200 <= self.status < 300 or self.status == CLIENT_GONE  # noqa: PLR2004 - HTTP's own
