"""An ASGI app for where nothing goes on after an answer: what a request needs is opened for it, and closed before it is answered."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.log import get_logger

_STREAMED = ("/broker/",)
"""Paths whose answers are passed on as they come, but for their end; the others' wait until all of it is done."""

_log = get_logger(__name__)

OpenApp = Callable[[str, Headers], AbstractAsyncContextManager[ASGIApp]]
"""Path and headers of a request to the app that answers it."""


class InvocationApp:
    """Answers each request by an app of its own; 500, so that whoever asks does it again, where that cannot be opened or closed."""

    def __init__(self, open_app: OpenApp) -> None:
        self._open_app = open_app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        is_streamed = path.startswith(_STREAMED)
        held: list[Message] = []
        is_sent = False

        async def hold(message: Message) -> None:
            nonlocal is_sent
            is_end = message["type"] == "http.response.body" and not message.get("more_body")
            if is_streamed and is_end:
                # What is written down about it must be done before its end has been sent.
                await send({**message, "more_body": True})
                held.append({"type": "http.response.body", "body": b"", "more_body": False})
            elif is_streamed:
                is_sent = True
                await send(message)
            else:
                held.append(message)

        try:
            async with self._open_app(path, Headers(scope=scope)) as app:
                await app(scope, receive, hold)
        except Exception as exc:  # noqa: BLE001 - the outermost step of the HTTP edge
            _log.error("service.request_failed", path=path, exc_info=exc)
            if not is_sent:
                await JSONResponse({"error": "internal error"}, status_code=500)(
                    scope, receive, send
                )
            return
        for message in held:
            await send(message)
