"""Modals of the fake Slack: opened once, in time, within Slack's limits; sent by the one person who sees them."""

from typing import Any

import pytest
from slack_sdk.errors import SlackApiError

from app.playground.slack.types import COLLEAGUE, YOU, FakeSlackConfig
from tests.fake_slack_client import FakeSlackError
from tests.unit.playground.conftest import Playground, StartPlayground

VIEW: dict[str, Any] = {
    "type": "modal",
    "callback_id": "form",
    "title": {"type": "plain_text", "text": "A form"},
    "submit": {"type": "plain_text", "text": "Send"},
    "blocks": [
        {
            "type": "input",
            "block_id": "name",
            "label": {"type": "plain_text", "text": "Name"},
            "element": {"type": "plain_text_input", "action_id": "text", "max_length": 5},
        },
        {
            "type": "input",
            "block_id": "extras",
            "optional": True,
            "label": {"type": "plain_text", "text": "Extras"},
            "element": {
                "type": "checkboxes",
                "action_id": "boxes",
                "options": [
                    {"text": {"type": "plain_text", "text": name}, "value": name}
                    for name in ("a", "b")
                ],
            },
        },
    ],
}


def _changed(**fields: Any) -> dict[str, Any]:
    return VIEW | fields


async def test_a_modal_is_opened_once_and_sent_by_its_person(playground: Playground) -> None:
    """The app is told what was written, by blocks and actions; then it is closed."""
    modals = playground.fake_slack.modals
    trigger = modals.trigger(YOU)
    opened = await playground.web.views_open(trigger_id=trigger, view=VIEW)
    view = modals.opened_by(trigger)
    assert view is not None
    assert view["id"] == opened["view"]["id"]
    with pytest.raises(SlackApiError, match="exchanged_trigger_id"):
        await playground.web.views_open(trigger_id=trigger, view=VIEW)
    with pytest.raises(FakeSlackError, match="view_not_found"):
        await playground.client.submit(view, {"name": "Ada"}, user=COLLEAGUE)
    for bad in ({"name": ""}, {"name": "too long"}):
        with pytest.raises(FakeSlackError, match="invalid_value"):
            await playground.client.submit(view, bad)
    sent = await playground.client.submit(view, {"name": "Ada", "extras": ["b", "c"]})
    assert (sent["ok"], sent["errors"]) == (True, {})
    (payload,) = playground.receiver.payloads()
    assert (payload["type"], payload["user"]["id"]) == ("view_submission", YOU)
    assert payload["view"]["state"]["values"] == {
        "name": {"text": {"type": "plain_text_input", "value": "Ada"}},
        "extras": {
            "boxes": {
                "type": "checkboxes",
                "selected_options": [{"text": {"type": "plain_text", "text": "b"}, "value": "b"}],
            }
        },
    }
    with pytest.raises(FakeSlackError, match="view_not_found"):
        await playground.client.submit(view, {"name": "Ada"})


@pytest.mark.parametrize(
    ("view", "error"),
    [
        ("modal", "invalid_arguments"),
        (_changed(type="home"), "invalid_arguments"),
        (_changed(title={"type": "plain_text", "text": "x" * 25}), "invalid_arguments"),
        ({name: one for name, one in VIEW.items() if name != "submit"}, "invalid_arguments"),
        (_changed(blocks=VIEW["blocks"] * 2), "invalid_arguments"),
        (_changed(blocks=[VIEW["blocks"][0] | {"element": {"type": "date"}}]), "invalid_arguments"),
        (_changed(blocks=[]), "invalid_arguments"),
    ],
)
async def test_what_slack_refuses_is_refused(
    playground: Playground, view: object, error: str
) -> None:
    """Limits and shapes of views; the trigger is not used up by it."""
    trigger = playground.fake_slack.modals.trigger(YOU)
    with pytest.raises(SlackApiError, match=error):
        await playground.web.api_call("views.open", json={"trigger_id": trigger, "view": view})
    await playground.web.views_open(trigger_id=trigger, view=VIEW)


async def test_a_trigger_is_soon_dead(start: StartPlayground) -> None:
    """Three seconds after the press, and unknown ones always."""
    assert FakeSlackConfig().trigger_lifetime_s == 3
    playground = await start(FakeSlackConfig(rate_limits="off", trigger_lifetime_s=-0.001))
    with pytest.raises(SlackApiError, match="invalid_trigger_id"):
        await playground.web.views_open(trigger_id="1.2.3", view=VIEW)
    trigger = playground.fake_slack.modals.trigger(YOU)
    with pytest.raises(SlackApiError, match="expired_trigger_id"):
        await playground.web.views_open(trigger_id=trigger, view=VIEW)
