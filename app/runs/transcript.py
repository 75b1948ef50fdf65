"""What an agent printed: kept for the run's record, and in a file while it goes."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from app.runs.request import RunId

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

    def restart(self) -> None:
        """Forgets all lines, which come again."""
        self._head.clear()
        self._tail.clear()
        self._head_chars = self._tail_chars = self._left_out = 0

    def add(self, line: str, *, is_told: bool = False) -> None:
        """Adds a line; `is_told`: it was told before."""
        if not is_told:
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
        """Returns all that is kept, masked; what is longer than everything allowed is cut after that."""
        gap = [f"[{self._left_out} lines left out]"] if self._left_out else []
        tail = [mask(line)[-MAX_CHARS:] for line in self._tail]
        return "\n".join([*(mask(line) for line in self._head), *gap, *tail])


def last_lines(text: str, *, max_chars: int) -> str:
    """Returns the end of a masked text, whole lines if there is one that fits."""
    end = text[-max_chars:]
    if len(text) > max_chars and "\n" in end.rstrip("\n"):
        end = end.partition("\n")[2]
    return end


def _tell_nobody(_line: str) -> None:
    pass


MAX_BYTES = 16 * 1024 * 1024


class LiveLogs:
    """Files in a directory that only the service's user can enter, with what agents print while they work."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def path(self, run_id: RunId) -> Path:
        """Returns where it is while the run goes. Its lines are as the agent printed them: whoever shows them masks them.

        Masked when it is read, not when it is written: that costs a quarter of a millisecond a line, and few are read.
        """
        return self._directory / f"{run_id}.log"

    def clear(self) -> None:
        """Removes what an earlier process left."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in self._directory.glob("*.log"):
            path.unlink(missing_ok=True)

    @contextmanager
    def record(self, run_id: RunId, *, goes_on: bool = False) -> Iterator[Callable[[str], None]]:
        """Yields how to add a line while inside. A full disk, or `MAX_BYTES`, ends the file and costs the run nothing.

        `goes_on`: with the file of an earlier slice, if it is there. Whoever calls this removes the file by `remove`.
        """
        path = self.path(run_id)
        file, left = None, MAX_BYTES
        with suppress(OSError):
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not goes_on:  # a follower of an earlier attempt's sees that this is another one
                path.unlink(missing_ok=True)
            file = path.open("ab", buffering=0)
            left -= file.tell()

        def write(line: str) -> None:
            nonlocal left
            data = line.encode("utf-8", "replace") + b"\n"
            left -= len(data)
            if file is not None and left >= 0:
                with suppress(OSError):
                    file.write(data)

        try:
            yield write
        finally:
            with suppress(OSError):
                if file is not None:
                    file.close()

    def remove(self, run_id: RunId) -> None:
        """Ends the log of a run."""
        with suppress(OSError):
            self.path(run_id).unlink(missing_ok=True)
