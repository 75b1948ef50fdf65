"""Posts and edits Orion's own messages: marked by metadata, and never posted twice without looking."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from app.runs.request import RUN_ID_PREFIX, RunId, RunRequest
from app.slack.api import (
    SlackApi,
    SlackFault,
    SlackLeaseLost,
    SlackRefusal,
    SlackUnreachable,
    within,
)
from app.slack.blocks import MessagePart
from app.slack.fields import object_of, objects_of, text_of
from app.slack.files import SlackFiles

Chunk = Mapping[str, Any]
"""What a call adds to a stream. Source: Slack Web API, chat.appendStream, `chunks`, read 2026-11."""
EVENT_TYPE: Final = "orion_run"
ANNOUNCEMENT_PART: Final = -1
CHANGE_PART: Final = -2
UNSHARED_PART: Final = -3
FIRST_NOTICE_PART: Final = -10_000
"""Of the first thing that is told of a run's pull request; that of the next one is one less."""
FIRST_APPROVAL_PART: Final = -100
"""Of the card of what a run asks for first; that of the next one is one less."""
_LOOK_AGAIN_AFTER_S: Final = 1.0
_MAX_PAGES: Final = 5

STREAMING: Final = "streaming_state_conflict"
"""It is being streamed, and cannot be edited before that is ended. Source: Slack Web API, chat.update errors, read 2026-11."""

REPOST_WORDS: Final = frozenset({"message_not_found", "cant_update_message", "edit_window_closed"})
"""The message can be edited no more. Source: Slack Web API, chat.update errors, read 2026-11."""


