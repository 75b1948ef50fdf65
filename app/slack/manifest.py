"""The Slack app manifest: exactly the scopes and events that Orion uses."""

from collections.abc import Collection, Sequence
from typing import Any, Final

# Source: Slack app manifest reference, read 2026-11.
_SCOPES: Final = (
    *("app_mentions:read", "assistant:write", "channels:history", "channels:read", "chat:write"),
    *(
        "files:read",
        "files:write",
        "groups:history",
        "groups:read",
        "im:history",
        "im:read",
        "im:write",
        "mpim:history",
        "mpim:read",
    ),
    "users:read",
)
_EVENTS: Final = (
    *("agent_session_stopped", "app_mention", "message.channels", "message.groups"),
    *("message.im", "message.mpim"),
)
_DESCRIPTION: Final = "Answers with AI agents that work in isolated sandboxes."


def missing_scopes(granted: Collection[str]) -> Sequence[str]:
    """Returns what of the manifest's an app was not granted, as when an earlier one was pasted."""
    return [scope for scope in _SCOPES if scope not in granted]


def manifest(*, public_url: str | None, socket_mode: bool) -> dict[str, Any]:
    """Returns the manifest to paste into Slack. Without Socket Mode, Slack must reach `public_url`.

    Raises:
        ValueError: neither Socket Mode nor a public URL.
    """
    settings: dict[str, Any] = {
        "event_subscriptions": {"bot_events": list(_EVENTS)},
        "interactivity": {"is_enabled": True},
        "org_deploy_enabled": False,
        "socket_mode_enabled": socket_mode,
        "token_rotation_enabled": False,
    }
    if not socket_mode:
        if not public_url:
            message = "HTTP events need a public URL; without one, use Socket Mode"
            raise ValueError(message)
        request_url = f"{public_url.rstrip('/')}/slack/events"
        settings["event_subscriptions"]["request_url"] = request_url
        settings["interactivity"]["request_url"] = request_url
    return {
        "_metadata": {"major_version": 2, "minor_version": 1},
        "display_information": {"name": "Orion", "description": _DESCRIPTION},
        "features": {
            "bot_user": {"display_name": "orion", "always_online": True},
            "app_home": {
                "home_tab_enabled": False,
                "messages_tab_enabled": True,
                "messages_tab_read_only_enabled": False,
            },
            "agent_view": {"agent_description": _DESCRIPTION},
        },
        "oauth_config": {"scopes": {"bot": list(_SCOPES)}},
        "settings": settings,
    }
