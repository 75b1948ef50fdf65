"""How soon a person sees that Orion has begun: from the message in Slack to the thinking message below it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

from sandbox_runtime.task_group import open_task_group
from tests.bench.acks import open_bolt, open_instant_orion
from tests.bench.load import percentile
from tests.bench.processes import BenchError, open_server
from tests.bench.scale import Bench
from tests.bench.slack_server import CHANNELS
from tests.bench.table import Row
from tests.fake_slack_client import FakeSlackClient, open_client
from tests.ports import free_port

REPLY_TIMEOUT_S = 60.0
WARM_UP_MESSAGES = 3
FULL_AGAIN_S = 45.0
"""Until as many posts may go at once as ever."""
FLOOD, FLOOD_EACH_S = 12, 0.25
"""Messages at once in one channel, and the time between those in the others."""

Said = tuple[str, str]
"""Root and channel."""
Say = Callable[[Bench, FakeSlackClient], Coroutine[Any, Any, Sequence[Said]]]


async def measure_placing(bench: Bench) -> Sequence[Row]:
    """Message to thinking message, by the fake Slack's own clock; against a bot that posts from its listener."""
    # Side by side: at this rate neither keeps the other waiting, and both see the same machine.
    async with open_task_group() as group:
        orion = group.create_task(_thinking_after(bench, _say_at_rate, is_orion=True))
        bolt = group.create_task(_thinking_after(bench, _say_at_rate, is_orion=False))
    orion_s, bolt_s = orion.result(), bolt.result()
    rate = f"{bench.scale.placing_rate:.0f} messages/s"
    return (
        _row(f"p50, {rate}", 0.5, orion_s, bolt_s, target_ms=None),
        _row(f"p95, {rate}", 0.95, orion_s, bolt_s, target_ms=400),
        await _at_once(bench, 43, threads=40, target_ms=200),
        await _at_once(bench, 100, threads=100, target_ms=500),
        _row(
            f"p95, where Slack has no limit, with {FLOOD} in a channel that has one",
            0.95,
            await _thinking_after(bench, _flood, is_orion=True, world="limited"),
            await _thinking_after(bench, _flood, is_orion=False, world="limited"),
            target_ms=500,
        ),
    )


def _row(
    what: str,
    share: float,
    orion_s: Sequence[float],
    bolt_s: Sequence[float],
    *,
    target_ms: float | None,
) -> Row:
    return Row(
        figure=f"thinking message after, {what} (fake sandbox)",
        unit="ms",
        orion=1000 * percentile(orion_s, share),
        baseline=1000 * percentile(bolt_s, share),
        target=target_ms,
    )


async def _at_once(bench: Bench, count: int, *, threads: int, target_ms: float) -> Row:
    """One after the other: at once, each wants the whole machine."""

    async def say(bench: Bench, person: FakeSlackClient) -> Sequence[Said]:
        said: list[Said] = []
        for number in range(bench.scale.at_once_rounds):
            if number:
                await asyncio.sleep(FULL_AGAIN_S)
            said += await _say_at_once(person, count, threads=threads)
            for root, channel in said:
                await _thinking_message(person, root, channel)
        return said

    return _row(
        f"p95, {count} messages at once in {threads} threads",
        0.95,
        await _thinking_after(bench, say, is_orion=True),
        await _thinking_after(bench, say, is_orion=False),
        target_ms=target_ms,
    )


async def _thinking_after(
    bench: Bench, say: Say, *, is_orion: bool, world: Literal["stack", "limited"] = "stack"
) -> Sequence[float]:
    async with _open_person(bench, world, is_orion=is_orion) as person:
        said = await say(bench, person)
        return [
            await _thinking_message(person, root, channel) - float(root) for root, channel in said
        ]


@asynccontextmanager
async def _open_person(
    bench: Bench, world: Literal["stack", "limited"], *, is_orion: bool
) -> AsyncIterator[FakeSlackClient]:
    """Somebody in a Slack with one bot, which has answered before."""
    world_port, bot_port = free_port(), free_port()
    events_url = f"http://127.0.0.1:{bot_port}/slack/events"
    async with open_server(
        ("tests.bench.slack_server", str(world_port), world, events_url),
        port=world_port,
        directory=bench.directory,
    ) as slack:
        api_url = f"{slack.url}/api/"
        bot = (
            open_instant_orion(bench, api_url=api_url, port=bot_port)
            if is_orion
            else open_bolt(bench, api_url=api_url, port=bot_port, replies=True)
        )
        async with bot, open_client(slack.url) as person:
            for _ in range(WARM_UP_MESSAGES):
                await person.wait_for_reply(await person.say("@Orion warm up"))
            yield person


async def _thinking_message(person: FakeSlackClient, root: str, channel: str) -> float:
    """When it was posted."""
    try:
        first = await person.wait_for_reply(root, channel=channel, timeout_s=REPLY_TIMEOUT_S)
    except TimeoutError as exc:
        raise BenchError(f"nothing stood below message {root}") from exc
    return float(first["ts"])


async def _say(person: FakeSlackClient, number: int) -> Said:
    channel = CHANNELS[number % len(CHANNELS)]
    return await person.say(f"@Orion question {number}", channel=channel), channel


async def _say_at_rate(bench: Bench, person: FakeSlackClient) -> Sequence[Said]:
    scale = bench.scale
    async with open_task_group() as group:
        saying = []
        for number in range(int(scale.placing_seconds * scale.placing_rate)):
            saying.append(group.create_task(_say(person, number)))
            await asyncio.sleep(1 / scale.placing_rate)
    return [task.result() for task in saying]


async def _say_at_once(person: FakeSlackClient, count: int, *, threads: int) -> Sequence[Said]:
    """Those beyond the threads are said in the first of them, and not waited for."""
    async with open_task_group() as group:
        saying = [group.create_task(_say(person, number)) for number in range(threads)]
    said = [task.result() for task in saying]
    async with open_task_group() as group:
        for root, channel in said[: count - threads]:
            group.create_task(person.say("@Orion and then?", channel=channel, thread_ts=root))
    return said


async def _flood(_bench: Bench, person: FakeSlackClient) -> Sequence[Said]:
    """Those that are said elsewhere meanwhile."""
    said = []
    async with open_task_group() as group:
        for number in range(FLOOD):
            group.create_task(person.say(f"@Orion flood {number}", channel=CHANNELS[0]))
        for number in range(1, 1 + 2 * FLOOD):
            said.append(await _say(person, number))
            await asyncio.sleep(FLOOD_EACH_S)
    return said
