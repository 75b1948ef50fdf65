"""Faults of emulated clouds, met by the whole service: the right answer or the right words, and nothing left there."""

import asyncio
from pathlib import Path

import pytest

from app.runs.testing import UNSAVED, RunState
from tests.e2e.clouds import CLOUDS, KEY, SLOW_S, Cloud, open_stage_at
from tests.e2e.fault_table import Fault, fault
from tests.e2e.harness import Stage, has_retry_button, text_of

pytestmark = [
    pytest.mark.long,
    pytest.mark.e2e,
    pytest.mark.bubblewrap,
    pytest.mark.machines,
    pytest.mark.timeout(300),
]

HICCUPS = 4
"""Steps of a run's sandbox that can be made to fail once, at either cloud."""

CUTS = 3
"""Streams of output that are cut at Vercel."""


@pytest.mark.parametrize("cloud_name", CLOUDS)
async def test_whatever_goes_wrong_there(cloud_name: str, tmp_path: Path) -> None:
    """In one service, one thread: what was saved last is there after each."""
    async with open_stage_at(cloud_name, tmp_path) as (stage, cloud):
        ts = await stage.client.say("@Orion run: echo 4711 > notes")
        await stage.answer(ts, timeout_s=150)

        cloud.trouble["hiccups"]()
        again = await stage.client.say("@Orion run: cat notes", thread_ts=ts)
        assert "4711" in text_of(await stage.answer(again, thread_ts=ts))
        fault("Cloud: each step of a sandbox's life fails once").assert_holds(
            await stage.record(again)
        )
        assert cloud.struck() >= HICCUPS
        cloud.calm()

        for name, row in (
            ("full", fault("Cloud: too many requests or sandboxes")),
            ("refusing", fault("Cloud: token revoked")),
        ):
            struck = cloud.struck()
            cloud.trouble[name]()
            await _fails(stage, ts, "@Orion run: cat notes", row)
            assert cloud.struck() > struck
            cloud.calm()

        await _stop_while_it_is_made(stage, cloud, ts)
        await _cut(stage, cloud, ts)
        await _stop_after_a_cut(stage, cloud, ts)
        await _lifetime_ends(stage, cloud, ts)

        struck = cloud.struck()
        cloud.trouble["unsaved"]()
        unsaved = await stage.client.say("@Orion run: echo lost > notes", thread_ts=ts)
        message = await stage.answer(unsaved, thread_ts=ts)
        assert "[exit code 0]" in text_of(message)
        assert UNSAVED in text_of(message)
        assert cloud.struck() > struck
        fault("Cloud: nothing can be saved").assert_holds(await stage.record(unsaved))
        cloud.calm()
        assert "4711" in await stage.ask("@Orion run: cat notes", thread_ts=ts)
        assert cloud.running() == 0
        assert KEY.encode() not in cloud.sent()


async def _fails(stage: Stage, thread_ts: str, text: str, row: Fault) -> None:
    """As the row says, and with a button to try again."""
    ts = await stage.client.say(text, thread_ts=thread_ts)
    message = await stage.answer(ts, thread_ts=thread_ts, timeout_s=60)
    row.assert_holds(await stage.record(ts))
    assert has_retry_button(message)


async def _stop_while_it_is_made(stage: Stage, cloud: Cloud, thread_ts: str) -> None:
    """At once; what is made after all does not go on."""
    struck = cloud.struck()
    cloud.trouble["slow"]()
    ts = await stage.client.say("@Orion run: cat notes", thread_ts=thread_ts)
    async with asyncio.timeout(30):
        while cloud.struck() == struck:
            await asyncio.sleep(0.05)
    await stage.client.say("stop", thread_ts=thread_ts)
    assert (await stage.ended(ts, timeout_s=SLOW_S - 1)).state is RunState.STOPPED
    await asyncio.sleep(SLOW_S + 2)
    assert cloud.running() == 0
    cloud.calm()


async def _cut(stage: Stage, cloud: Cloud, thread_ts: str) -> None:
    """Whose output breaks off while the agent works: it goes on, once."""
    text = "@Orion run: echo once >> ran; sleep 4; cat ran; rm ran"
    struck = cloud.struck()
    cloud.trouble["cut"]()  # what begins at Vercel; the connections to Deno are cut below
    ts = await stage.client.say(text, thread_ts=thread_ts)
    await _works(stage, ts, thread_ts)
    if cloud.settings["ORION_SANDBOX"] == "deno":
        cloud.trouble["cut"]()
    assert "```\nonce\n[exit code 0]" in text_of(await stage.answer(ts, thread_ts=thread_ts))
    fault("Cloud: connection to a working agent cut").assert_holds(await stage.record(ts))
    # The connection to Vercel is made again below the provider's contract.
    lost = stage.orion.log_lines("agent.connection_lost")
    if cloud.settings["ORION_SANDBOX"] == "deno":
        assert len(lost) == 1
    else:
        assert (len(lost), cloud.struck() - struck) == (0, CUTS)
    cloud.calm()


async def _stop_after_a_cut(stage: Stage, cloud: Cloud, thread_ts: str) -> None:
    """It reaches the agent all the same."""
    ts = await stage.client.say("@Orion run: sleep 60", thread_ts=thread_ts)
    await _works(stage, ts, thread_ts)
    cloud.trouble["cut"]()
    await asyncio.sleep(1)
    cloud.calm()
    await stage.client.say("stop", thread_ts=thread_ts)
    assert (await stage.ended(ts, timeout_s=10)).state is RunState.STOPPED
    await stage.answer(ts, thread_ts=thread_ts)
    assert cloud.running() == 0


async def _lifetime_ends(stage: Stage, cloud: Cloud, thread_ts: str) -> None:
    """The sandbox ends under the agent."""
    ts = await stage.client.say("@Orion run: sleep 60", thread_ts=thread_ts)
    await _works(stage, ts, thread_ts)
    cloud.end_machines()
    await stage.answer(ts, thread_ts=thread_ts, timeout_s=60)
    fault("Cloud: sandbox ends under its agent").assert_holds(await stage.record(ts))


async def _works(stage: Stage, ts: str, thread_ts: str) -> None:
    """The agent's command runs."""
    run_id = stage.run_id(ts)
    await stage.client.wait_for_reply(
        thread_ts, lambda reply: run_id in str(reply) and "sleep" in text_of(reply), timeout_s=60
    )
