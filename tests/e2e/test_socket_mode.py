"""Without a public address: events over Slack's socket."""

import asyncio

import pytest

from tests.e2e.conftest import OpenOrion
from tests.e2e.harness import World

pytestmark = [pytest.mark.e2e, pytest.mark.bubblewrap, pytest.mark.timeout(180)]


async def test_a_mention_is_answered_over_the_socket_also_after_a_reconnect(
    world: World, start_orion: OpenOrion
) -> None:
    """Slack closes sockets every few hours; messages sent meanwhile are answered too. There is no HTTP way in."""
    async with start_orion(world, SLACK_APP_TOKEN=world.config.app_token) as stage:
        assert "over the socket" in await stage.ask("@Orion over the socket")
        assert {entry["via"] for entry in await stage.client.deliveries()} == {"socket"}
        assert await stage.client.disconnect_sockets() > 0
        assert "right after" in await stage.ask("@Orion right after")
        async with asyncio.timeout(20):
            while world.lookalike.sockets.count == 0:
                await asyncio.sleep(0.05)
        assert "and later" in await stage.ask("@Orion and later")
        answer = await world.http.post(f"{stage.orion.url}/slack/events", content=b"{}")
        assert answer.status_code == 404
