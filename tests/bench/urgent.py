"""How soon an agent at work knows of an urgent message: told while it works, or stopped and started again with both."""

from collections.abc import Sequence

from tests.bench.pool import first_request_after, open_orion
from tests.bench.scale import Bench
from tests.bench.table import Row
from tests.bench.turns import (
    ANSWER_TIMEOUT_S,
    FIRST_ANSWER_TIMEOUT_S,
    Scene,
    ask,
    open_scene,
)
from tests.e2e.harness import text_of
from tests.fake_slack_client import FakeSlackClient, open_client

TARGET_S = 2.0
SLOW = "!slow 20"
SLOW_WORDS = "I write slowly"
TOLD, STARTED_AGAIN = "! hello", "! model=opus hello"
"""The second wants another model, and so another agent."""


async def measure_urgent(bench: Bench) -> Sequence[Row]:
    """Local; the 95th percentile of some ten of each, so the slowest; the baseline is the stop of the one at work and the start of another."""
    async with (
        open_scene(bench) as scene,
        open_client(scene.world.url) as person,
        open_orion(scene, {}, pool_size=0),
    ):
        await ask(person, timeout_s=FIRST_ANSWER_TIMEOUT_S)
        count = 2 * bench.scale.turn_pairs
        told_s = [await _urgent(scene, person, TOLD) for _ in range(count)]
        again_s = [await _urgent(scene, person, STARTED_AGAIN) for _ in range(count)]
    return (
        Row(
            figure="urgent message to the agent at work, p95",
            unit="ms",
            orion=1000 * max(told_s),
            baseline=1000 * max(again_s),
            target=1000 * TARGET_S,
        ),
        Row(
            figure="urgent message to another agent, p95",
            unit="ms",
            orion=1000 * max(again_s),
            target=1000 * TARGET_S,
        ),
    )


async def _urgent(scene: Scene, person: FakeSlackClient, text: str) -> float:
    """Seconds from the message to the model's first request that knows of it."""
    root = await person.say(f"@Orion {SLOW}")
    await person.wait_for_reply(
        root, lambda reply: SLOW_WORDS in text_of(reply), timeout_s=ANSWER_TIMEOUT_S
    )
    urgent = await person.say(f"@Orion {text}", thread_ts=root)
    await person.wait_for_reply(
        root, lambda reply: "offline model" in str(reply["text"]), timeout_s=ANSWER_TIMEOUT_S
    )
    return await first_request_after(scene, urgent)
