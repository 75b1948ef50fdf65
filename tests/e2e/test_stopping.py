"""Stop is honest: the process tree is dead, what was written stays, and the thread goes on."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from app.playground.slack.types import COLLEAGUE, JsonObject
from app.slack.actions import STOP_ACTION
from tests.e2e.harness import Stage, text_of

pytestmark = [pytest.mark.alone, pytest.mark.e2e, pytest.mark.bubblewrap, pytest.mark.timeout(180)]

DEAD_WITHIN_S = 2.0
SLOW_WORDS = "offline model and I write"

Stop = Callable[[Stage, JsonObject], Awaitable[None]]


async def _press(stage: Stage, message: JsonObject) -> None:
    answer = await stage.client.press(message, STOP_ACTION)
    assert answer["ok"], answer


async def _say(stage: Stage, message: JsonObject) -> None:
    await stage.client.say("Stop!", thread_ts=message["thread_ts"])


async def _native(stage: Stage, message: JsonObject) -> None:
    await stage.client.stop(message["thread_ts"])


@pytest.mark.parametrize("stop", [pytest.param(_press, marks=pytest.mark.long), _say, _native])
async def test_stop_ends_the_agent_and_keeps_what_was_written(
    shared: Stage,
    stop: Stop,
    record_property: Callable[[str, object], None],
) -> None:
    """By button, by word and by Slack's own Stop; the next question in the thread is answered."""
    ts = await shared.client.say("@Orion !slow 25")
    message = await shared.client.wait_for_reply(ts, lambda reply: SLOW_WORDS in text_of(reply))
    dead_after_s = await _stop(shared, message, stop)
    record_property(f"stop{stop.__name__} to dead tree [s]", round(dead_after_s, 3))
    assert dead_after_s < DEAD_WITHIN_S
    answer = await shared.answer(ts)
    assert SLOW_WORDS in text_of(answer)
    assert "Stopped by <@U0YOU>" in text_of(answer)
    record = await shared.record(ts)
    assert (record.state, record.delivery) == ("stopped", "sent")
    assert SLOW_WORDS in record.result.answer
    assert "still there?" in await shared.ask("@Orion still there?", thread_ts=ts)


async def test_stop_kills_what_a_tool_has_started(shared: Stage) -> None:
    """Commands in the background, and those that left their session, die with the run; anybody in the thread may stop it."""
    ts = await shared.client.say("@Orion run: setsid sleep 300 & sleep 300 & sleep 300")
    message = await shared.client.wait_for_reply(ts, lambda reply: "sleep 300" in text_of(reply))
    async with asyncio.timeout(10):
        while sum("sleep 300" in line for line in _commands(shared)) < 3:
            await asyncio.sleep(0.05)

    async def press(stage: Stage, pressed: JsonObject) -> None:
        await stage.client.press(pressed, STOP_ACTION, user=COLLEAGUE)

    assert await _stop(shared, message, press) < DEAD_WITHIN_S
    assert f"Stopped by <@{COLLEAGUE}>" in text_of(await shared.answer(ts))


async def _stop(stage: Stage, message: JsonObject, stop: Stop) -> float:
    """Seconds until no process of the run's sandbox is left."""
    sandbox_id = stage.sandbox_of(message["thread_ts"])
    assert stage.orion.sandbox_processes(sandbox_id) != []
    started = time.monotonic()
    await stop(stage, message)
    async with asyncio.timeout(10):
        while stage.orion.sandbox_processes(sandbox_id):
            await asyncio.sleep(0.02)
    return time.monotonic() - started


def _commands(stage: Stage) -> list[str]:
    return [line for line in stage.orion.sandbox_processes() if "/bin/sh" not in line]
