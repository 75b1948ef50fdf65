"""How an answer from outside passes through: as it comes, and cut where it was cut."""

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from app.log import get_logger

_log = get_logger(__name__)


class StreamCutError(Exception):
    """The answer broke off after its status line had been passed on."""


class PassedThrough(StreamingResponse):
    """Breaks off where the answer did: the agent must see a cut stream, as it would without us."""

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except StreamCutError:
            # Uvicorn closes the connection of a response without an end, and says so in one line.
            _log.warning("broker.stream_cut", path=scope["path"])
