"""How soon a person sees that Orion has begun: from the message in Slack to the thinking message below it."""

import asyncio
from collections.abc import Sequence

from sandbox_runtime.task_group import open_task_group
from tests.bench.acks import open_bolt, open_instant_orion
from tests.bench.load import percentile
from tests.bench.processes import BenchError, open_server
from tests.bench.scale import Bench
from tests.bench.slack_server import CHANNELS
from tests.bench.table import Row
from tests.fake_slack_client import FakeSlackClient, open_client
from tests.ports import free_port

REPLY_TIMEOUT_S = 20.0
WARM_UP_MESSAGES = 3


async def measure_placing(bench: Bench) -> Sequence[Row]:
    """Message to thinking message, by the fake Slack's own clock; against a bot that posts from its listener."""
    # Side by side: at this rate neither keeps the other waiting, and both see the same machine.
    async with open_task_group() as group:
        orion = group.create_task(_thinking_after(bench, is_orion=True))
        bolt = group.create_task(_thinking_after(bench, is_orion=False))
    orion_s, bolt_s = orion.result(), bolt.result()
    rate = f"{bench.scale.placing_rate:.0f} messages/s"
    return tuple(
        Row(
            figure=f"thinking message after, {name}, {rate} (fake sandbox)",
            unit="ms",
            orion=1000 * percentile(orion_s, share),
            baseline=1000 * percentile(bolt_s, share),
            target=target,
        )
        for name, share, target in (("p50", 0.5, None), ("p95", 0.95, 400.0))
    )


async def _thinking_after(bench: Bench, *, is_orion: bool) -> Sequence[float]:
    world_port, bot_port = free_port(), free_port()
    events_url = f"http://127.0.0.1:{bot_port}/slack/events"
    async with open_server(
        ("tests.bench.slack_server", str(world_port), "stack", events_url),
        port=world_port,
        directory=bench.directory,
    ) as world:
        api_url = f"{world.url}/api/"
        bot = (
            open_instant_orion(bench, api_url=api_url, port=bot_port)
            if is_orion
            else open_bolt(bench, api_url=api_url, port=bot_port, replies=True)
        )
        async with bot, open_client(world.url) as person:
            for _ in range(WARM_UP_MESSAGES):
                await person.wait_for_reply(await person.say("@Orion warm up"))
            return await _say_at_rate(bench, person)


async def _say_at_rate(bench: Bench, person: FakeSlackClient) -> Sequence[float]:
    scale = bench.scale
    roots: list[tuple[str, str]] = []

    async def say(number: int) -> None:
        channel = CHANNELS[number % len(CHANNELS)]
        roots.append((await person.say(f"@Orion question {number}", channel=channel), channel))

    async with open_task_group() as group:
        for number in range(int(scale.placing_seconds * scale.placing_rate)):
            group.create_task(say(number))
            await asyncio.sleep(1 / scale.placing_rate)
    waits_s = []
    for root, channel in roots:
        try:
            first = await person.wait_for_reply(root, channel=channel, timeout_s=REPLY_TIMEOUT_S)
        except TimeoutError as exc:
            raise BenchError(f"nothing stood below message {root}") from exc
        waits_s.append(float(first["ts"]) - float(root))
    return waits_s
