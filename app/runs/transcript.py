"""The log of a run for its operator: what the agent printed, whole lines, within a bound."""

from collections import deque
from collections.abc import Callable

MAX_CHARS = 256 * 1024
HEAD_CHARS = 32 * 1024
"""How an agent started is kept; of the rest, the end."""


class Transcript:
    """Keeps the first lines and the last ones. Lines are masked when it is read, each as a whole."""

    def __init__(self, tell: Callable[[str], None] | None = None) -> None:
        """`tell` hears of every line as it comes."""
        self._tell = tell or _tell_nobody
        self._head: list[str] = []
        self._tail: deque[str] = deque()
        self._head_chars = self._tail_chars = self._left_out = 0

    def add(self, line: str) -> None:
        """One line, without its end."""
        self._tell(line)
        if not self._tail and self._head_chars + len(line) < HEAD_CHARS:
            self._head.append(line)
            self._head_chars += len(line) + 1
            return
        self._tail.append(line)
        self._tail_chars += len(line) + 1
        while self._tail_chars > MAX_CHARS - HEAD_CHARS and len(self._tail) > 1:
            self._tail_chars -= len(self._tail.popleft()) + 1
            self._left_out += 1

    def text(self, mask: Callable[[str], str]) -> str:
        """All that is kept; what is longer than everything allowed is cut after it is masked."""
        gap = [f"[{self._left_out} lines left out]"] if self._left_out else []
        tail = [mask(line)[-MAX_CHARS:] for line in self._tail]
        return "\n".join([*(mask(line) for line in self._head), *gap, *tail])


def last_lines(text: str, *, max_chars: int) -> str:
    """The end of a masked text, whole lines if there is one that fits."""
    end = text[-max_chars:]
    if len(text) > max_chars and "\n" in end.rstrip("\n"):
        end = end.partition("\n")[2]
    return end


def _tell_nobody(_line: str) -> None:
    pass
