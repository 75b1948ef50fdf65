"""Puts the lines of a supervisor's stdout together, in time and memory that no line of a sandbox can exceed; pure."""

from collections.abc import Iterator


class RecordLines:
    """One stream's. A line longer than `max_chars` is none: it is counted, and not kept while it comes."""

    def __init__(self, max_chars: int) -> None:
        self._max_chars = max_chars
        self._pieces: list[str] = []
        self._chars = 0
        self.dropped = 0
        """Lines that were too long."""

    def feed(self, text: str) -> Iterator[str]:
        """The lines that end in this text, without their ends."""
        *ends, rest = text.split("\n")
        for end in ends:
            self._add(end)
            if self._chars > self._max_chars:
                self.dropped += 1
            else:
                yield "".join(self._pieces)
            self.reset()
        self._add(rest)

    def reset(self) -> None:
        """Forget the line that has begun."""
        self._pieces.clear()
        self._chars = 0

    def _add(self, piece: str) -> None:
        self._chars += len(piece)
        if self._chars > self._max_chars:
            self._pieces.clear()
        elif piece:
            self._pieces.append(piece)
