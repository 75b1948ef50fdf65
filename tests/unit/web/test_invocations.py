"""What a request has opened is closed before its answer has ended, also where that is passed on as it comes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.web.invocations import InvocationApp

PIECES = ("one", "two")


class Told:
    """Stands before an app, and notes what it sends, and when what it needs is closed."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self._app = InvocationApp(self._open)

    @asynccontextmanager
    async def _open(self, _path: str, _headers: Headers) -> AsyncIterator[ASGIApp]:
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
