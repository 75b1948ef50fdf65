"""Who must wait is told so at once, and gets an answer in turn."""

import asyncio
from collections.abc import Callable
from itertools import pairwise

import pytest

from app.playground.slack.types import YOU
from app.runs.testing import RunState
from app.slack.actions import STOP_ACTION
from tests.e2e.conftest import OpenOrion
from tests.e2e.harness import Stage, World, text_of

pytestmark = [pytest.mark.alone, pytest.mark.e2e, pytest.mark.bubblewrap, pytest.mark.timeout(300)]

PLACED_WITHIN_S = 1.0
ALL_PLACED_WITHIN_S = 50.0
"""Of 32 at once in one conversation, where Slack takes a message a second, on two cores, which the agents need too."""
WRITING_WITHIN_S = 120.0
"""For 32 agents to load their SDK, some 1.5 s of CPU each, and to begin to write."""


async def test_waiting_is_shown_at_once_and_order_is_kept(
    world: World, start_orion: OpenOrion, record_property: Callable[[str, object], None]
) -> None:
    """A second message in a busy thread, and a thread beyond the limit of the process, are told within a second."""
    async with start_orion(world, ORION_MAX_CONCURRENT_RUNS="3") as stage:
        busy = [await stage.client.say(f"@Orion !slow 8 {number}") for number in range(3)]
        for ts in busy:
            await _until_running(stage, ts)
        await _until_asked(world, len(busy))
        second = await stage.client.say("@Orion second", thread_ts=busy[0])
        third = await stage.client.say("@Orion third", thread_ts=busy[0])
        # Elsewhere: Slack takes a message a second in a channel, and five have come by now.
        fourth = await stage.client.say("@Orion fourth thread", channel="random")
        shown = {
            second: await stage.thinking(second, thread_ts=busy[0]),
            third: await stage.thinking(third, thread_ts=busy[0]),
            fourth: await stage.thinking(fourth, channel="random"),
        }
        placed = [round(float(message["ts"]) - float(ts), 3) for ts, message in shown.items()]
        record_property("busy: message to thinking message [s]", placed)
        first_words = [
            (await stage.client.versions(message))[0]["text"] for message in shown.values()
        ]
        assert first_words == [
            "Queued behind 1 earlier message in this thread",
            "Queued behind 2 earlier messages in this thread",
            "All 3 slots are busy; you are about number 3, as people take turns",
        ]
        assert max(placed) < PLACED_WITHIN_S
        await stage.answer(fourth, channel="random")
        answer = await stage.answer(third, thread_ts=busy[0])
        assert "Before that you wrote: “second”" in text_of(answer)
        records = [await stage.record(ts) for ts in (busy[0], second, third)]
        assert all(record.state is RunState.SUCCEEDED for record in records)
        for before, after in pairwise(records):
            assert before.ended_at is not None
            assert after.started_at is not None
            assert before.ended_at <= after.started_at
        assert len(await stage.client.replies(busy[0])) == 5


@pytest.mark.long
async def test_the_thirty_third_thread(
    world: World, start_orion: OpenOrion, record_property: Callable[[str, object], None]
) -> None:
    """With default limits and all 32 places taken, the next thread is told within a second, and is answered in turn."""
    # On a slow machine this takes a minute, and those who waited longer are told so by a message more.
    async with start_orion(world, ORION_ANNOUNCE_AFTER_S="0") as stage:
        busy = [await stage.client.say(f"!slow 150 {number}", channel=YOU) for number in range(32)]
        messages = {ts: await stage.thinking(ts, channel=YOU) for ts in busy}
        placed = sorted(float(message["ts"]) - float(ts) for ts, message in messages.items())
        record_property(
            "32 at once: message to thinking message, median and worst [s]",
            (round(placed[len(placed) // 2], 3), round(placed[-1], 3)),
        )
        assert placed[-1] < ALL_PLACED_WITHIN_S
        await _until_asked(world, len(busy))
        last = await stage.client.say("@Orion and me?")
        message = await stage.thinking(last)
        record_property(
            "33rd thread: message to thinking message [s]",
            round(float(message["ts"]) - float(last), 3),
        )
        assert float(message["ts"]) - float(last) < PLACED_WITHIN_S
        first_words = (await stage.client.versions(message))[0]["text"]
        assert first_words == "All 32 slots are busy; you are about number 1, as people take turns"
        for waiting in messages.values():
            await stage.client.press(waiting, STOP_ACTION)
        for ts in busy:
            await stage.answer(ts, channel=YOU)
            assert len(await stage.client.replies(ts, channel=YOU)) == 1
        await stage.answer(last)
        assert len(await stage.client.replies(last)) == 1


async def _until_asked(world: World, times: int) -> None:
    """So many agents have started and asked the model: from then on the processor is free for others."""
    async with asyncio.timeout(WRITING_WITHIN_S):
        while len(await world.model_requests()) < times:
            await asyncio.sleep(0.2)


async def _until_running(stage: Stage, ts: str) -> None:
    async with asyncio.timeout(20):
        while True:
            run = await stage.orion.run(stage.run_id(ts))
            if run is not None and run.state is RunState.RUNNING:
                return
            await asyncio.sleep(0.05)
