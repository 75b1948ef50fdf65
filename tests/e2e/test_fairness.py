"""When places are scarce: people take turns, and a long queue says so."""

import asyncio

import pytest

from app.errors import ErrorCode
from app.playground.slack.types import COLLEAGUE, YOU
from app.runs.testing import RunState
from app.slack.actions import STOP_ACTION
from tests.e2e.conftest import OpenOrion
from tests.e2e.harness import Stage, World, text_of

pytestmark = [pytest.mark.e2e, pytest.mark.bubblewrap, pytest.mark.timeout(300)]

TOLD_WITHIN_S = 15.0
"""After the time limit; the reconciler's rounds are 30 s apart when nothing is due."""


async def test_a_backlog_of_one_person_delays_nobody_else(
    world: World, start_orion: OpenOrion
) -> None:
    """A single question is answered before the older backlog of somebody else, and one beyond the limit is refused."""
    async with start_orion(world, ORION_MAX_CONCURRENT_RUNS="1", ORION_QUEUE_LIMIT="4") as stage:
        backlog = [await stage.client.say("@Orion !slow 8")]
        await _until_running(stage, backlog[0])
        for text in ("backlog", "!slow 2"):
            backlog.append(await stage.client.say(f"@Orion {text}"))
            await stage.thinking(backlog[-1])
        single = await stage.client.say("@Orion and mine?", user=COLLEAGUE)
        shown = [await _first_words(stage, ts) for ts in (*backlog[1:], single)]
        assert shown == [
            f"The only slot is busy; you are about number {number}, as people take turns"
            for number in (1, 2, 1)
        ]
        await _assert_refused(stage, "the limit is 4 messages")
        await stage.answer(single)
        for ts in backlog:
            await stage.answer(ts)
        runs = [await stage.record(ts) for ts in (backlog[0], single, *backlog[1:])]
        assert [run.state for run in runs] == [RunState.SUCCEEDED] * 4
        started = [run.started_at for run in runs]
        assert started == sorted(started, key=str)
        message = await stage.thinking(backlog[2])
        texts = [version["text"] for version in await stage.client.versions(message)]
        assert any("place" not in text for text in texts[1:-1]), texts  # the start was shown


@pytest.mark.long
async def test_waiting_has_an_end(world: World, start_orion: OpenOrion) -> None:
    """When a message has waited for the time limit, its thinking message says so soon, while the place is still taken."""
    async with start_orion(
        world, ORION_MAX_CONCURRENT_RUNS="1", ORION_QUEUE_TIMEOUT_S="4"
    ) as stage:
        busy = await stage.client.say("@Orion !slow 120")
        await _until_running(stage, busy)
        waiting = await stage.client.say("@Orion shall I wait?", user=COLLEAGUE)
        follower = await stage.client.say("@Orion and I?", user=COLLEAGUE, thread_ts=waiting)
        for ts in (waiting, follower):
            message = await stage.answer(ts, thread_ts=waiting)
            assert "Too many requests are waiting" in text_of(message)
            assert "waited longer than 4 s" in text_of(message)
            run = await stage.record(ts)
            assert (run.result.error_code, run.attempt) == (ErrorCode.QUEUE_FULL, 0)
            assert run.ended_at is not None
            assert 4 <= (run.ended_at - run.created_at).total_seconds() < 4 + TOLD_WITHIN_S
        assert (await stage.record(busy)).state is RunState.RUNNING
        await stage.client.press(await stage.thinking(busy), STOP_ACTION)
        await stage.answer(busy)
        assert await stage.ask("@Orion now?", user=COLLEAGUE)
        assert stage.orion.tracebacks() == []


async def _first_words(stage: Stage, ts: str) -> str:
    return str((await stage.client.versions(await stage.thinking(ts)))[0]["text"])


async def _assert_refused(stage: Stage, reason: str) -> None:
    """The asker alone is told."""
    ts = await stage.client.say("@Orion one more?")
    record = await stage.ended(ts)
    assert record.result.error_code is ErrorCode.QUEUE_FULL
    shown = await stage.client.messages()
    found = [message for message in shown if message["is_bot"] and message["ts"] > ts]
    assert [message["ephemeral_to"] for message in found] == [YOU], found
    assert reason in found[0]["text"]


async def _until_running(stage: Stage, ts: str) -> None:
    async with asyncio.timeout(20):
        while True:
            run = await stage.orion.run(stage.run_id(ts))
            if run is not None and run.state is RunState.RUNNING:
                return
            await asyncio.sleep(0.05)
