"""The log of a run while it goes: a file that other processes of this machine may follow, and that goes with the run."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from app.runs.model import RunId

MAX_BYTES = 16 * 1024 * 1024


class LiveLogs:
    """In a directory that only the service's user can enter."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def path(self, run_id: RunId) -> Path:
        """Where it is while the run goes. Its lines are as the agent printed them: whoever shows them masks them.

        Masked when it is read, not when it is written: that costs a quarter of a millisecond a line, and few are read.
        """
        return self._directory / f"{run_id}.log"

    def clear(self) -> None:
        """Remove what an earlier process left."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in self._directory.glob("*.log"):
            path.unlink(missing_ok=True)

    @contextmanager
    def writing(self, run_id: RunId) -> Iterator[Callable[[str], None]]:
        """How to add a line while inside. A full disk, or `MAX_BYTES`, ends the file and costs the run nothing."""
        path = self.path(run_id)
        file, left = None, MAX_BYTES
        with suppress(OSError):
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.unlink(
                missing_ok=True
            )  # a follower of an earlier attempt's sees that this is another one
            file = path.open("xb", buffering=0)

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
                path.unlink(missing_ok=True)
