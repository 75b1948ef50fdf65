"""Posts and edits Orion's own messages: marked by metadata, and never posted twice without looking."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from app.runs.model import RunId, RunRequest
from app.slack.api import (
    UPLOAD_METHODS,
    SlackApi,
    SlackFault,
    SlackRefusal,
    SlackUnreachable,
)
from app.slack.blocks import MessagePart

EVENT_TYPE: Final = "orion_run"
ANNOUNCEMENT_PART: Final = -1
_LOOK_AGAIN_AFTER_S: Final = 1.0
_MAX_PAGES: Final = 5

REPOST_WORDS: Final = frozenset({"message_not_found", "cant_update_message", "edit_window_closed"})
"""The message can be edited no more. Source: Slack Web API, chat.update errors, read 2026-11."""


class OwnMessages:
    """The messages of this bot in its threads."""

    def __init__(self, api: SlackApi, *, look_again_after_s: float = _LOOK_AGAIN_AFTER_S) -> None:
        self._api = api
        self._look_again_after_s = look_again_after_s

    async def post(self, request: RunRequest, part: MessagePart, *, number: int) -> str:
        """Post below the thread's root; returns the ts.

        Raises:
            SlackFault: it is not there, or nobody knows.
        """
        arguments = {
            "channel": request.channel,
            "thread_ts": request.thread_ts,
            "unfurl_links": False,
            "unfurl_media": False,
            **_content(part, run_id=request.run_id, number=number),
        }
        fault: SlackFault | None = None
        for _ in range(self._api.policy.attempts):
            if isinstance(fault, SlackUnreachable):
                await asyncio.sleep(self._look_again_after_s)
                if ts := (await self.find(request)).get(number):
                    return ts
            await self._api.wait_for_pause("chat.postMessage")
            try:
                response = await self._api.once("chat.postMessage", arguments)
            except SlackRefusal:
                raise
            except SlackFault as exc:
                fault = exc
                continue
            return str(response.get("ts", ""))
        raise fault or SlackUnreachable("no_attempt")

    async def update(self, request: RunRequest, part: MessagePart, *, number: int, ts: str) -> None:
        """Replace a message, as often as it takes.

        Raises:
            SlackFault: it still shows what it showed.
        """
        await self._api.repeated("chat.update", _update(request, part, number=number, ts=ts))

    async def try_update(
        self, request: RunRequest, part: MessagePart, *, number: int, ts: str
    ) -> None:
        """Replace a message, in one attempt.

        Raises:
            SlackFault: it may still show what it showed.
        """
        await self._api.once("chat.update", _update(request, part, number=number, ts=ts))

    async def share(
        self, request: RunRequest, *, name: str, content: str, maybe_shared: bool
    ) -> None:
        """Share a text file below the thread's root; `maybe_shared`: look whether one of that name is there.

        Raises:
            SlackFault: it is not there, or nobody knows.
        """
        fault: SlackFault | None = None
        for _ in range(self._api.policy.attempts):
            if maybe_shared and name in await self._files(request):
                return
            await self._api.wait_for_pause(UPLOAD_METHODS[0])
            try:
                await self._api.upload(
                    channel=request.channel, thread_ts=request.thread_ts, name=name, content=content
                )
            except SlackRefusal:
                raise
            except SlackFault as exc:
                fault, maybe_shared = exc, True
                await asyncio.sleep(self._look_again_after_s)
            else:
                return
        raise fault or SlackUnreachable("no_attempt")

    async def find(self, request: RunRequest) -> Mapping[int, str]:
        """Part number to ts of what stands in the thread of a run; the latest, when a part stands there twice.

        Raises:
            SlackFault: it cannot be read.
        """
        try:
            return await self._find(request)
        except SlackRefusal as exc:
            # Source: Slack Web API, conversations.replies errors: the root was deleted, read 2026-11.
            if exc.word == "thread_not_found":
                return {}
            raise

    async def _find(self, request: RunRequest) -> Mapping[int, str]:
        found: dict[int, str] = {}
        async for message in self._messages(request):
            own = own_part(message)
            if own is not None and own[0] == request.run_id and isinstance(message.get("ts"), str):
                found[own[1]] = message["ts"]
        return found

    async def _files(self, request: RunRequest) -> set[str]:
        """Names of the files in the thread since the run's message."""
        return {
            str(file.get("name"))
            async for message in self._messages(request)
            for file in message.get("files") or ()
            if isinstance(file, dict)
        }

    async def _messages(self, request: RunRequest) -> AsyncIterator[Mapping[str, Any]]:
        """Nothing of a run is older than its message, however long the thread is."""
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            page = await self._api.repeated(
                "conversations.replies",
                {
                    "channel": request.channel,
                    "ts": request.thread_ts,
                    "oldest": request.message_ts,
                    "limit": 200,
                    "include_all_metadata": "true",
                    "cursor": cursor,
                },
                verb="GET",
            )
            messages = page.get("messages")
            for message in messages if isinstance(messages, list) else []:
                yield message
            cursor = next_cursor(page)
            if not cursor:
                break


def own_part(message: Mapping[str, Any]) -> tuple[RunId, int] | None:
    """The run and the part that a message of this bot shows, by its metadata."""
    metadata = message.get("metadata")
    if not isinstance(metadata, dict) or metadata.get("event_type") != EVENT_TYPE:
        return None
    payload = metadata.get("event_payload")
    if not isinstance(payload, dict):
        return None
    run_id, number = payload.get("run_id"), payload.get("part")
    if not isinstance(run_id, str) or not isinstance(number, int):
        return None
    return RunId(run_id), number


def next_cursor(page: Mapping[str, Any]) -> str | None:
    """Where the next page begins, or None at the end."""
    response_metadata = page.get("response_metadata")
    cursor = response_metadata.get("next_cursor") if isinstance(response_metadata, dict) else None
    return cursor if isinstance(cursor, str) and cursor else None


def _content(part: MessagePart, *, run_id: RunId, number: int) -> Mapping[str, Any]:
    return {
        "text": part.text,
        # An empty list takes away the blocks of what is being replaced.
        "blocks": [dict(block) for block in part.blocks],
        "metadata": {
            "event_type": EVENT_TYPE,
            "event_payload": {"run_id": run_id, "part": number},
        },
    }


def _update(request: RunRequest, part: MessagePart, *, number: int, ts: str) -> Mapping[str, Any]:
    return {
        "channel": request.channel,
        "ts": ts,
        **_content(part, run_id=request.run_id, number=number),
    }
