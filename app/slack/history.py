"""The ThreadReader over Slack's Web API."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from app.log import get_logger
from app.runs.history import ThreadView
from app.runs.model import ThreadMessage
from app.runs.request import (
    NO_CONTENT,
    MessageContent,
    RunRequest,
    Surface,
    bare_word,
    slack_microseconds,
)
from app.slack.api import BotIdentity, SlackApi, SlackFault, SlackRefusal, within
from app.slack.content import content_of, is_repeated
from app.slack.fields import object_of, text_of
from app.slack.markdown import readable
from app.slack.messages import next_cursor, own_part

READ_TIMEOUT_S: Final = 10.0
"""Besides the time in line for Slack's limits."""
NAMES_TIMEOUT_S: Final = 2.0
PAGE_SIZE: Final = 200
"""Source: Slack Web API, conversations.replies, recommended maximum, read 2026-11."""
MAX_PAGES: Final = 8
_LONG_THREAD: Final = PAGE_SIZE * (MAX_PAGES - 1)
_WINDOWS_S: Final = (3_600, 86_400, 7 * 86_400, 30 * 86_400)
"""Looked at in turn for the newest messages of a thread too long to read."""
_ENOUGH_MESSAGES: Final = 100
SHORT_READ_S, SHORT_LINE_S = 2.0, 0.5
"""What the reading of a message without history may take, and wait for its turn: most likely its events have told all of it."""
_NAMED: Final = re.compile(r"(?<![\w.])[@#]([UWCG][A-Z0-9]{4,})(?![A-Z0-9])", re.ASCII)
"""What `readable` makes of Slack's tokens for people and channels; other scripts put no space before or behind one. Source: Slack, ids, read 2026-11."""
_CHANNEL_SIGNS: Final = ("C", "G")
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
        """Of people and channels, by their ids."""
        self._log = get_logger(__name__)

    async def read(self, request: RunRequest) -> ThreadView:
        collected: dict[str, Mapping[str, Any]] = {}
        line_s, is_cut = self._line_s, False
        # Without its own name it would take its own messages for another app's.
        is_known = not request.is_candidate or self._identity() is not None
        if is_known and _is_worth_reading(request, line_s=line_s):
            fault = await self._try_collect(request, collected)
            if fault is not None and self._line_s > line_s and not request.is_root:
                # It came to Slack's limits on the way, and waits for its turn once more.
                fault = await self._try_collect(request, collected)
            is_cut = fault is not None and not isinstance(fault, SlackRefusal)
        own = collected.pop(request.message_ts, None)
        content = content_of(own) if own else NO_CONTENT
        others = (shared for one in collected.values() for shared in content_of(one).shared)
        texts = [request.text, *request.content.shared, *content.shared, *others]
        await self._learn_names(collected.values(), texts)
        before = slack_microseconds(request.message_ts)
        older = sorted(
            (ts for ts in collected if slack_microseconds(ts) < before), key=slack_microseconds
        )
        named = {
            "text": self._named(request.text),
            "content": self._with_names(request.content).merged(self._with_names(content)),
        }
        return ThreadView(
            request=request.model_copy(update=named),
            messages=tuple(self._message(collected[ts], ts) for ts in older),
            is_cut=is_cut,
        )

    @property
    def _line_s(self) -> float:
        return self._api.limits.line_s("conversations.replies")

    async def _try_collect(
        self, request: RunRequest, collected: dict[str, Mapping[str, Any]]
    ) -> SlackFault | None:
        """Returns why it is not whole; None: it is. What was read until then still serves, but not to say who has written here."""
        try:
            async with within(SHORT_READ_S if request.is_root else READ_TIMEOUT_S + self._line_s):
                await self._collect(request, collected)
        except SlackFault as exc:
            self._log.warning("slack.history_failed", thread=request.thread.key, error=exc.word)
            if request.is_candidate:
                collected.clear()
            return exc
        return None

    async def stands(self, request: RunRequest) -> bool:
        collected: dict[str, Mapping[str, Any]] = {}
        try:
            async with within(READ_TIMEOUT_S):
                await self._page(request, collected, oldest=request.message_ts)
        except SlackFault as exc:
            return exc.word != "thread_not_found"
        return request.message_ts in collected

    async def name_of(self, user: str) -> str:
        await self._learn_names([{"user": user}], [])
        return self._names.get(user, user)

    async def _collect(self, request: RunRequest, collected: dict[str, Mapping[str, Any]]) -> None:
        first = await self._page(request, collected)
        cursor = next_cursor(first)
        pages = 1
        if cursor and _reply_count(first) > _LONG_THREAD:
            await self._collect_newest(request, collected)
            return
        while cursor and pages < MAX_PAGES:
            cursor = next_cursor(await self._page(request, collected, cursor=cursor))
            pages += 1

    async def _collect_newest(
        self, request: RunRequest, collected: dict[str, Mapping[str, Any]]
    ) -> None:
        """Asks for the newest by time: Slack lists the oldest first."""
        pages, before_ts = 1, request.message_ts
        for window_s in _WINDOWS_S:
            oldest = f"{max(int(before_ts.partition('.')[0]) - window_s, 0)}.000000"
            cursor: str | None = None
            count = len(collected)
            while pages < MAX_PAGES:
                page = await self._page(request, collected, oldest=oldest, cursor=cursor)
                pages += 1
                cursor = next_cursor(page)
                if not cursor:
                    break
            if pages >= MAX_PAGES or len(collected) - count >= _ENOUGH_MESSAGES:
                return

    async def _page(
        self,
        request: RunRequest,
        collected: dict[str, Mapping[str, Any]],
        *,
        oldest: str | None = None,
        cursor: str | None = None,
    ) -> Mapping[str, Any]:
        page = await self._api.repeated(
            "conversations.replies",
            {
                "channel": request.channel,
                "ts": request.thread_ts,
                "latest": request.message_ts,
                "inclusive": "true",
                "oldest": oldest,
                "limit": PAGE_SIZE,
                "include_all_metadata": "true",
                "cursor": cursor,
            },
            verb="GET",
            is_urgent=not request.is_candidate,
        )
        messages = page.get("messages")
        for message in messages if isinstance(messages, list) else []:
            ts = message.get("ts")
            if isinstance(ts, str) and text_of(message, "subtype") in _KEPT_SUBTYPES:
                collected[ts] = message
        return page

    async def _learn_names(
        self, messages: Iterable[Mapping[str, Any]], texts: Iterable[str]
    ) -> None:
        """Asks for what it does not know yet of people and channels: of who wrote, and of who and what is named."""
        wrote = [text_of(message, "user") for message in messages if not message.get("bot_id")]
        said = [*texts, *(text_of(message, "text") for message in messages)]
        named = [found for text in said for found in _NAMED.findall(text)]
        asked = dict.fromkeys((*wrote, *named))
        unknown = [one for one in asked if one and one not in self._names]
        try:
            async with within(NAMES_TIMEOUT_S):
                for one in unknown[:_MAX_NAME_LOOKUPS]:
                    name = await self._ask_name(one)
                    if len(self._names) >= _MAX_NAMES:
                        self._names.clear()
                    self._names[one] = name
        except SlackFault as exc:
            self._log.info("slack.names_unknown", count=len(unknown), error=exc.word)

    async def _ask_name(self, one: str) -> str:
        """Returns the name of a person or a channel; their id where Slack tells none, as of people of other companies, and of private channels."""
        is_channel = one.startswith(_CHANNEL_SIGNS)
        method = "conversations.info" if is_channel else "users.info"
        key = "channel" if is_channel else "user"
        try:
            response = await self._api.once(method, {key: one}, verb="GET")
        except SlackRefusal:
            return one
        found = object_of(response, key)
        if found.get("is_private"):  # whoever reads this may not be in it
            return one
        return (text_of(found, "name") if is_channel else _name(found)) or one

    def _named(self, text: str) -> str:
        """Returns a text with names in place of the ids of people and channels."""

        def name(found: re.Match[str]) -> str:
            return found.group(0)[0] + self._names.get(found.group(1), found.group(1))

        return _NAMED.sub(name, text)

    def _with_names(self, content: MessageContent) -> MessageContent:
        shared = tuple(map(self._named, content.shared))
        return content.model_copy(update={"shared": shared})

    def _message(self, message: Mapping[str, Any], ts: str) -> ThreadMessage:
        identity = self._identity()
        own = own_part(message)
        user, bot_id = text_of(message, "user"), text_of(message, "bot_id")
        text, content = self._said(message)
        is_own = identity is not None and (
            user == identity.bot_user_id or (bot_id != "" and bot_id == identity.bot_id)
        )
        is_person = not bot_id and not is_own
        if is_person and bare_word(text):
            text = ""  # `stop`, `mute`: said to Orion itself, and no part of a conversation
        return ThreadMessage(
            ts=ts,
            user=user if is_person else "",
            author_name=self._names.get(user, user) if is_person else _bot_name(message),
            text=(_markdown_of(message) or text) if is_own else text,
            content=NO_CONTENT if is_own else self._with_names(content),
            is_own=is_own,
            run_id=own[0] if own and is_own else None,
            part=own[1] if own and is_own else 0,
        )

    def _said(self, message: Mapping[str, Any]) -> tuple[str, MessageContent]:
        """Returns a message's text, without what its blocks say too where it is an app's, and what came with it."""
        identity = self._identity()
        text = readable(
            text_of(message, "text"), bot_user_id=identity.bot_user_id if identity else ""
        )
        content = content_of(message)
        is_short_form = bool(message.get("bot_id")) and is_repeated(text, content.shared)
        return "" if is_short_form else self._named(text), content


def _is_worth_reading(request: RunRequest, *, line_s: float) -> bool:
    """Whether there is a history, or an event may have lacked something: of a mention there are two, of a direct message one."""
    if not request.is_root:
        return True
    return request.surface is not Surface.DM and line_s <= SHORT_LINE_S


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
