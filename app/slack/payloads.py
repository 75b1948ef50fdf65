"""Slack payload to what Orion does about it: a request, a stop, feedback, or nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from app.runs.intake import RetryWish, Revision
from app.runs.model import RunId, RunRequest, Surface, Thread, run_id_for
from app.slack.shapes import TS, is_id
from app.slack.text import is_stop, mentions, readable

STOP_ACTION: Final = "orion_stop"
FEEDBACK_ACTION: Final = "orion_feedback"
RETRY_ACTION: Final = "orion_retry"
LOG_ACTION: Final = "orion_show_log"

_ACCEPTED_SUBTYPES: Final = frozenset({"", "file_share", "thread_broadcast", "me_message"})
"""Everything else is a notice. Source: Slack, message event subtypes, read 2026-11."""
_REVISIONS: Final = frozenset({"message_changed", "message_deleted"})
_MAX_FILES: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Ignored:
    """Nothing will happen; the reason is a stable word for the log."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopThread:
    """Whatever goes on in the thread shall stop."""

    thread: Thread
    user: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRun:
    """The Stop button of one run."""

    run_id: RunId
    user: str
    thread: Thread | None
    """Where the button stood; None when the payload does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    run_id: RunId
    user: str
    is_positive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowLog:
    """A person wants to see how a run's log ends."""

    run_id: RunId
    user: str


def envelope_bot_user_id(body: Mapping[str, Any]) -> str:
    """The bot that the event was meant for, by the envelope. Source: Slack, Events API `authorizations`, read 2026-11."""
    user_id = _authorization(body).get("user_id")
    return user_id if isinstance(user_id, str) else ""


def from_event(
    body: Mapping[str, Any], *, bot_user_id: str, received_at: datetime
) -> RunRequest | Revision | StopThread | Ignored:
    """What an `app_mention` or `message` event asks for; both events of one message give the same run id."""
    event = _object(body, "event")
    bot_user_id = bot_user_id or envelope_bot_user_id(body)
    if event.get("type") == "message" and _text(event, "subtype") in _REVISIONS:
        return _revision(body, event, bot_user_id=bot_user_id)
    if reason := _reason_to_ignore(event, bot_user_id=bot_user_id):
        return Ignored(reason=reason)
    thread = _thread(body, event)
    if thread is None:
        return Ignored(reason="incomplete")
    text = readable(_text(event, "text"), bot_user_id=bot_user_id)
    if is_stop(text) and thread.thread_ts != event["ts"]:
        return StopThread(thread=thread, user=event["user"])
    if not _is_addressed(event, bot_user_id=bot_user_id):
        return Ignored(reason="not_addressed")
    file_names = _file_names(event)
    return RunRequest(
        run_id=run_id_for(team=thread.team, channel=thread.channel, message_ts=event["ts"]),
        team=thread.team,
        channel=thread.channel,
        thread_ts=thread.thread_ts,
        message_ts=event["ts"],
        user=event["user"],
        text=text,
        surface=_surface(event),
        file_names=file_names,
        is_external=_is_external(body, event),
        event_id=_text(body, "event_id"),
        received_at=received_at,
    )


def _revision(
    body: Mapping[str, Any], event: Mapping[str, Any], *, bot_user_id: str
) -> Revision | Ignored:
    """An edit or a deletion. A deleted message with replies is not deleted, but becomes a `tombstone`.

    Source: Slack, `message_changed`, `message_deleted` and `tombstone`, read 2026-11. Unfurled links are a `message_changed`
    too, and so is each of Orion's own edits.
    """
    before, after = _object(event, "previous_message"), _object(event, "message")
    team, channel, user = _team(body), _text(event, "channel"), _text(before, "user")
    is_deleted = (
        _text(event, "subtype") == "message_deleted" or _text(after, "subtype") == "tombstone"
    )
    ts = _text(before, "ts") or _text(event, "deleted_ts")
    if before.get("bot_id") or after.get("bot_id") or user == bot_user_id:
        return Ignored(reason="own_message")
    if not (is_id(team) and is_id(channel) and is_id(user) and TS.fullmatch(ts)):
        return Ignored(reason="incomplete")
    text = readable(_text(after, "text"), bot_user_id=bot_user_id)
    before_text = readable(_text(before, "text"), bot_user_id=bot_user_id)
    if not is_deleted and text in ("", before_text):  # a question cannot become no question
        return Ignored(reason="unchanged")
    return Revision(
        run_id=run_id_for(team=team, channel=channel, message_ts=ts),
        user=user,
        text=None if is_deleted else text,
    )


def from_action(body: Mapping[str, Any]) -> StopRun | RetryWish | ShowLog | Feedback | Ignored:
    """What a pressed button asks for."""
    actions = body.get("actions")
    action = actions[0] if isinstance(actions, list) and actions else None
    user = _text(_object(body, "user"), "id")
    if not isinstance(action, dict) or not is_id(user):
        return Ignored(reason="incomplete")
    value = _text(action, "value")
    action_id = _text(action, "action_id")
    if action_id == STOP_ACTION and is_id(value):
        return StopRun(run_id=RunId(value), user=user, thread=_action_thread(body))
    if action_id == LOG_ACTION and is_id(value):
        return ShowLog(run_id=RunId(value), user=user)
    press = _text(action, "action_ts")
    if action_id == RETRY_ACTION and is_id(value) and press:
        return RetryWish(
            run_id=RunId(value),
            user=user,
            press=press,
            is_external=_text(_object(body, "user"), "team_id")
            != _text(_object(body, "team"), "id"),
        )
    verdict, _, run_id = value.partition(":")
    if action_id == FEEDBACK_ACTION and verdict in ("up", "down") and is_id(run_id):
        return Feedback(run_id=RunId(run_id), user=user, is_positive=verdict == "up")
    is_ours = action_id in (STOP_ACTION, RETRY_ACTION, LOG_ACTION, FEEDBACK_ACTION)
    return Ignored(reason="incomplete" if is_ours else "unknown_action")


