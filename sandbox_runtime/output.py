"""Bounded output: what is kept of a stream, and how bytes become lines. Pure."""

TRUNCATION_MARK = b"\n[output truncated]\n"
"""Ends a stream of which only the beginning was kept."""


class BoundedBuffer:
    """Keeps the first `max_bytes` of what is fed; the rest is counted, not kept."""

    def __init__(self, max_bytes: int) -> None:
        if max_bytes < 0:
            raise ValueError(f"max_bytes must not be negative: {max_bytes}")
        self._max_bytes = max_bytes
        self._kept = bytearray()
        self._seen = 0

    def feed(self, data: bytes) -> None:
        self._seen += len(data)
        room = self._max_bytes - len(self._kept)
        if room > 0:
            self._kept += data[:room]

    @property
    def truncated(self) -> bool:
        return self._seen > self._max_bytes

    def value(self) -> bytes:
        """What was kept, with the mark behind it if something was dropped."""
        return bytes(self._kept) + (TRUNCATION_MARK if self.truncated else b"")


class LineSplitter:
    """Cuts a byte stream into lines, whatever the pieces it arrives in.

    A line longer than `max_line_bytes` is cut there, marked, and its rest dropped, so that a stream without newlines
    cannot fill the memory.
    """

    def __init__(self, *, max_line_bytes: int) -> None:
        if max_line_bytes < 1:
            raise ValueError(f"max_line_bytes must be positive: {max_line_bytes}")
        self._max_line_bytes = max_line_bytes
        self._line = BoundedBuffer(max_line_bytes)
        self._pending = False

    def feed(self, data: bytes) -> list[bytes]:
        """The lines completed by `data`, without their newline."""
        pieces = data.split(b"\n")
        lines: list[bytes] = []
        for piece in pieces[:-1]:
            self._line.feed(piece)
            lines.append(self._take())
        if pieces[-1]:
            self._line.feed(pieces[-1])
            self._pending = True
        return lines

    def finish(self) -> list[bytes]:
        """The last line, if the stream did not end with a newline."""
        return [self._take()] if self._pending else []

    def _take(self) -> bytes:
        line = self._line.value().rstrip(b"\n") if self._line.truncated else self._line.value()
        self._line = BoundedBuffer(self._max_line_bytes)
        self._pending = False
        return line
