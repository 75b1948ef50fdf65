"""What a request has opened is closed before its answer has ended, also where that is passed on as it comes."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.web.invocations import InvocationApp
from app.web.routes import MAX_BODY_BYTES

PIECES = ("one", "two")
SCOPE = {
    "type": "http",
    "method": "POST",
    "path": "/slack/events",
    "query_string": b"",
    "headers": [],
}


class Told:
    """Stands before an app, and notes what it sends, and when what it needs is closed."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self._app = InvocationApp(self._open, answer_alone=lambda _request, _body: None)

    @asynccontextmanager
    async def _open(self, _path: str) -> AsyncIterator[ASGIApp]:
        async def answer(_request: Request) -> StreamingResponse:
            async def pieces() -> AsyncIterator[str]:
                for piece in PIECES:
                    yield piece

            return StreamingResponse(pieces())

        yield Starlette(routes=[Route("/{path:path}", answer)])
        self.events.append("closed")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def note(message: Message) -> None:
            if message["type"] == "http.response.body":
                body = message.get("body", b"").decode()
                self.events.append(body if message.get("more_body") else f"{body}end")
            await send(message)

        await self._app(scope, receive, note)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/broker/anthropic", ["one", "two", "", "closed", "end"]),
        ("/slack/events", ["closed", "one", "two", "end"]),
    ],
)
async def test_nothing_is_left_to_do_when_an_answer_ends(path: str, expected: list[str]) -> None:
    """Of what streams the pieces come at once, and its end waits; of all else the whole answer."""
    told = Told()
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(told), base_url="http://function"
    ) as http:
        assert (await http.get(path)).text == "".join(PIECES)
    assert told.events == expected


async def test_who_hangs_up_is_heard_all_the_same() -> None:
    """The body is there before anything is opened, and read once more by what is."""
    got: list[bytes] = []

    @asynccontextmanager
    async def open_app(_path: str) -> AsyncIterator[ASGIApp]:
        async def answer(request: Request) -> Response:
            got.append(await request.body())
            return PlainTextResponse("done")

        yield Starlette(routes=[Route("/slack/events", answer, methods=["POST"])])

    told: list[Message] = [
        {"type": "http.request", "body": b"what was ", "more_body": True},
        {"type": "http.request", "body": b"said", "more_body": False},
        {"type": "http.disconnect"},
    ]
    sent: list[Message] = []

    async def receive() -> Message:
        return told.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    app = InvocationApp(open_app, answer_alone=lambda _request, _body: None)
    await app(SCOPE, receive, send)
    assert got == [b"what was said"]
    assert sent[0]["status"] == 200


@pytest.mark.parametrize(
    ("told", "status"),
    [
        ([{"type": "http.request", "body": b"{}", "more_body": False}], 401),
        (
            [
                {"type": "http.request", "body": b"{", "more_body": True},
                {"type": "http.disconnect"},
            ],
            400,
        ),
        ([{"type": "http.request", "body": bytes(MAX_BODY_BYTES + 1), "more_body": True}], 413),
    ],
)
async def test_what_is_refused_opens_nothing(told: list[Message], status: int) -> None:
    """A stranger's request, one that was cut off, and one that is too long."""

    def open_app(path: str) -> AbstractAsyncContextManager[ASGIApp]:
        raise AssertionError(path)

    sent: list[Message] = []

    async def receive() -> Message:
        return told.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    def refuse(_request: Request, _body: bytes) -> Response:
        return PlainTextResponse("who are you?", status_code=401)

    await InvocationApp(open_app, answer_alone=refuse)(SCOPE, receive, send)
    assert sent[0]["status"] == status