def session_stopped(body: Mapping[str, Any]) -> StopThread | Ignored:
    """Slack's own Stop. Source: Slack, `agent_session_stopped` event, read 2026-11."""
    event = _object(body, "event")
    team, channel = _team(body), _text(event, "channel")
    thread_ts, user = _text(event, "thread_ts"), _text(event, "user")
    if not (is_id(team) and is_id(channel) and is_id(user) and TS.fullmatch(thread_ts)):
        return Ignored(reason="incomplete")
    return StopThread(thread=Thread(team=team, channel=channel, thread_ts=thread_ts), user=user)


def _reason_to_ignore(event: Mapping[str, Any], *, bot_user_id: str) -> str | None:
    user = event.get("user")
    if event.get("type") not in ("app_mention", "message"):
        return "other_event"
    # Posts of modern bots carry no subtype. Source: Slack, message event, `bot_id`, read 2026-11.
    if event.get("bot_id"):
        return "own_message" if user == bot_user_id else "bot"
    if _text(event, "subtype") not in _ACCEPTED_SUBTYPES:
        return "subtype"
    if not is_id(user):
        return "no_user"
    if user == bot_user_id:
        return "own_message"
    return "slackbot" if user == "USLACKBOT" else None


def _is_addressed(event: Mapping[str, Any], *, bot_user_id: str) -> bool:
    return (
        event.get("type") == "app_mention"
        or _surface(event) is Surface.DM
        or mentions(_text(event, "text"), user_id=bot_user_id)
    )


def _thread(body: Mapping[str, Any], event: Mapping[str, Any]) -> Thread | None:
    team, channel, ts = _team(body), _text(event, "channel"), _text(event, "ts")
    thread_ts = _text(event, "thread_ts") or ts
    if not (is_id(team) and is_id(channel) and TS.fullmatch(ts) and TS.fullmatch(thread_ts)):
        return None
    return Thread(team=team, channel=channel, thread_ts=thread_ts)


def _surface(event: Mapping[str, Any]) -> Surface:
    # `app_mention` carries no channel type. Source: Slack, ids of direct messages start with D, read 2026-11.
    is_dm = event.get("channel_type") == "im" or _text(event, "channel").startswith("D")
    return Surface.DM if is_dm else Surface.CHANNEL


def _is_external(body: Mapping[str, Any], event: Mapping[str, Any]) -> bool:
    """In a shared channel an author whose company is unknown counts as external."""
    if body.get("is_ext_shared_channel") is not True:
        return False
    authorization = _authorization(body)
    ours = {
        *(_text(authorization, "team_id"), _text(authorization, "enterprise_id")),
        *(_team(body), _text(body, "enterprise_id") if not authorization else ""),
    } - {""}
    theirs = {_text(event, "user_team"), _text(event, "source_team")} - {""}
    theirs = theirs or {_text(event, "team")} - {""}
    return not theirs or not theirs <= ours


def _team(body: Mapping[str, Any]) -> str:
    """In shared channels only the authorization names the workspace the app is installed in."""
    return _text(_authorization(body), "team_id") or _text(body, "team_id")


def _authorization(body: Mapping[str, Any]) -> Mapping[str, Any]:
    authorizations = body.get("authorizations")
    if isinstance(authorizations, list) and authorizations and isinstance(authorizations[0], dict):
        return authorizations[0]
    return {}


def _action_thread(body: Mapping[str, Any]) -> Thread | None:
    container, message = _object(body, "container"), _object(body, "message")
    team = _text(_object(body, "team"), "id") or _text(_object(body, "user"), "team_id")
    channel = _text(_object(body, "channel"), "id") or _text(container, "channel_id")
    thread_ts = (
        _text(container, "thread_ts")
        or _text(message, "thread_ts")
        or _text(container, "message_ts")
    )
    if not (is_id(team) and is_id(channel) and TS.fullmatch(thread_ts)):
        return None
    return Thread(team=team, channel=channel, thread_ts=thread_ts)


def _file_names(event: Mapping[str, Any]) -> tuple[str, ...]:
    files = event.get("files")
    entries = [file for file in files if isinstance(file, dict)] if isinstance(files, list) else []
    names = (_text(file, "name") or _text(file, "title") or _text(file, "id") for file in entries)
    return tuple(name.replace("\x00", "") for name in names if name)[:_MAX_FILES]


def _object(carrier: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = carrier.get(name)
    return value if isinstance(value, dict) else {}


def _text(carrier: Mapping[str, Any], name: str) -> str:
    value = carrier.get(name)
    return value if isinstance(value, str) else ""
