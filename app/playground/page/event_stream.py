"""Live updates for open pages: every change to every subscriber, none of whom can slow the workspace down."""

import asyncio
import json
from collections.abc import AsyncGenerator

from app.playground.slack.types import Change, JsonObject, Message
from app.playground.slack.workspace import Workspace

QUEUE_MAX = 500
HEARTBEAT_S = 15.0
RESET: JsonObject = {"kind": "reset"}
"""Tells a page to load everything anew."""


class EventStream:
    """Publishes each change of the workspace, and what else it is given."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._queues: set[asyncio.Queue[JsonObject]] = set()
        workspace.listeners.append(self._tell)

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

    def _tell(self, change: Change) -> None:
        if change.status is not None:
            self.publish({"kind": "status", **change.status})
        elif change.message is None:
            self.publish({"kind": change.kind, "channel": change.channel})
        else:
            self._publish_message(change.kind, change.message)
            if change.message.thread_ts:  # the root's reply count changed
                messages = self._workspace.messages[change.channel]
                self._publish_message("summary", messages[change.message.thread_ts])

    def _publish_message(self, kind: str, message: Message) -> None:
        shown = message_json(self._workspace, message)
        self.publish({"kind": kind, "channel": message.channel, "message": shown})


def message_json(workspace: Workspace, message: Message) -> JsonObject:
    """Returns a message as the page draws it: Slack's JSON, and what Slack's clients know besides."""
    return workspace.render(message, with_metadata=True) | {
        "channel": message.channel,
        "ephemeral_to": message.ephemeral_to,
        "is_bot": message.is_bot,
        "deleted": message.deleted,
        "version": len(message.versions),
    }
