"""An ASGI app for where nothing goes on after an answer: what a request needs is opened for it, and closed before it is answered."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.log import get_logger
from app.web.routes import read_body

_STREAMED = ("/broker/",)
"""Paths whose bodies and answers are passed on as they come, but for the answer's end; the others' answers wait until all of it is done."""

_log = get_logger(__name__)

OpenApp = Callable[[str], AbstractAsyncContextManager[ASGIApp]]
"""Path of a request to the app that answers it."""
AnswerAlone = Callable[[Request, bytes], Response | None]
"""A request and its body (empty where that is passed on as it comes) to the answer for which nothing needs to be opened; None: something does."""


class InvocationApp:
    """Answers each request by an app of its own; 500, so that whoever asks does it again, where that cannot be opened or closed.

    A body is there whole before anything is opened: who sends it may hang up meanwhile, and what was asked is done.
    """

    def __init__(self, open_app: OpenApp, *, answer_alone: AnswerAlone) -> None:
        self._open_app = open_app
        self._answer_alone = answer_alone

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        request = Request(scope, receive)
        if path.startswith(_STREAMED):
            refusal = self._answer_alone(request, b"")
            if refusal is not None:
                await refusal(scope, receive, send)
            else:
                await self._answer(scope, receive, send, is_streamed=True)
            return
        body = await read_body(request)
        answer = body if isinstance(body, Response) else self._answer_alone(request, body)
        if answer is not None:
            await answer(scope, receive, send)
        elif isinstance(body, bytes):
            await self._answer(scope, _Body(body, then=receive).receive, send, is_streamed=False)

    async def _answer(
        self, scope: Scope, receive: Receive, send: Send, *, is_streamed: bool
    ) -> None:
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

        path = scope["path"]
        try:
            async with self._open_app(path) as app:
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


class _Body:
    """A body that was read, to be read again."""

    def __init__(self, body: bytes, *, then: Receive) -> None:
        self._body: bytes | None = body
        self._then = then

    async def receive(self) -> Message:
        if self._body is None:
            return await self._then()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}
