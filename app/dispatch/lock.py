"""One process per state directory."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class StateDirectoryBusyError(Exception):
    """Another Orion process owns the state directory."""


@contextmanager
def own_state_directory(directory: Path) -> Iterator[None]:
    """Hold the directory's lock while inside; the kernel lets it go when the process dies.

    On SQLite a second process would take over the first one's running workflows (one executor id for both).

    Raises:
        StateDirectoryBusyError: naming the directory and the owner's pid.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = directory / "orion.lock"
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            owner = file.read().strip() or "unknown"
            raise StateDirectoryBusyError(
                f"{directory} is in use by another Orion process (pid {owner}); "
                "stop it, or give this one its own ORION_STATE_DIR"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
