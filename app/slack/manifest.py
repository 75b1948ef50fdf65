"""The Slack app manifest: exactly the scopes and events that Orion uses, and what each scope is for, so that one which lacks some can be told."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

COMMAND: Final = "/orion"
ASK_SHORTCUT: Final = "ask_about"
"""Callback id of the message shortcut, which stands in the manifests of all who have pasted one."""


_BEHIND: Final = "what was said before, replies without a mention, and catching up"
_LOOKED_UP: Final = "names, Ask Orion about this, and catching up"

# Source: Slack app manifest reference, and the required scopes of each method's and event's page, read 2026-11.
SCOPES: Final[Mapping[str, str]] = {
    "app_mentions:read": "mentions",
    "chat:write": "all that Orion says",
    "im:history": "direct messages",
    "channels:history": f"{_BEHIND} in public channels",
    "groups:history": f"{_BEHIND} in private channels",
    "mpim:history": f"{_BEHIND} in group messages",
    "channels:read": f"{_LOOKED_UP} in public channels",
    "groups:read": f"{_LOOKED_UP} in private channels",
    "im:read": "Ask Orion about this, and catching up in direct messages",
    "mpim:read": "Ask Orion about this, and catching up in group messages",
    "users:read": "names of people",
    "files:read": "files of messages",
    "files:write": "patches and files in return",
    "assistant:write": "suggested prompts",
    "commands": "/orion and Ask Orion about this",
    "usergroups:read": "user groups in orion.toml",
    "reactions:read": "stop by ❌",
}
"""What Orion asks for, and what is off without it."""
EVENTS: Final = (
    *("app_mention", "message.channels", "message.groups", "message.im", "message.mpim"),
    *("agent_session_stopped", "app_home_opened", "reaction_added"),
    *("subteam_members_changed", "subteam_updated"),
)
DESCRIPTION: Final = "Answers with AI agents that work in isolated sandboxes."
COMMAND_HINT: Final = "help | status | stop | runs | settings | agents | usage | link | docker | local | cloud | provider NAME"


MANIFEST_FIX: Final = "paste `orion manifest` into the app's manifest again, and reinstall the app"


def find_lacking(granted: Collection[str]) -> Mapping[str, str]:
    """Returns the scopes that are missing, each with what is off for want of it; none when Slack has not said what it grants.

    Events and commands an app cannot ask for; they come with the scopes of the same manifest.
    """
    if not granted:
        return {}
    return {scope: off for scope, off in SCOPES.items() if scope not in granted}


_OWN_WORDS: Final = frozenset(
    {
        "_metadata",
        "display_information",
        "display_name",
        "description",
        "name",
        "usage_hint",
        "agent_description",
    }
)
"""What whoever made the app may call as they like."""


def find_drift(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> Sequence[str]:
    """Returns what an app's manifest lacks of the wanted one, or has otherwise, by paths; what it has besides, and how things are called, is its own."""
    return sorted(_drift(wanted, found, ""))


def _drift(wanted: Any, found: Any, path: str) -> Iterator[str]:  # noqa: ANN401 - JSON
    match wanted:
        case dict() if not isinstance(found, dict):
            yield f"{path} is missing"
        case dict():
            for name in wanted.keys() - _OWN_WORDS:
                yield from _drift(wanted[name], found.get(name), f"{path}.{name}".lstrip("."))
        case [str(), *_]:
            if missing := [one for one in wanted if one not in (found or ())]:
                yield f"{path} lacks {', '.join(missing)}"
        case list():
            for one in wanted:
                known = one.get("command") or one.get("callback_id")
                same = (
                    it for it in found or () if known in (it.get("command"), it.get("callback_id"))
                )
                yield from _drift(one, next(same, None), f"{path} {known}")
        case _ if wanted != found:
            yield f"{path} is {found!r}, not {wanted!r}"


def manifest(*, public_url: str | None, socket_mode: bool) -> dict[str, Any]:
    """Returns the manifest to paste into Slack. Without Socket Mode, Slack must reach `public_url`.

    Raises:
        ValueError: neither Socket Mode nor a public URL.
    """
    command: dict[str, Any] = {
        "command": COMMAND,
        "description": "What Orion does for you here",
        "usage_hint": COMMAND_HINT,
        "should_escape": False,
    }
    settings: dict[str, Any] = {
        "event_subscriptions": {"bot_events": sorted(EVENTS)},
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
        command["url"] = request_url
    return {
        "_metadata": {"major_version": 2, "minor_version": 1},
        "display_information": {"name": "Orion", "description": DESCRIPTION},
        "features": {
            "bot_user": {"display_name": "orion", "always_online": True},
            "app_home": {
                "home_tab_enabled": True,
                "messages_tab_enabled": True,
                "messages_tab_read_only_enabled": False,
            },
            "agent_view": {"agent_description": DESCRIPTION},
            "slash_commands": [command],
            "shortcuts": [
                {
                    "name": "Ask Orion about this",
                    "type": "message",
                    "callback_id": ASK_SHORTCUT,
                    "description": "Asks in the message's thread",
                }
            ],
        },
        "oauth_config": {"scopes": {"bot": sorted(SCOPES)}},
        "settings": settings,
    }
