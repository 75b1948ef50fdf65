"""What Orion is compared with does the same work."""

from collections.abc import Sequence

from slack_bolt.async_app import AsyncBoltRequest

from app.playground.slack.types import FakeSlackConfig
from tests.bench.bolt_server import create_bot
from tests.bench.load import mention
from tests.ports import free_port


async def test_the_bare_bot_hears_both_deliveries_of_the_load() -> None:
    """Bolt answers 200 for what it drops, too: here whoever hears the mention fails, as nobody is where it would post."""
    config = FakeSlackConfig()
    slack_url = f"http://127.0.0.1:{free_port()}/api/"
    bot = create_bot(
        secret=config.signing_secret, token=config.bot_token, api_url=slack_url, replies=True
    )
    statuses = []
    for delivery in mention("http://127.0.0.1/slack/events"):
        head, _, body = delivery.decode().partition("\r\n\r\n")
        lines = (line.partition(": ") for line in head.split("\r\n")[1:])
        headers: dict[str, str | Sequence[str]] = {name: value for name, _, value in lines}
        answer = await bot.async_dispatch(AsyncBoltRequest(body=body, headers=headers))
        statuses.append(answer.status)
    assert statuses == [500, 200]
