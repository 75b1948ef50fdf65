"""Live updates for open pages: every change to every subscriber, none of whom can slow the workspace down."""

import asyncio
import json
from collections.abc import AsyncGenerator

from app.playground.slack_types import JsonObject

QUEUE_MAX = 500
HEARTBEAT_S = 15.0
RESET: JsonObject = {"kind": "reset"}
"""Tells a page to load everything anew."""


class Feed:
    def __init__(self) -> None:
        self._queues: set[asyncio.Queue[JsonObject]] = set()

    def publish(self, item: JsonObject) -> None:
        for queue in self._queues:
            if queue.full():
                # A page that reads too slowly gets one "reset" in place of everything it missed.
                while not queue.empty():
                    queue.get_nowait()
                queue.put_nowait(RESET)
            else:
                queue.put_nowait(item)

    async def stream(self) -> AsyncGenerator[str, None]:
        """Server-sent events. Source: HTML Living Standard, "Server-sent events"."""
        queue: asyncio.Queue[JsonObject] = asyncio.Queue(maxsize=QUEUE_MAX)
        self._queues.add(queue)
        try:
            yield 'retry: 1000\ndata: {"kind": "hello"}\n\n'
            while True:
                try:
                    async with asyncio.timeout(HEARTBEAT_S):
                        item = await queue.get()
                except TimeoutError:
                    yield ": alive\n\n"
                    continue
                yield f"data: {json.dumps(item)}\n\n"
        finally:
            self._queues.discard(queue)
