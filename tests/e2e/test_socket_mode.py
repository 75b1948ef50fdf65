"""Without a public address: events over Slack's socket."""

import asyncio

import pytest

from app.slack.actions import KEYS_ACTION
from tests.e2e.conftest import OpenOrion
from tests.e2e.harness import Stage, World
from tests.ports import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.bubblewrap, pytest.mark.timeout(180)]


async def test_a_mention_is_answered_over_the_socket_also_after_a_reconnect(
    world: World, start_orion: OpenOrion
) -> None:
    """Slack closes sockets every few hours; messages sent meanwhile are answered too. There is no HTTP way in."""
    async with start_orion(
        world, SLACK_APP_TOKEN=world.config.app_token, ORION_OWN_KEYS_SECRET="s" * 32
    ) as stage:
        assert "over the socket" in await stage.ask("@Orion over the socket")
        assert {entry["via"] for entry in await stage.client.deliveries()} == {"socket"}
        assert await stage.client.disconnect_sockets() > 0
        assert "right after" in await stage.ask("@Orion right after")
        async with asyncio.timeout(20):
            while world.fake_slack.sockets.count == 0:
                await asyncio.sleep(0.05)
        assert "and later" in await stage.ask("@Orion and later")
        answer = await world.http.post(f"{stage.orion.url}/slack/events", content=b"{}")
        assert answer.status_code == 404
        await _assert_modals_work(stage)


async def _assert_modals_work(stage: Stage) -> None:
    """What is wrong with one is in the acknowledgement, which has another form here."""
    message = await stage.answer(await stage.client.say("@Orion settings"))
    view = (await stage.client.press(message, KEYS_ACTION))["view"]
    wrong = await stage.client.submit(view, {"openai": "two words"})
    assert (wrong["ok"], list(wrong["errors"])) == (True, ["openai"])
    right = await stage.client.submit(view, {"openai": "one-word"})
    assert (right["ok"], right["errors"]) == (True, {})


async def test_what_slack_refuses_at_the_start_is_one_line(world: World, shared: Stage) -> None:
    """A token that is no good, and a Slack that is not there: which setting, and no traceback."""
    for settings, said in (
        ({}, "orion cannot start: SLACK_APP_TOKEN: Slack refuses it: invalid_auth"),
        (
            {"SLACK_API_URL": f"http://127.0.0.1:{free_port()}/api/"},
            "/api/ (SLACK_API_URL): ClientConnectorError",
        ),
    ):
        state = str(shared.orion.state_dir / "another")
        own = {"SLACK_APP_TOKEN": "xapp-wrong", "SLACK_API_URL": f"{world.url}/api/", **settings}
        code, told = await shared.cli("serve", **own, ORION_STATE_DIR=state)
        assert code == 1
        assert said in told
        assert "Traceback" not in told
