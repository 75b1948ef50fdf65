"""A person who gives Orion a model key of their own, in the modal below the answer to `settings`."""

from collections.abc import Mapping
from typing import Any

from app.playground.slack.types import YOU
from app.slack.actions import KEYS_ACTION
from tests.e2e.harness import Stage

OWN = "own-key-of-a-person-canary-0123456789"
SECRET = "a-secret-for-the-keys-of-people-in-tests"  # noqa: S105 - of people who are not real


async def ask_settings(
    stage: Stage, *, user: str = YOU, channel: str = "general"
) -> Mapping[str, Any]:
    """The answer to `settings`."""
    ts = await stage.client.say("@Orion settings", user=user, channel=channel)
    return await stage.answer(ts, channel=channel)


async def open_modal(
    stage: Stage, *, user: str = YOU, channel: str = "general"
) -> Mapping[str, Any]:
    """The modal, as Slack shows it."""
    message = await ask_settings(stage, user=user, channel=channel)
    pressed = await stage.client.press(dict(message), KEYS_ACTION, user=user)
    assert pressed["ok"], pressed
    view: Mapping[str, Any] | None = pressed["view"]
    assert view is not None
    return view


async def give_key(stage: Stage, key: str, *, protocol: str = "anthropic") -> None:
    """For the models of that protocol."""
    view = await open_modal(stage)
    sent = await stage.client.submit(dict(view), {protocol: key})
    assert (sent["ok"], sent["errors"]) == (True, {})
