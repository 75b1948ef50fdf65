"""The Slack app manifest: exactly the scopes and events that Orion uses, by what they are for, so that one which lacks some can be told."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

COMMAND: Final = "/orion"
ASK_SHORTCUT: Final = "ask_about"
"""Callback id of the message shortcut, which stands in the manifests of all who have pasted one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """Something that Orion can do where its Slack app has these scopes and is sent these events."""

    name: str
    scopes: tuple[str, ...] = ()
    events: tuple[str, ...] = ()


# Source: Slack app manifest reference, and the required scopes of each method's and event's page, read 2026-11.
FEATURES: Final = (
    Feature(
        name="mentions and direct messages",
        scopes=(
            *("app_mentions:read", "chat:write"),
            *("channels:history", "groups:history", "im:history", "mpim:history"),
        ),
        events=(
            *("app_mention", "message.channels", "message.groups", "message.im", "message.mpim"),
            "agent_session_stopped",
        ),
    ),
    Feature(name="files of messages", scopes=("files:read",)),
    Feature(name="patches and files in return", scopes=("files:write",)),
    Feature(name="names", scopes=("channels:read", "groups:read", "users:read")),
    Feature(name="home and welcome", scopes=("im:write",), events=("app_home_opened",)),
    Feature(name="suggested prompts", scopes=("assistant:write",)),
    Feature(name="/orion", scopes=("commands",)),
    Feature(name="Ask Orion about this", scopes=("commands", "im:read", "mpim:read")),
    Feature(
        name="catching up on what nobody heard",
        scopes=("channels:read", "groups:read", "im:read", "mpim:read"),
    ),
    Feature(
        name="user groups in orion.toml",
        scopes=("usergroups:read",),
        events=("subteam_members_changed", "subteam_updated"),
    ),
    Feature(name="stop by ❌", scopes=("reactions:read",), events=("reaction_added",)),
)
DESCRIPTION: Final = "Answers with AI agents that work in isolated sandboxes."
COMMAND_HINT: Final = "help | status | stop | runs | settings | agents | usage | link | docker | local | cloud | provider NAME"


MANIFEST_FIX: Final = "paste `orion manifest` into the app's manifest again, and reinstall the app"


def find_lacking(granted: Collection[str]) -> Mapping[str, Sequence[str]]:
    """Returns the features that are off for want of scopes, with those, by their names; none when Slack has not said what it grants.

    Events and commands an app cannot ask for; they come with the scopes of the same manifest.
    """
    if not granted:
        return {}
    lacking = {one.name: [name for name in one.scopes if name not in granted] for one in FEATURES}
    return {name: scopes for name, scopes in lacking.items() if scopes}


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
        "event_subscriptions": {"bot_events": _sorted(one.events for one in FEATURES)},
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
        "oauth_config": {"scopes": {"bot": _sorted(one.scopes for one in FEATURES)}},
        "settings": settings,
    }


def _sorted(names: Iterable[Sequence[str]]) -> list[str]:
    return sorted({name for some in names for name in some})
