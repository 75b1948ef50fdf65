"""auth.test, the Socket Mode address, and what a thread shows while the app works."""

import secrets

from app.playground.slack_call import Call
from app.playground.slack_types import (
    APP_ID,
    BOT_ID,
    BOT_USER_ID,
    TEAM_ID,
    JsonObject,
    SlackError,
)

# Source: docs.slack.dev, agents.sessions.setStatus, `status`, read 2026-11.
SESSION_STATUSES = frozenset({"processing", "active", "suspended", "closed"})
LOADING_MESSAGES_MAX = 10


def api_test(call: Call) -> JsonObject:
    """api.test: echoes an error on request."""
    if call.args.text("error"):
        raise SlackError(call.args.text("error"))
    return {}


def auth_test(call: Call) -> JsonObject:
    """Who the bot token belongs to."""
    return {
        "url": f"{call.base_url()}/",
        "team": "Playground",
        "user": "orion",
        "team_id": TEAM_ID,
        "user_id": BOT_USER_ID,
        "bot_id": BOT_ID,
        "is_enterprise_install": False,
    }


def open_connection(call: Call) -> JsonObject:
    """apps.connections.open: a one-use Socket Mode address."""
    ticket = secrets.token_urlsafe(16)
    call.tickets.add(ticket)
    return {"url": f"ws://{call.host}/socket-mode?ticket={ticket}&app_id={APP_ID}"}


def set_thread_status(call: Call) -> JsonObject:
    """The line under a thread; clears itself, see `status_lifetime_s`."""
    channel = call.channel("channel_id", writing=True)
    thread_ts = _existing_root(call, channel.id)
    loading = call.args.structure("loading_messages", error="invalid_arguments")
    if isinstance(loading, list) and len(loading) > LOADING_MESSAGES_MAX:
        raise SlackError("invalid_arguments")
    until = call.workspace.now().timestamp() + call.config.status_lifetime_s
    call.workspace.set_status(channel.id, thread_ts, status=call.args.text("status"), until=until)
    return {}


def set_session_status(call: Call) -> JsonObject:
    """`processing` shows the native Stop."""
    channel = call.channel("channel_id", writing=True)
    status = call.args.required("status", error="invalid_arguments")
    if status not in SESSION_STATUSES:
        raise SlackError("invalid_arguments")
    thread_ts = _existing_root(call, channel.id)
    call.workspace.set_status(channel.id, thread_ts, session=status)
    return {"session": {"channel_id": channel.id, "thread_ts": thread_ts, "status": status}}


def _existing_root(call: Call, channel: str) -> str:
    thread_ts = call.args.required("thread_ts", error="invalid_thread_ts")
    message = call.workspace.messages[channel].get(thread_ts)
    if message is None or message.deleted or message.thread_ts:
        raise SlackError("invalid_thread_ts")
    return thread_ts
