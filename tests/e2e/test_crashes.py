"""kill -9 at any moment, and SIGTERM: every question still ends in its answer, once, in order, and nothing is left behind."""

import asyncio
import time
from collections.abc import Callable

import pytest

from app.playground.slack.types import FakeSlackConfig
from tests.e2e.conftest import OpenOrion
from tests.e2e.harness import Stage, has_stop_button, open_world, text_of

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.crash,
    pytest.mark.bubblewrap,
    pytest.mark.timeout(240),
]

ENDED_WITHIN_S = 30.0
STOPPED_WITHIN_S = 20.0
SLOW_WORDS = "offline model and I write"
QUICK_RETRIES = FakeSlackConfig(rate_limits="off", retry_delays_s=(0.0, 2.0, 4.0, 8.0))
"""Slack's own last retry comes after five minutes."""


async def test_kill_9_while_writing_and_waiting(
    start_orion: OpenOrion, record_property: Callable[[str, object], None]
) -> None:
    """A run that is writing and one queued behind it end in their answers within 30 s of the restart, in order, once."""
    async with open_world(QUICK_RETRIES) as world, start_orion(world) as stage:
        ts = await stage.client.say("@Orion !slow 6")
        await stage.client.wait_for_reply(ts, lambda reply: SLOW_WORDS in text_of(reply))
        second = await stage.client.say("@Orion what came before?", thread_ts=ts)
        await stage.thinking(second, thread_ts=ts)
        sandbox_id = stage.sandbox_of(ts)
        assert sandbox_id in stage.orion.living_sandboxes()
        await stage.orion.kill9()
        await _until_no_sandbox_process(stage)
        left = stage.orion.sandbox_directories()
        assert sandbox_id in left
        restarted = time.monotonic()
        await stage.orion.start()
        assert not set(left) & set(stage.orion.sandbox_directories())
        await stage.answer(ts, timeout_s=ENDED_WITHIN_S)
        answer = await stage.answer(second, thread_ts=ts, timeout_s=ENDED_WITHIN_S)
        took_s = time.monotonic() - restarted
        record_property("restart to both answers [s]", round(took_s, 1))
        assert took_s < ENDED_WITHIN_S
        first, after = await stage.record(ts), await stage.record(second)
        assert (first.state, first.attempt) == ("succeeded", 2)
        assert (after.state, after.attempt) == ("succeeded", 1)
        assert first.ended_at is not None
        assert after.started_at is not None
        assert first.ended_at <= after.started_at
        assert "I write slowly" in text_of(answer)
        await _assert_one_message_each(stage, [ts], replies=3)


@pytest.mark.long
async def test_kill_9_at_any_moment_of_a_short_run(
    start_orion: OpenOrion, record_property: Callable[[str, object], None]
) -> None:
    """From the moment of acceptance to the moment of the answer, the thread ends in one message with the answer."""
    async with open_world(QUICK_RETRIES) as world, start_orion(world) as stage:
        took = []
        for delay_s in (0.03, 0.4, 1.5):
            ts = await stage.client.say(f"@Orion killed after {delay_s} s")
            await asyncio.sleep(delay_s)
            await stage.orion.kill9()
            await stage.orion.start()
            started = time.monotonic()
            answer = await stage.answer(ts, timeout_s=ENDED_WITHIN_S)
            took.append(round(time.monotonic() - started, 1))
            assert f"killed after {delay_s} s" in text_of(answer)
            await _assert_one_message_each(stage, [ts], replies=1)
        record_property("restart to answer, killed at three moments [s]", took)


async def test_kill_9_right_after_the_acknowledgement(start_orion: OpenOrion) -> None:
    """What Slack has been told is accepted, is answered, though Slack will not send it again."""
    config = FakeSlackConfig(rate_limits="off", mention_gap_s=0.0, retry_delays_s=())
    async with open_world(config) as world, start_orion(world) as stage:
        ts = await stage.client.say("@Orion you promised")
        async with asyncio.timeout(10):
            while not any(
                entry["message_ts"] == ts and entry["status"] == 200
                for entry in await stage.client.deliveries()
            ):
                await asyncio.sleep(0.001)
        await stage.orion.kill9()
        await stage.orion.start()
        assert "you promised" in text_of(await stage.answer(ts, timeout_s=ENDED_WITHIN_S))
        await _assert_one_message_each(stage, [ts], replies=1)


@pytest.mark.long
async def test_sigterm_lets_short_runs_end_and_hands_long_ones_over(
    start_orion: OpenOrion, record_property: Callable[[str, object], None]
) -> None:
    """It exits 0 within 20 s; what was going is answered by it or by the next process, once."""
    async with open_world(QUICK_RETRIES) as world, start_orion(world) as stage:
        short = await stage.client.say("@Orion !slow 3")
        long = await stage.client.say("@Orion !slow 60")
        for ts in (short, long):
            await stage.client.wait_for_reply(ts, lambda reply: SLOW_WORDS in text_of(reply))
        started = time.monotonic()
        assert await stage.orion.terminate() == 0
        took_s = time.monotonic() - started
        record_property("SIGTERM to exit [s]", round(took_s, 1))
        assert took_s < STOPPED_WITHIN_S
        ended = await stage.record(short)
        assert (ended.state, ended.attempt) == ("succeeded", 1)
        assert stage.orion.sandbox_processes() == []
        assert stage.orion.sandbox_directories() == []
        left_at = await stage.thinking(long)
        await stage.orion.start()
        resumed = await stage.client.wait_for_reply(
            long, lambda reply: reply["version"] > left_at["version"] + 1
        )
        assert has_stop_button(resumed)
        await stage.client.say("stop", thread_ts=long)
        await stage.answer(long)
        record = await stage.record(long)
        assert (record.state, record.attempt) == ("stopped", 2)
        await _assert_one_message_each(stage, [short], replies=1)
        assert len([r for r in await stage.client.replies(long) if r["is_bot"]]) == 1


async def _until_no_sandbox_process(stage: Stage) -> None:
    """They die with their parent; nobody has to clean up after it."""
    async with asyncio.timeout(5):
        while stage.orion.sandbox_processes():
            await asyncio.sleep(0.05)


async def _assert_one_message_each(stage: Stage, roots: list[str], *, replies: int) -> None:
    for root in roots:
        found = await stage.client.replies(root)
        assert len(found) == replies, [text_of(reply) for reply in found]
