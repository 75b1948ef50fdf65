"""Reads what was said in the places where the bot is, as the events that Slack would have sent; never before what live work asks of Slack."""

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from app.log import get_logger
from app.runs.request import RunId, slack_time
from app.slack.api import BotIdentity, SlackApi, SlackRefusal
from app.slack.fields import object_of, text_of
from app.slack.messages import next_cursor, own_part

PAGE_SIZE: Final = 200
"""Source: Slack Web API, conversations.history, conversations.replies and users.conversations, recommended maximum, read 2026-11."""
SMALL_PAGE: Final = 15
"""All that some apps are given, once a minute. Source: Slack Web API rate limits, conversations.history of commercially distributed apps, read 2026-11."""
MAX_PAGES: Final = 10
"""Of one place or thread: 2,000 messages. What is older is left, and told as cut."""
MAX_LISTS: Final = 50
"""Of one kind of places: 10,000 places."""
KINDS: Final[Mapping[str, str]] = {
    "im": "im",
    "mpim": "mpim",
    "private_channel": "group",
    "public_channel": "channel",
}
"""Of places, as they are listed, and as events name them. Source: Slack, users.conversations `types`, message event `channel_type`, read 2026-11."""
_OF_APP: Final = frozenset(
    {
        *("not_authed", "invalid_auth", "account_inactive", "token_revoked", "token_expired"),
        *("org_login_required", "ekm_access_denied", "team_added_to_org", "accesslimited"),
        *("enterprise_is_restricted", "team_access_not_granted", "two_factor_setup_required"),
        "not_allowed_token_type",
    }
)
"""Refusals that say that Orion can read nothing; all others are of one place. Source: Slack Web API, conversations.history, errors, read 2026-11."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    channel: str
    kind: str
    """`channel_type` of its events."""
    is_shared: bool = False
    """With another company."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What was said in a place."""

    events: tuple[Mapping[str, Any], ...] = ()
    """As the bodies of events; in no order."""
    answered: frozenset[RunId] = frozenset()
    """Whose answers, or thinking messages, stand there."""
    is_cut: bool = False
    """There is more, which is not read."""


class UnreadablePlaceError(Exception):
    """The bot may not read it, or not any more; the message is Slack's word."""