class OwnMessages:
    """The messages of this bot in its threads."""

    def __init__(
        self,
        api: SlackApi,
        files: SlackFiles,
        *,
        look_again_after_s: float = _LOOK_AGAIN_AFTER_S,
    ) -> None:
        self._api = api
        self._uploads = files
        self._look_again_after_s = look_again_after_s

    async def post(
        self,
        request: RunRequest,
        part: MessagePart,
        *,
        number: int,
        has_turn: bool = False,
        in_channel: bool = False,
        instead_of: str | None = None,
    ) -> str:
        """Posts below the thread's root; returns the ts. `has_turn`: its turn among the channel's posts has come. `in_channel`:
        shown there, too. `instead_of`: what stands as this part, and can be edited no more.

        Raises:
            SlackFault: it is not there, or nobody knows.
        """
        arguments = {
            "channel": request.channel,
            "thread_ts": request.thread_ts,
            "unfurl_links": False,
            "unfurl_media": False,
            # Source: Slack Web API, chat.postMessage, `reply_broadcast`, read 2026-11.
            "reply_broadcast": True if in_channel else None,
            **_content(part, run_id=request.run_id, number=number),
        }
        fault: SlackFault | None = None
        for _ in range(self._api.policy.attempts):
            if isinstance(fault, SlackUnreachable):
                await asyncio.sleep(self._look_again_after_s)
                ts = (await self.find(request)).get(number)
                if ts and ts != instead_of:
                    return ts
            try:
                response = await self._api.once("chat.postMessage", arguments, has_turn=has_turn)
            except (SlackRefusal, SlackLeaseLost):
                raise
            except SlackFault as exc:
                fault, has_turn = exc, False
                continue
            return str(response.get("ts", ""))
        raise fault or SlackUnreachable("no_attempt")

    async def update(self, request: RunRequest, part: MessagePart, *, number: int, ts: str) -> None:
        """Replaces a message, as often as it takes. Raises: SlackFault: it still shows what it showed."""
        arguments = _update(request, part, number=number, ts=ts)
        try:
            await self._api.repeated("chat.update", arguments)
        except SlackRefusal as exc:
            if exc.word != STREAMING:
                raise
            await self.end_stream(request, ts=ts)
            await self._api.repeated("chat.update", arguments)

    async def try_update(
        self, request: RunRequest, part: MessagePart, *, number: int, ts: str
    ) -> None:
        """Replaces a message, in one attempt, whose turn has come. Raises: SlackFault: it may still show what it showed."""
        arguments = _update(request, part, number=number, ts=ts)
        try:
            await self._api.once("chat.update", arguments, has_turn=True)
        except SlackRefusal as exc:
            if exc.word != STREAMING:
                raise
            async with within(self._api.policy.call_timeout_s):
                await self.end_stream(request, ts=ts)
                await self._api.once("chat.update", arguments)

    async def start_stream(self, request: RunRequest, chunks: Sequence[Chunk]) -> str:
        """Starts a message that is written bit by bit, below the thread's root, in one attempt; returns the ts, empty when it is not there.

        The run's id is that of a task in `chunks`: a stream has no metadata before its end.

        Raises:
            SlackRefusal, SlackRateLimit: it is not there.
            SlackUnreachable: nobody knows.
        """
        arguments = {
            "channel": request.channel,
            "thread_ts": request.thread_ts,
            "recipient_user_id": request.user,
            "recipient_team_id": request.team,
            "task_display_mode": "plan",
            "chunks": list(chunks),
        }
        try:
            response = await self._api.once("chat.startStream", arguments)
        except SlackUnreachable:
            await asyncio.sleep(self._look_again_after_s)
            try:
                return (await self.find(request)).get(0, "")
            except SlackRefusal as exc:
                raise SlackUnreachable(exc.word) from exc
        return str(response.get("ts", ""))

    async def append(self, request: RunRequest, chunks: Sequence[Chunk], *, ts: str) -> None:
        """Adds to a stream, in one attempt, whose turn has come. Raises: SlackFault: it is not there, or nobody knows."""
        arguments = {"channel": request.channel, "ts": ts, "chunks": list(chunks)}
        await self._api.once("chat.appendStream", arguments, has_turn=True)

    async def end_stream(
        self, request: RunRequest, *, ts: str, chunks: Sequence[Chunk] = ()
    ) -> None:
        """Makes a stream a message like any other, if it is none; `chunks` come last. Raises: SlackFault: nobody knows."""
        arguments = {"channel": request.channel, "ts": ts, "chunks": list(chunks) or None}
        with suppress(SlackRefusal):  # it is one, or the edit that comes next says what is wrong
            await self._api.repeated("chat.stopStream", arguments)

    async def delete(self, request: RunRequest, *, ts: str) -> None:
        """Takes a message away, in one attempt. Raises: SlackFault: it may still stand."""
        await self._api.once("chat.delete", {"channel": request.channel, "ts": ts}, is_urgent=False)

    async def share(
        self, request: RunRequest, files: Mapping[str, str], *, maybe_shared: bool
    ) -> None:
        """Shares uploaded files, names by their ids, below the thread's root; `maybe_shared`: looks which ones are there.

        Raises:
            SlackFault: not all are there, or nobody knows.
        """
        fault: SlackFault | None = None
        for _ in range(self._api.policy.attempts):
            if maybe_shared:
                there = await self.files(request)
                files = {one: name for one, name in files.items() if one not in there}
            if not files:
                return
            try:
                await self._api.share(files, channel=request.channel, thread_ts=request.thread_ts)
            except (SlackRefusal, SlackLeaseLost):
                raise
            except SlackFault as exc:
                fault, maybe_shared = exc, True
                await asyncio.sleep(self._look_again_after_s)
            else:
                return
        raise fault or SlackUnreachable("no_attempt")

    async def attach(
        self, request: RunRequest, *, name: str, data: bytes, maybe_shared: bool
    ) -> None:
        """Shares a file of Orion's own below the thread's root; `maybe_shared`: looks whether one of that name is there.

        Raises:
            SlackFault: it is not there, or nobody knows.
            UnreadableFileError: Slack does not take it.
        """
        if maybe_shared and name in (await self.files(request)).values():
            return
        file_id = await self._uploads.upload(name, data)
        await self.share(request, {file_id: name}, maybe_shared=False)

    async def files(self, request: RunRequest) -> Mapping[str, str]:
        """Returns the files in the thread since the run's message, names by their ids. Raises: SlackFault."""
        return {
            text_of(file, "id"): text_of(file, "name")
            async for message in self._messages(request)
            for file in objects_of(message, "files")
        }

    async def find(self, request: RunRequest) -> Mapping[int, str]:
        """Returns the ts of what stands in the thread of a run, by part numbers; the latest, when a part stands there twice.

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

    async def _messages(self, request: RunRequest) -> AsyncIterator[Mapping[str, Any]]:
        """Yields the thread from the run's message on: nothing of a run is older, however long the thread is."""
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
    """Returns the run and the part that a message of this bot shows, by its metadata; a stream that has none is a part 0."""
    metadata = object_of(message, "metadata")
    if not metadata and "streaming_state" in message:
        return _streamed_part(message)
    if metadata.get("event_type") != EVENT_TYPE:
        return None
    match metadata.get("event_payload"):
        case {"run_id": str(run_id), "part": int(number)}:
            return RunId(run_id), number
        case _:
            return None


def _streamed_part(message: Mapping[str, Any]) -> tuple[RunId, int] | None:
    for block in objects_of(message, "blocks"):
        for task in (block, *objects_of(block, "tasks")):
            if (run_id := text_of(task, "task_id")).startswith(RUN_ID_PREFIX):
                return RunId(run_id), 0
    return None


def next_cursor(page: Mapping[str, Any]) -> str | None:
    """Returns where the next page begins, or None at the end."""
    return text_of(object_of(page, "response_metadata"), "next_cursor") or None


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
