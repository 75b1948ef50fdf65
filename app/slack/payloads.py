"""Slack event to what Orion does about it: a request, an edit, a stop, or nothing."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from app.runs.intake import Revision
from app.runs.request import Addressing, RunRequest, Surface, Thread, bare_word, run_id_for
from app.slack.content import content_of
from app.slack.fields import object_of, text_of
from app.slack.markdown import mentions, mentions_anybody, readable
from app.slack.signature import TS, is_id

_ACCEPTED_SUBTYPES: Final = frozenset({"", "file_share", "thread_broadcast", "me_message"})
"""Everything else is a notice. Source: Slack, message event subtypes, read 2026-11."""
STOP_REACTION: Final = "x"
"""Slack's name of ❌."""
_REVISIONS: Final = frozenset({"message_changed", "message_deleted"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Ignored:
    """Nothing will happen; the reason is a stable word for the log."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopThread:
    """Whatever goes on in the thread shall stop."""

    thread: Thread
    user: str
    ts: str
    """Of the message, or of the click of Slack's own Stop."""
    is_external: bool = False
    """By somebody of another company."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MuteThread:
    """Replies in the thread that do not mention Orion shall not be answered from now on, or shall be again."""

    thread: Thread
    user: str
    ts: str
    """Of the message that says so."""
    is_muted: bool
    has_mention: bool
    """It mentions Orion, so that it is for Orion in whatever thread it is."""
    is_external: bool = False
    """By somebody of another company."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopDirectMessages:
    """Whatever goes on in a direct message shall stop, in all of its threads."""

    team: str
    channel: str
    user: str
    ts: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopShown:
    """The run whose thinking message that is shall stop."""

    team: str
    channel: str
    user: str
    ts: str
    """Of the message."""
    is_shared: bool = False
    """The channel is, with another company: whose person that is Slack does not tell."""


def envelope_bot_user_id(body: Mapping[str, Any]) -> str:
    """Returns the bot that the event was meant for, by the envelope. Source: Slack, Events API `authorizations`, read 2026-11."""
    return text_of(_authorization(body), "user_id")


def from_event(
    body: Mapping[str, Any],
    *,
    bot_user_id: str,
    received_at: datetime,
    allowed_bots: Collection[str] = frozenset(),
) -> RunRequest | Revision | StopThread | StopDirectMessages | MuteThread | Ignored:
    """Returns what an `app_mention` or `message` event asks for; both events of one message give the same run id.

    A person's reply in a thread of a channel that mentions nobody is a request, too: a candidate, of which others decide.
    `allowed_bots`: ids of other apps, their bots or their users, whose posts may ask.
    """
    event = object_of(body, "event")
    bot_user_id = bot_user_id or envelope_bot_user_id(body)
    if event.get("type") == "message" and text_of(event, "subtype") in _REVISIONS:
        return _revision(body, event, bot_user_id=bot_user_id)
    if reason := _reason_to_ignore(event, bot_user_id, allowed_bots):
        return Ignored(reason=reason)
    thread = _thread(body, event)
    if thread is None:
        return Ignored(reason="incomplete")
    text = readable(text_of(event, "text"), bot_user_id=bot_user_id)
    addressing = _addressing(event, bot_user_id=bot_user_id)
    is_external = _is_external(body, event)
    if word := bare_word(text):
        command = _command(word, event, thread, addressing, is_external=is_external)
        if command is not None:
            return command
    if addressing is Addressing.OTHERS or (
        addressing is Addressing.NONE and not _may_follow(event)
    ):
        return Ignored(reason="not_addressed")
    return RunRequest(
        run_id=run_id_for(team=thread.team, channel=thread.channel, message_ts=event["ts"]),
        team=thread.team,
        channel=thread.channel,
        thread_ts=thread.thread_ts,
        message_ts=event["ts"],
        user=_author(event),
        text=text,
        surface=_surface(event),
        content=content_of(event),
        is_external=is_external,
        is_bot=bool(event.get("bot_id")),
        addressing=addressing,
        event_id=text_of(body, "event_id"),
        received_at=received_at,
    )


def _command(
    word: str,
    event: Mapping[str, Any],
    thread: Thread,
    addressing: Addressing,
    *,
    is_external: bool,
) -> StopThread | StopDirectMessages | MuteThread | None:
    """Returns what the bare word asks for; None where it is a message like any other: at the top of a channel, or another app's without a mention.

    In a direct message all is for Orion, so that there is nothing to mute, which is told.
    """
    user, ts, is_dm = _author(event), event["ts"], _surface(event) is Surface.DM
    if event.get("bot_id") and addressing is Addressing.NONE:
        return None
    if word == "stop" and thread.thread_ts != ts:
        return StopThread(thread=thread, user=user, ts=ts, is_external=is_external)
    if word == "stop" and is_dm:
        return StopDirectMessages(team=thread.team, channel=thread.channel, user=user, ts=ts)
    if word == "stop" or is_dm or event.get("bot_id") or thread.thread_ts == ts:
        return None
    return MuteThread(
        thread=thread,
        user=user,
        ts=ts,
        is_muted=word == "mute",
        has_mention=addressing is not Addressing.NONE,
        is_external=is_external,
    )


def _revision(
    body: Mapping[str, Any], event: Mapping[str, Any], *, bot_user_id: str
) -> Revision | Ignored:
    """Reads an edit or a deletion. A deleted message with replies is not deleted, but becomes a `tombstone`.

    Source: Slack, `message_changed`, `message_deleted` and `tombstone`, read 2026-11. Unfurled links are a `message_changed`
    too, and so is each of Orion's own edits.
    """
    before, after = object_of(event, "previous_message"), object_of(event, "message")
    team, channel, user = _team(body), text_of(event, "channel"), text_of(before, "user")
    is_deleted = (
        text_of(event, "subtype") == "message_deleted" or text_of(after, "subtype") == "tombstone"
    )
    ts = text_of(before, "ts") or text_of(event, "deleted_ts")
    if before.get("bot_id") or after.get("bot_id") or user == bot_user_id:
        return Ignored(reason="own_message")
    if not (is_id(team) and is_id(channel) and is_id(user) and TS.fullmatch(ts)):
        return Ignored(reason="incomplete")
    text = readable(text_of(after, "text"), bot_user_id=bot_user_id)
    before_text = readable(text_of(before, "text"), bot_user_id=bot_user_id)
    if not is_deleted and text in ("", before_text):  # a question cannot become no question
        return Ignored(reason="unchanged")
    return Revision(
        run_id=run_id_for(team=team, channel=channel, message_ts=ts),
        user=user,
        text=None if is_deleted else text,
        content=content_of(after),
        addressing=_addressing({**after, "channel": channel}, bot_user_id=bot_user_id),
    )


def session_stopped(body: Mapping[str, Any]) -> StopThread | Ignored:
    """Reads Slack's own Stop. Source: Slack, `agent_session_stopped` event, read 2026-11."""
    event = object_of(body, "event")
    team, channel = _team(body), text_of(event, "channel")
    thread_ts, user, ts = (text_of(event, name) for name in ("thread_ts", "user", "event_ts"))
    has_times = TS.fullmatch(thread_ts) and TS.fullmatch(ts)
    if not (is_id(team) and is_id(channel) and is_id(user) and has_times):
        return Ignored(reason="incomplete")
    thread = Thread(team=team, channel=channel, thread_ts=thread_ts)
    return StopThread(thread=thread, user=user, ts=ts)


def asks_nothing(
    body: Mapping[str, Any], *, allowed_bots: Collection[str], follows_up: bool
) -> bool:
    """Whether an envelope is of a message or a reaction about which Orion does nothing, which it tells without a look at anything else.

    `follows_up`: somewhere replies without a mention are answered.
    """
    match object_of(body, "event").get("type"):
        case "app_mention" | "message":
            now = datetime.now(UTC)
            intent: object = from_event(
                body, bot_user_id="", received_at=now, allowed_bots=allowed_bots
            )
        case "reaction_added":
            intent = from_reaction(body, bot_user_id="")
        case _:
            return False
    is_unheard = isinstance(intent, RunRequest) and intent.is_candidate and not follows_up
    return is_unheard or isinstance(intent, Ignored)


def from_reaction(body: Mapping[str, Any], *, bot_user_id: str) -> StopShown | Ignored:
    """Returns what a `reaction_added` event asks for: ❌ on a message of Orion's stops what that message shows.

    Source: Slack, `reaction_added` event, `item` and `item_user`, read 2026-11.
    """
    event, item = object_of(body, "event"), object_of(object_of(body, "event"), "item")
    bot_user_id = bot_user_id or envelope_bot_user_id(body)
    team, user = _team(body), text_of(event, "user")
    channel, ts = text_of(item, "channel"), text_of(item, "ts")
    is_ours = text_of(event, "item_user") == bot_user_id and user != bot_user_id
    if text_of(event, "reaction") != STOP_REACTION or not is_ours:
        return Ignored(reason="reaction")
    if not (is_id(team) and is_id(channel) and is_id(user) and TS.fullmatch(ts)):
        return Ignored(reason="incomplete")
    is_shared = body.get("is_ext_shared_channel") is True
    return StopShown(team=team, channel=channel, user=user, ts=ts, is_shared=is_shared)


def _reason_to_ignore(
    event: Mapping[str, Any], bot_user_id: str, allowed_bots: Collection[str]
) -> str | None:
    user, subtype = _author(event), text_of(event, "subtype")
    if event.get("type") not in ("app_mention", "message"):
        return "other_event"
    if user == bot_user_id:
        return "own_message"
    # Posts of modern bots carry no subtype. Source: Slack, message event, `bot_id`, read 2026-11.
    is_bot = bool(event.get("bot_id"))
    if is_bot and not any(one in allowed_bots for one in _ids_of_bot(event)):
        return "bot"
    if subtype not in _ACCEPTED_SUBTYPES and not (is_bot and subtype == "bot_message"):
        return "subtype"
    if user == "USLACKBOT":
        return "slackbot"
    return None if is_id(user) else "no_user"


def _author(event: Mapping[str, Any]) -> str:
    """Returns the user that wrote it; of an app that has none, its bot."""
    return text_of(event, "user") or text_of(event, "bot_id")


def _ids_of_bot(event: Mapping[str, Any]) -> tuple[str, ...]:
    app = text_of(event, "app_id") or text_of(object_of(event, "bot_profile"), "app_id")
    return (text_of(event, "bot_id"), text_of(event, "user"), app)


def _addressing(event: Mapping[str, Any], *, bot_user_id: str) -> Addressing:
    text = text_of(event, "text")
    if _surface(event) is Surface.DM or mentions(text, user_id=bot_user_id):
        return Addressing.CLEAR
    if event.get("type") == "app_mention":
        return Addressing.EVENT
    return Addressing.OTHERS if mentions_anybody(text) else Addressing.NONE


def _may_follow(event: Mapping[str, Any]) -> bool:
    """Whether a message that mentions nobody may be a follow-up: a person's reply in a thread."""
    return text_of(event, "thread_ts") not in ("", event["ts"]) and not event.get("bot_id")


def _thread(body: Mapping[str, Any], event: Mapping[str, Any]) -> Thread | None:
    team, channel, ts = _team(body), text_of(event, "channel"), text_of(event, "ts")
    thread_ts = text_of(event, "thread_ts") or ts
    if not (is_id(team) and is_id(channel) and TS.fullmatch(ts) and TS.fullmatch(thread_ts)):
        return None
    return Thread(team=team, channel=channel, thread_ts=thread_ts)


def _surface(event: Mapping[str, Any]) -> Surface:
    # `app_mention` carries no channel type. Source: Slack, ids of direct messages start with D, read 2026-11.
    is_dm = event.get("channel_type") == "im" or text_of(event, "channel").startswith("D")
    return Surface.DM if is_dm else Surface.CHANNEL


def _is_external(body: Mapping[str, Any], event: Mapping[str, Any]) -> bool:
    """Whether the author is of another company; in a shared channel also one whose company is unknown."""
    if body.get("is_ext_shared_channel") is not True:
        return False
    authorization = _authorization(body)
    ours = {
        *(text_of(authorization, "team_id"), text_of(authorization, "enterprise_id")),
        *(_team(body), text_of(body, "enterprise_id") if not authorization else ""),
    } - {""}
    theirs = {text_of(event, "user_team"), text_of(event, "source_team")} - {""}
    theirs = theirs or {text_of(event, "team")} - {""}
    return not theirs or not theirs <= ours


def _team(body: Mapping[str, Any]) -> str:
    """Returns the workspace the app is installed in, which in shared channels only the authorization names."""
    return text_of(_authorization(body), "team_id") or text_of(body, "team_id")


def _authorization(body: Mapping[str, Any]) -> Mapping[str, Any]:
    authorizations = body.get("authorizations")
    if isinstance(authorizations, list) and authorizations and isinstance(authorizations[0], dict):
        return authorizations[0]
    return {}
