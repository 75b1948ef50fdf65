"""Points that Slack sees: each Web API call, before it is carried out and after it was, before the answer is sent."""

import asyncio
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.slack.actions import STOP_ACTION
from tests.crash.points import Point, Side

PREFIX = "/api/"


class SlackTripwire:
    """Stands before the world's addresses; at the armed call its caller comes to harm, and when that kills it the call is never answered."""

    def __init__(self) -> None:
        self.passed: list[Point] = []
        self._wanted: Point | None = None
        self._harm: Callable[[int], bool | None] | None = None
        self._count = 0

    def wrap(self, app: ASGIApp) -> ASGIApp:
        async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http" and _is_call(scope["path"]):
                await self._call(app, scope, receive, send)
            else:
                await app(scope, receive, send)

        return wrapped

    def arm(self, point: Point, harm: Callable[[int], bool | None]) -> None:
        """`harm` is given the caller's port, and returns whether the caller is dead; None: it has hung up, and the next one is waited for."""
        self._wanted, self._harm, self._count = point, harm, 0

    def disarm(self) -> None:
        self._wanted = self._harm = None
        self.passed.clear()

    async def _call(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _read(receive)
        step = f"slack.{scope['path'].removeprefix(PREFIX)}{_kind(body)}"
        dead = asyncio.Event()
        port = int(scope["client"][1])

        async def again() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start" and self._meets(step, "after", port):
                dead.set()
            if not dead.is_set():
                await send(message)

        if self._meets(step, "before", port):
            dead.set()
        else:
            await app(scope, again, answer)
        while dead.is_set() and (await receive())["type"] != "http.disconnect":
            pass  # a killed service hangs up at once

    def _meets(self, step: str, side: Side, port: int) -> bool:
        """Whether this was the armed point, and the caller is dead."""
        self.passed.append(Point(step=step, side=side))
        if self._wanted is None or (step, side) != (self._wanted.step, self._wanted.side):
            return False
        self._count += 1
        if self._count < self._wanted.number or self._harm is None:
            return False
        is_dead = self._harm(port)
        if is_dead is None:
            return False
        self._wanted = self._harm = None
        return is_dead


def _is_call(path: str) -> bool:
    """The trace receiver has longer paths below the same prefix."""
    return path.startswith(PREFIX) and "/" not in path.removeprefix(PREFIX)


async def _read(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += bytes(message.get("body", b""))
        if not message.get("more_body", False):
            return body


def _kind(body: bytes) -> str:
    """What a message shows: progress still has its Stop button, the end has not."""
    blocks = _argument(body, "blocks")
    if blocks is None:
        return ""
    return "[progress]" if STOP_ACTION in json.dumps(blocks) else "[end]"


def _argument(body: bytes, name: str) -> Any:
    try:
        return json.loads(body).get(name)
    except ValueError:
        found = parse_qs(body.decode("utf-8", "replace")).get(name)
        return json.loads(found[0]) if found else None
