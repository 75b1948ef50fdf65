"""What the manifest of an app may have otherwise than Orion's, and what is told as drift."""

import copy
from typing import Any

import pytest

from app.slack.manifest import find_drift, manifest

WANTED = manifest(public_url="https://orion.acme.org", socket_mode=False)


def changed(path: str, value: object) -> dict[str, Any]:
    """Orion's own, with another value there."""
    found = copy.deepcopy(WANTED)
    *parents, name = path.split(".")
    place: Any = found
    for parent in parents:
        place = place[int(parent) if parent.isdecimal() else parent]
    place[int(name) if name.isdecimal() else name] = value
    return found


def test_orions_own_has_none() -> None:
    """Nor has one with other words, and with more than is wanted."""
    assert find_drift(WANTED, WANTED) == []
    more = [*WANTED["oauth_config"]["scopes"]["bot"], "chat:write.customize"]
    for found in (
        changed("display_information.name", "Our helper"),
        changed("features.bot_user.display_name", "helper"),
        changed("features.shortcuts.0.name", "Ask"),
        changed("oauth_config.scopes.bot", more),
        {**WANTED, "functions": {}},
    ):
        assert find_drift(WANTED, found) == []


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (
            "oauth_config.scopes.bot",
            ["chat:write"],
            "oauth_config.scopes.bot lacks app_mentions:read, ",
        ),
        ("settings.event_subscriptions.bot_events", [], "bot_events lacks agent_session_stopped, "),
        ("settings.interactivity.is_enabled", False, "is_enabled is False, not True"),
        (
            "settings.event_subscriptions.request_url",
            "https://old.acme.org/slack/events",
            "is 'https://old.acme.org/slack/events', not 'https://orion.acme.org/slack/events'",
        ),
        (
            "features.slash_commands",
            [],
            "features.slash_commands /orion is missing",
        ),
        ("features.shortcuts", None, "features.shortcuts ask_about is missing"),
        ("features.agent_view", None, "features.agent_view is missing"),
        ("settings", None, "settings is missing"),
    ],
)
def test_what_is_otherwise_is_named(path: str, value: object, told: str) -> None:
    """By its place, with what is there and what is wanted."""
    drift = find_drift(WANTED, changed(path, value))
    assert told in "; ".join(drift)
