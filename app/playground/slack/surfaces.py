"""Methods about what Slack shows beside messages: statuses of threads and sessions, prompts, views."""

from collections.abc import Mapping

from app.playground.slack.methods import (
    LOADING_MESSAGES_MAX,
    PROMPTS_MAX,
    SESSION_STATUSES,
    SPECIAL,
    TIER_3,
    TIER_4,
    Call,
    Method,
)
from app.playground.slack.types import Change, JsonObject, SlackError


def _set_thread_status(call: Call) -> JsonObject:
    """The line under a thread; clears itself, see `status_lifetime_s`."""
    channel = call.channel("channel_id", writing=True)
    thread_ts = call.existing_root(channel)
    loading = call.args.structure("loading_messages", error="invalid_arguments")
    if isinstance(loading, list) and len(loading) > LOADING_MESSAGES_MAX:
        raise SlackError("invalid_arguments")
    until = call.workspace.now().timestamp() + call.config.status_lifetime_s
    call.workspace.set_status(channel.id, thread_ts, status=call.args.text("status"), until=until)
    return {}


def _set_session_status(call: Call) -> JsonObject:
    """`processing` shows the native Stop."""
    channel = call.channel("channel_id", writing=True)
    status = call.args.required("status", error="invalid_arguments")
    if status not in SESSION_STATUSES:
        raise SlackError("invalid_arguments")
    _demand_agents(call)
    thread_ts = call.existing_root(channel)
    if title := call.args.text("title"):
        call.workspace.name_session(channel.id, thread_ts, title)
    call.workspace.set_status(channel.id, thread_ts, session=status)
    return {"session": {"channel_id": channel.id, "thread_ts": thread_ts, "status": status}}


def _set_prompts(call: Call) -> JsonObject:
    """Shows prompts above the box of a direct message."""
    _demand_agents(call)
    channel = call.channel("channel_id", writing=True)
    prompts = call.args.structure("prompts", error="invalid_arguments")
    listed = prompts if isinstance(prompts, list) else []
    good = [
        one for one in listed if isinstance(one, dict) and one.get("title") and one.get("message")
    ]
    if not 1 <= len(good) == len(listed) <= PROMPTS_MAX:
        raise SlackError("invalid_arguments")
    # In agent_view a thread_ts makes it fail silently. Source: integrators' reports, read 2026-11.
    if "thread_ts" not in call.args:
        call.workspace.prompts[channel.id] = {"title": call.args.text("title"), "prompts": prompts}
        call.workspace.tell(Change(kind="prompts", channel=channel.id))
    return {}


def _demand_agents(call: Call) -> None:
    if not call.config.has_agents:
        raise SlackError("feature_not_enabled")


def _open_view(call: Call) -> JsonObject:
    trigger_id = call.args.required("trigger_id", error="invalid_arguments")
    view = call.args.structure("view", error="invalid_arguments")
    return {"view": call.modals.open(trigger_id, view)}


def _publish_view(call: Call) -> JsonObject:
    user = call.args.required("user_id", error="invalid_arguments")
    view = call.modals.publish(user, call.args.structure("view", error="invalid_arguments"))
    return {"view": view}


SURFACE_METHODS: Mapping[str, Method] = {
    "assistant.threads.setStatus": Method(
        handler=_set_thread_status, scopes=("chat:write", "assistant:write"), rate=SPECIAL
    ),
    "agents.sessions.setStatus": Method(
        handler=_set_session_status, scopes=("chat:write",), rate=TIER_3
    ),
    "assistant.threads.setSuggestedPrompts": Method(
        handler=_set_prompts, scopes=("assistant:write",), rate=TIER_4
    ),
    "views.open": Method(handler=_open_view, scopes=(), rate=TIER_4),
    "views.publish": Method(handler=_publish_view, scopes=(), rate=TIER_4),
}
"""By their names. Source: docs.slack.dev, "Required scopes" and tier of each method page, read 2026-11."""