class UnheardReader:
    def __init__(self, api: SlackApi, *, identity: Callable[[], BotIdentity | None]) -> None:
        self._api = api
        self._identity = identity
        self._has_told = False
        """That it is given small pages, which is logged once."""
        self._log = get_logger(__name__)

    async def probe(self) -> None:
        """Returns if Slack answers. Raises: SlackFault: it does not."""
        await self._api.once("auth.test", {})

    async def places(self) -> Sequence[Place]:
        """Returns where the bot is a member, direct messages first; without the kinds that its scopes leave out, of which the start tells.

        Raises:
            SlackFault: they cannot be listed now.
        """
        found: dict[str, Place] = {}
        for kind in KINDS:
            try:
                for one in await self._list(kind):
                    place = _place(one, kind)
                    found[place.channel] = place
            except SlackRefusal as exc:
                if exc.word != "missing_scope":
                    raise
        return list(found.values())

    async def read(
        self, place: Place, *, after: datetime, threads: Collection[str], limit_s: float
    ) -> Found:
        """Returns what was said after this moment, in threads too: those whose roots are listed, and the given ones.

        No page is asked for after `limit_s`, so that it takes one page longer at most. The newest are read first, for half of that;
        then the given threads, then the others. Where a later page is refused, what was read counts, as cut.

        Raises:
            UnreadablePlaceError
            SlackFault: it cannot be read now.
        """
        try:
            return await self._read(place, after=after, threads=threads, limit_s=limit_s)
        except SlackRefusal as exc:
            if exc.word in _OF_APP:
                raise
            raise UnreadablePlaceError(exc.word) from exc

    async def _read(
        self, place: Place, *, after: datetime, threads: Collection[str], limit_s: float
    ) -> Found:
        now_s = asyncio.get_running_loop().time()
        listed, is_cut = await self._history(place, after, until_s=now_s + limit_s / 2)
        until_s, earliest = now_s + limit_s, min(listed, default="")
        roots = [ts for ts, message in listed.items() if _has_reply(message, after)]
        # Threads that began earlier are not listed, however new their replies are.
        older = [ts for ts in threads if not listed or slack_time(ts) < slack_time(earliest)]
        said = dict(listed)
        for root in sorted((*roots, *older), key=lambda ts: ts not in threads):
            replies, has_more = await self._replies(place, root, after, until_s=until_s)
            said |= replies
            is_cut |= has_more
        new = [message for ts, message in said.items() if slack_time(ts) > after]
        owns = (own_part(message) for message in said.values() if self._is_own(message))
        return Found(
            events=tuple(self._event(place, message) for message in new),
            answered=frozenset(own[0] for own in owns if own is not None),
            is_cut=is_cut,
        )

    async def _list(self, kind: str) -> Sequence[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = []
        cursor: str | None = None
        for _ in range(MAX_LISTS):
            arguments = {"types": kind, "exclude_archived": "true", "cursor": cursor}
            page = await self._page("users.conversations", arguments)
            found += [one for one in _objects(page, "channels") if text_of(one, "id")]
            cursor = next_cursor(page)
            if cursor is None:
                break
        return found

    async def _history(
        self, place: Place, after: datetime, *, until_s: float
    ) -> tuple[dict[str, Mapping[str, Any]], bool]:
        """Returns the newest messages by their ts, back to that moment and a little further; and whether there are more.

        The first page goes further back in any case: for replies to what was said before.
        """
        found: dict[str, Mapping[str, Any]] = {}
        cursor: str | None = None
        for _ in _pages(until_s):
            arguments = {"channel": place.channel, "cursor": cursor}
            try:
                page = await self._page("conversations.history", arguments)
            except SlackRefusal as exc:
                if exc.word in _OF_APP or not found:
                    raise
                return found, True
            messages = _by_ts(page)
            found |= messages
            cursor = next_cursor(page)
            if cursor and len(messages) <= SMALL_PAGE:
                self._tell_small_pages()
            if cursor is None or any(slack_time(ts) <= after for ts in messages):
                return found, False
        return found, True

    async def _replies(
        self, place: Place, root: str, after: datetime, *, until_s: float
    ) -> tuple[dict[str, Mapping[str, Any]], bool]:
        """Returns a thread's messages since that moment by their ts, and whether there are more; a thread that is gone has none."""
        found: dict[str, Mapping[str, Any]] = {}
        cursor: str | None = None
        oldest = f"{after.timestamp():.6f}"
        for _ in _pages(until_s):
            arguments = {"channel": place.channel, "ts": root, "oldest": oldest, "cursor": cursor}
            try:
                page = await self._page("conversations.replies", arguments)
            except SlackRefusal as exc:
                if exc.word in _OF_APP:
                    raise
                return found, exc.word != "thread_not_found"
            found |= _by_ts(page)
            cursor = next_cursor(page)
            if cursor is None:
                return found, False
        return found, True

    async def _page(self, method: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        return await self._api.repeated(
            method,
            {"limit": PAGE_SIZE, "include_all_metadata": "true", **arguments},
            verb="GET",
            is_urgent=False,
        )

    def _event(self, place: Place, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """Source: Slack, Events API, callback field and `message` event, read 2026-11."""
        identity = self._identity()
        team_id, user_id = (identity.team_id, identity.bot_user_id) if identity else ("", "")
        return {
            "type": "event_callback",
            "team_id": team_id,
            "is_ext_shared_channel": place.is_shared,
            "authorizations": [{"team_id": team_id, "user_id": user_id, "is_bot": True}],
            "event": {
                **message,
                "type": "message",
                "channel": place.channel,
                "channel_type": place.kind,
            },
        }

    def _is_own(self, message: Mapping[str, Any]) -> bool:
        identity = self._identity()
        return identity is not None and text_of(message, "user") == identity.bot_user_id

    def _tell_small_pages(self) -> None:
        if not self._has_told:
            self._has_told = True
            self._log.warning("catch_up.limited", error="small_pages")


def _pages(until_s: float) -> Iterator[int]:
    """Counts pages that may still be asked for, up to this moment of the loop's clock."""
    for number in range(MAX_PAGES):
        if asyncio.get_running_loop().time() >= until_s:
            return
        yield number


def _place(listed: Mapping[str, Any], kind: str) -> Place:
    is_shared = bool(listed.get("is_ext_shared"))
    return Place(channel=text_of(listed, "id"), kind=KINDS[kind], is_shared=is_shared)


def _objects(page: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    entries = page.get(name)
    return [one for one in entries if isinstance(one, dict)] if isinstance(entries, list) else []


def _by_ts(page: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {ts: one for one in _objects(page, "messages") if (ts := text_of(one, "ts"))}


def _has_reply(message: Mapping[str, Any], after: datetime) -> bool:
    """Source: Slack Web API, conversations.history, `latest_reply` of a thread's root, read 2026-11."""
    return slack_time(text_of(message, "latest_reply")) > after


def is_edited(body: Mapping[str, Any]) -> bool:
    """Whether the message of an event was edited."""
    return bool(object_of(object_of(body, "event"), "edited"))
