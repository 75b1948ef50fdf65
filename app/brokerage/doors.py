"""A door for each thread: a unix socket of its own, so that a token is good only in the sandbox that it was made for."""

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol

from fastapi import APIRouter

from app.brokerage.admission import Admission
from app.runs.broker_ports import AskLeave, BrokerEndpoint, ModelGrant
from app.runs.model import ModelCall
from app.runs.session import SessionId

NAME_CHARS = 12
SOCKET_NAME = "sock"
"""Short: the path of a unix socket has 107 bytes. Source: Linux, unix(7)."""
MAX_PATH_BYTES = 107


class OpenDoor(Protocol):
    def __call__(self, path: Path, name: str, /) -> AbstractAsyncContextManager[None]: ...


class DoorBroker:
    """Implements ModelBroker. A door's directory is there as long as a sandbox is that sees it; its socket while a run goes."""

    def __init__(
        self, admission: Admission, *, router: APIRouter, directory: Path, open_door: OpenDoor
    ) -> None:
        """Raises: OSError: `directory` has too long a path."""
        self.admission = admission
        self.router = router
        """For the public address, where a token alone counts: no sandbox of this machine reaches it."""
        self._directory = directory
        self._open_door = open_door
        longest = directory / ("x" * NAME_CHARS) / SOCKET_NAME
        if len(bytes(longest)) > MAX_PATH_BYTES:
            raise OSError(f"too long for a unix socket: {longest}")

    def endpoint_for(self, session_id: SessionId) -> BrokerEndpoint:
        path = self._path(session_id)
        path.parent.mkdir(mode=0o755, exist_ok=True)
        return BrokerEndpoint(address=str(path))

    @asynccontextmanager
    async def open_grant(
        self,
        grant: ModelGrant,
        on_call: Callable[[ModelCall], None],
        on_effect: Callable[[], Awaitable[None]] | None = None,
        refusal: AskLeave | None = None,
    ) -> AsyncIterator[str]:
        path = Path(self.endpoint_for(SessionId(grant.session_id)).address)
        # In this order: an agent that waits for its broker must not be told that its run is over.
        with self.admission.open_grant(grant, on_call, on_effect, refusal) as token:
            async with self._open_door(path, grant.session_id):
                yield token

    def adopt(self, session_id: SessionId, door: SessionId) -> None:
        self.close(session_id)
        # The sandbox sees that directory itself; the name leads there, also after a restart.
        self._path(session_id).parent.symlink_to(self._path(door).parent.name)

    def close(self, session_id: SessionId) -> None:
        directory = self._path(session_id).parent
        if directory.is_symlink():
            adopted = directory.resolve()
            directory.unlink()
            directory = adopted
        shutil.rmtree(directory, ignore_errors=True)

    def close_others(self, kept: Collection[SessionId]) -> None:
        """At the start: remove the doors that an earlier process left, but for sandboxes that shall be attached to."""
        directories = [self._path(session_id).parent for session_id in kept]
        names = {path.name for path in (*directories, *(one.resolve() for one in directories))}
        for path in self._directory.iterdir():
            if path.name in names:
                continue
            if path.is_symlink():
                path.unlink()
            else:
                shutil.rmtree(path, ignore_errors=True)

    def _path(self, session_id: SessionId) -> Path:
        return door_of(self._directory, session_id)


def door_of(directory: Path, session_id: SessionId) -> Path:
    """The socket of a session's door."""
    return directory / session_id[-NAME_CHARS:] / SOCKET_NAME
