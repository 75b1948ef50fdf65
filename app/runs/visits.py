"""People in the sandboxes of threads, as other processes of this machine see it: locks, which end with who holds them."""

import asyncio
import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from app.runs.session import SessionId

SAVING_TIMEOUT_S = 150.0
"""Longer than anyone may take to save."""
POLL_S = 0.05


class Visits:
    """Two locks of each session: one that visitors share, and one for whoever saves what a visitor has changed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @contextmanager
    def visiting(self, session_id: SessionId) -> Iterator[Callable[[], bool]]:
        """A person works in its sandbox: it is not given up meanwhile for want of use. Yields: is nobody else there?

        Once that was answered with yes, others wait at the door until this one leaves.
        """
        with self._open(session_id, "visit") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            yield lambda: _lock_alone(file) or _share_again(file)

    def is_visited(self, session_id: SessionId) -> bool:
        return self._is_held(session_id, "visit")

    @contextmanager
    def saving(self, session_id: SessionId) -> Iterator[None]:
        """No run begins to use its files meanwhile. Inside, look whether one is going: it began before.

        Raises:
            BlockingIOError: another one saves.
        """
        with self._open(session_id, "save") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield

    async def until_saved(self, session_id: SessionId) -> None:
        """For a run that is recorded as going and is about to use the files; returns when nobody saves them (any more).

        Raises:
            TimeoutError: after `SAVING_TIMEOUT_S`.
        """
        async with asyncio.timeout(SAVING_TIMEOUT_S):
            while self._is_held(session_id, "save"):  # noqa: ASYNC110 - another process lets go of it
                await asyncio.sleep(POLL_S)

    def leave(self, session_id: SessionId) -> None:
        """A sandbox of it is left running, for whoever takes it."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path(session_id, "left").touch()

    def is_left(self, session_id: SessionId) -> bool:
        return self._path(session_id, "left").exists()

    def take_left(self, session_id: SessionId) -> None:
        """It is taken, or ended."""
        self._path(session_id, "left").unlink(missing_ok=True)

    def forget(self, session_id: SessionId) -> None:
        """The session is removed."""
        for kind in ("visit", "save", "left"):
            self._path(session_id, kind).unlink(missing_ok=True)

    def _is_held(self, session_id: SessionId, kind: str) -> bool:
        path = self._path(session_id, kind)
        if not path.exists():
            return False
        with path.open("ab") as file:
            return not _lock_alone(file)

    @contextmanager
    def _open(self, session_id: SessionId, kind: str) -> Iterator[IO[bytes]]:
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._path(session_id, kind).open("ab") as file:
            yield file

    def _path(self, session_id: SessionId, kind: str) -> Path:
        return self._directory / f"{session_id}.{kind}"


def _lock_alone(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _share_again(file: IO[bytes]) -> bool:
    """False. A lock is lost by the attempt to have it alone. Source: flock(2), converting a lock."""
    with suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return False
