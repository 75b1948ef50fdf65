"""How soon what was asked while Orion was away is answered."""

import asyncio
import time
from collections.abc import Sequence

from tests.bench.acks import open_instant_orion
from tests.bench.processes import open_server
from tests.bench.scale import Bench
from tests.bench.slack_server import CHANNELS
from tests.bench.streams import answered_at, say_in
from tests.bench.table import Row
from tests.fake_slack_client import open_client
from tests.ports import free_port

HEARD_S = 3.0
"""After an answer, until it has noted that it hears."""
TARGET_S = 30.0


async def measure_catch_up(bench: Bench) -> Sequence[Row]:
    """Within Slack's limits: Orion ends, somebody asks in fifty channels, Orion starts; from the start to the first answer and to the last."""
    world_port, port = free_port(), free_port()
    events_url = f"http://127.0.0.1:{port}/slack/events"
    argv = ("tests.bench.slack_server", str(world_port), "limited", events_url)
    async with (
        open_server(argv, port=world_port, directory=bench.directory) as world,
        open_client(world.url) as person,
    ):
        api_url = f"{world.url}/api/"
        async with open_instant_orion(bench, api_url=api_url, port=port):
            before = await say_in(person, CHANNELS)
            for channel, root in before.items():
                await answered_at(person, root, channel)
            await asyncio.sleep(HEARD_S)
        missed = await say_in(person, CHANNELS)
        started_at = time.time()
        async with open_instant_orion(bench, api_url=api_url, port=port):
            answered_s = [
                await answered_at(person, root, channel) - started_at
                for channel, root in missed.items()
            ]
    what = (
        f"start to the {{}} late answer, {len(CHANNELS)} questions asked meanwhile (fake sandbox)"
    )
    return (
        Row(figure=what.format("first"), unit="s", orion=min(answered_s), target=TARGET_S),
        Row(figure=what.format("last"), unit="s", orion=max(answered_s)),
    )
