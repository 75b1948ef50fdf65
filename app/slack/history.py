"""The ThreadReader over Slack's Web API."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from app.log import get_logger
from app.runs.model import Thread, ThreadMessage, slack_microseconds
from app.slack.api import BotIdentity, SlackApi, SlackFault, within
from app.slack.markdown import readable
from app.slack.messages import next_cursor, own_part
from app.slack.payloads import object_of, text_of

READ_TIMEOUT_S: Final = 10.0
"""Besides the time in line for Slack's limits."""
NAME_TIMEOUT_S: Final = 2.0
PAGE_SIZE: Final = 200
"""Source: Slack Web API, conversations.replies, recommended maximum, read 2026-11."""
MAX_PAGES: Final = 8
_LONG_THREAD: Final = PAGE_SIZE * (MAX_PAGES - 1)
_WINDOWS_S: Final = (3_600, 86_400, 7 * 86_400, 30 * 86_400)
"""Looked at in turn for the newest messages of a thread too long to read."""
_ENOUGH_MESSAGES: Final = 100
_MAX_NAME_LOOKUPS: Final = 20
_MAX_NAMES: Final = 5_000
_KEPT_SUBTYPES: Final = frozenset(
    {"", "file_share", "thread_broadcast", "me_message", "bot_message"}
)
"""The rest are notices. Source: Slack, message event subtypes, read 2026-11."""


class SlackThreadReader:
    """Implements ThreadReader; remembers people's names."""

    def __init__(self, api: SlackApi, *, identity: Callable[[], BotIdentity | None]) -> None:
        self._api = api
        self._identity = identity
        self._names: dict[str, str] = {}
        self._log = get_logger(__name__)

    async def read(self, thread: Thread, *, before_ts: str) -> Sequence[ThreadMessage]:
        collected: dict[str, Mapping[str, Any]] = {}
        try:
            async with within(READ_TIMEOUT_S + self._api.limits.line_s("conversations.replies")):
                await self._collect(thread, before_ts, collected)
                await self._learn_names(collected.values())
        except SlackFault as exc:
            # What was read until then still serves.
            self._log.warning("slack.history_failed", thread=thread.key, error=exc.word)
        before = slack_microseconds(before_ts)
        older = sorted(
            (ts for ts in collected if slack_microseconds(ts) < before), key=slack_microseconds
        )
        return tuple(self._message(collected[ts], ts) for ts in older)

    async def name_of(self, user: str) -> str:
        try:
            async with within(NAME_TIMEOUT_S):
                await self._learn_names([{"user": user}])
        except SlackFault:
            self._log.info("slack.name_unknown", user=user)
        return self._names.get(user, user)

    async def _collect(
        self, thread: Thread, before_ts: str, collected: dict[str, Mapping[str, Any]]
    ) -> None:
        first = await self._page(thread, before_ts, collected)
        cursor = next_cursor(first)
        pages = 1
        if cursor and _reply_count(first) > _LONG_THREAD:
            await self._collect_newest(thread, before_ts, collected)
            return
        while cursor and pages < MAX_PAGES:
            cursor = next_cursor(await self._page(thread, before_ts, collected, cursor=cursor))
            pages += 1

    async def _collect_newest(
        self, thread: Thread, before_ts: str, collected: dict[str, Mapping[str, Any]]
    ) -> None:
        """Asks for the newest by time: Slack lists the oldest first."""
        pages = 1
        for window_s in _WINDOWS_S:
            oldest = f"{max(int(before_ts.partition('.')[0]) - window_s, 0)}.000000"
            cursor: str | None = None
            count = len(collected)
            while pages < MAX_PAGES:
                page = await self._page(thread, before_ts, collected, oldest=oldest, cursor=cursor)
                pages += 1
                cursor = next_cursor(page)
                if not cursor:
                    break
            if pages >= MAX_PAGES or len(collected) - count >= _ENOUGH_MESSAGES:
                return

    async def _page(
        self,
        thread: Thread,
        before_ts: str,
        collected: dict[str, Mapping[str, Any]],
        *,
        oldest: str | None = None,
        cursor: str | None = None,
    ) -> Mapping[str, Any]:
        page = await self._api.repeated(
            "conversations.replies",
            {
                "channel": thread.channel,
                "ts": thread.thread_ts,
                "latest": before_ts,
                "oldest": oldest,
                "limit": PAGE_SIZE,
                "include_all_metadata": "true",
                "cursor": cursor,
            },
            verb="GET",
        )
        messages = page.get("messages")
        for message in messages if isinstance(messages, list) else []:
            ts = message.get("ts")
            if isinstance(ts, str) and text_of(message, "subtype") in _KEPT_SUBTYPES:
                collected[ts] = message
        return page

    async def _learn_names(self, messages: Iterable[Mapping[str, Any]]) -> None:
        users = {message.get("user") for message in messages if not message.get("bot_id")}
        unknown = [user for user in users if isinstance(user, str) and user not in self._names]
        for user in sorted(unknown)[:_MAX_NAME_LOOKUPS]:
            try:
                response = await self._api.once("users.info", {"user": user}, verb="GET")
            except SlackFault:
                # People of other companies cannot be looked up; their id will do.
                continue
            if len(self._names) >= _MAX_NAMES:
                self._names.clear()
            self._names[user] = _name(object_of(response, "user")) or user

    def _message(self, message: Mapping[str, Any], ts: str) -> ThreadMessage:
        identity = self._identity()
        own = own_part(message)
        user, bot_id = text_of(message, "user"), text_of(message, "bot_id")
        is_own = identity is not None and (
            user == identity.bot_user_id or (bot_id != "" and bot_id == identity.bot_id)
        )
        is_person = not bot_id and not is_own
        return ThreadMessage(
            ts=ts,
            user=user if is_person else "",
            author_name=self._names.get(user, user) if is_person else _bot_name(message),
            text=readable(
                _markdown_of(message) or text_of(message, "text"),
                bot_user_id=identity.bot_user_id if identity else "",
            ),
            is_own=is_own,
            run_id=own[0] if own and is_own else None,
            part=own[1] if own and is_own else 0,
        )


def _reply_count(page: Mapping[str, Any]) -> int:
    messages = page.get("messages")
    root = messages[0] if isinstance(messages, list) and messages else {}
    count = root.get("reply_count")
    return count if isinstance(count, int) else 0


def _markdown_of(message: Mapping[str, Any]) -> str:
    """Returns the whole text of a post whose `text` is only a short form of its blocks."""
    blocks = message.get("blocks")
    texts = [
        text_of(block, "text")
        for block in (blocks if isinstance(blocks, list) else [])
        if isinstance(block, dict) and block.get("type") == "markdown"
    ]
    return "\n\n".join(text for text in texts if text)


def _name(user: Mapping[str, Any]) -> str:
    profile = object_of(user, "profile")
    return text_of(profile, "display_name") or text_of(user, "real_name") or text_of(user, "name")


def _bot_name(message: Mapping[str, Any]) -> str:
    return text_of(object_of(message, "bot_profile"), "name") or text_of(message, "username")
