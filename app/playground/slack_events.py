"""What Slack tells the app about a change: event payloads and their envelope. Pure."""

from app.playground.slack_state import Workspace
from app.playground.slack_types import (
    APP_ID,
    BOT_USER_ID,
    ENTERPRISE_ID,
    TEAM_ID,
    Change,
    Channel,
    JsonObject,
    Message,
    new_id,
)


def events_of(change: Change, workspace: Workspace) -> list[JsonObject]:
    """The events of one change; a mention yields two, `message` first."""
    channel = workspace.channels[change.channel]
    if BOT_USER_ID not in channel.members or change.message is None:
        return []
    if change.kind == "posted":
        return _posted(change.message, channel, workspace)
    if change.kind in {"changed", "deleted"}:
        return [_altered(change, change.message, channel, workspace)]
    return []


def _posted(message: Message, channel: Channel, workspace: Workspace) -> list[JsonObject]:
    """Source: docs.slack.dev, events `message` and `app_mention` (the latter never for direct messages), read 2026-11."""
    event = {
        **workspace.render(message),
        "channel": channel.id,
        "event_ts": message.ts,
    }
    person = workspace.people[message.user]
    if person.team_id != TEAM_ID:
        event |= {"user_team": person.team_id, "source_team": person.team_id}
    events = [{**event, "channel_type": channel.type}]
    mentioned = f"<@{BOT_USER_ID}>" in message.text
    if mentioned and channel.type == "channel" and not message.is_bot:
        mention = {**event, "type": "app_mention"}
        mention.pop("subtype", None)
        events.append(mention)
    return events


def _altered(
    change: Change, message: Message, channel: Channel, workspace: Workspace
) -> JsonObject:
    """Source: docs.slack.dev, `message_changed` and `message_deleted`: hidden, with the previous message, read 2026-11."""
    event_ts = workspace.next_ts()
    event: JsonObject = {
        "type": "message",
        "subtype": f"message_{change.kind}",
        "hidden": True,
        "channel": channel.id,
        "channel_type": channel.type,
        "ts": event_ts,
        "event_ts": event_ts,
        "previous_message": change.previous,
    }
    if change.kind == "deleted":
        return event | {"deleted_ts": message.ts}
    return event | {"message": workspace.render(message)}


def session_stopped(*, workspace: Workspace, channel: str, thread_ts: str, user: str) -> JsonObject:
    """The native Stop. Source: docs.slack.dev, `agent_session_stopped`, read 2026-11."""
    return {
        "type": "agent_session_stopped",
        "channel": channel,
        "thread_ts": thread_ts,
        "user": user,
        "streaming_message_ts": [],
        "event_ts": workspace.next_ts(),
    }


def envelope(event: JsonObject, channel: Channel, *, now_s: float) -> JsonObject:
    """The HTTP body around an event. Source: docs.slack.dev, Events API, "Callback field", read 2026-11."""
    return {
        "token": "deprecated",
        "team_id": TEAM_ID,
        "context_team_id": TEAM_ID,
        "context_enterprise_id": ENTERPRISE_ID,
        "api_app_id": APP_ID,
        "event": event,
        "type": "event_callback",
        "event_id": new_id("Ev"),
        "event_time": int(now_s),
        "event_context": f"4-{new_id('')}",
        "is_ext_shared_channel": channel.is_ext_shared,
        "authorizations": [
            {
                "enterprise_id": ENTERPRISE_ID,
                "team_id": TEAM_ID,
                "user_id": BOT_USER_ID,
                "is_bot": True,
                "is_enterprise_install": False,
            }
        ],
    }
