"""`make stops`: how soon stopped agents are dead, over a series. Too long for every run of the tests."""

import asyncio
import time
from collections.abc import Callable

import pytest

from app.playground.slack.types import JsonObject
from app.slack.actions import STOP_ACTION
from tests.bench.load import percentile
from tests.e2e.harness import Stage, text_of

pytestmark = [pytest.mark.e2e, pytest.mark.bubblewrap, pytest.mark.timeout(300)]

DEAD_WITHIN_S = 2.0
STOPS = 10
SLOW_WORDS = "offline model and I write"


async def test_stops_in_a_row_are_quick(
    shared: Stage, record_property: Callable[[str, object], None]
) -> None:
    """By button and by word in turn, while the others of ten runs go on: from the wish to the dead tree."""
    asked = [await shared.client.say("@Orion !slow 120") for _ in range(STOPS)]
    messages = [
        await shared.client.wait_for_reply(
            ts, lambda reply: SLOW_WORDS in text_of(reply), timeout_s=90
        )
        for ts in asked
    ]
    took_s = []
    for number, message in enumerate(messages):
        sandbox_id = shared.sandbox_of(message["thread_ts"])
        started = time.monotonic()
        await _stop(shared, message, by_button=number % 2 == 0)
        async with asyncio.timeout(10):
            while sandbox_id in shared.orion.living_sandboxes():
                await asyncio.sleep(0.02)
        took_s.append(time.monotonic() - started)
    for ts in asked:
        await shared.answer(ts)
        assert (await shared.record(ts)).state == "stopped"
    p95_s = percentile(took_s, 0.95)
    record_property(f"stop to dead tree, p95 of {STOPS} [s]", round(p95_s, 3))
    assert p95_s < DEAD_WITHIN_S


async def _stop(stage: Stage, message: JsonObject, *, by_button: bool) -> None:
    if by_button:
        assert (await stage.client.press(message, STOP_ACTION))["ok"]
    else:
        await stage.client.say("Stop!", thread_ts=message["thread_ts"])
