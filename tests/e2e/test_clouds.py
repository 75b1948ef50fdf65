"""The whole service with sandboxes in emulated clouds: answers, files, Stop, kill -9, canary, and nothing left there."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from app.errors import ErrorCode
from app.runs.testing import Resumption, RunState
from tests.e2e.clouds import CLOUDS, KEY, Cloud, open_stage_at
from tests.e2e.giving_keys import OWN, SECRET, give_key
from tests.e2e.harness import Stage, text_of
from tests.long import one_of_each

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.bubblewrap,
    pytest.mark.machines,
    pytest.mark.timeout(300),
]


@pytest.mark.parametrize("name", CLOUDS)
async def test_answers_files_stop_and_a_crash(name: str, tmp_path: Path) -> None:
    """In one service, since its environment takes a while to make; no key was ever sent, and nothing is left."""
    async with open_stage_at(name, tmp_path) as (stage, cloud):
        ts = await stage.client.say("@Orion run: id -un; pwd; echo 4711 > notes")
        answer = text_of(await stage.answer(ts, timeout_s=150))
        assert "agent" in answer
        assert "/work" in answer
        assert cloud.running() == 0
        second = await stage.client.say("@Orion run: cat notes", thread_ts=ts)
        assert "4711" in text_of(await stage.answer(second, thread_ts=ts))
        slow = await stage.client.say("@Orion !slow 60")
        await stage.client.wait_for_reply(slow, lambda reply: "I write slowly" in text_of(reply))
        await stage.client.say("stop", thread_ts=slow)
        stopped = await stage.ended(slow, timeout_s=10)
        assert stopped.state is RunState.STOPPED
        await _crash(stage, cloud)
        assert await stage.orion.terminate() == 0
        assert KEY.encode() not in cloud.sent()


@pytest.mark.long
@pytest.mark.parametrize("name", CLOUDS)
async def test_lost_snapshots_and_a_key_of_ones_own(name: str, tmp_path: Path) -> None:
    """A cloud that has lost what was saved makes it anew; a person's own key is never sent there."""
    async with open_stage_at(name, tmp_path, ORION_OWN_KEYS_SECRET=SECRET) as (stage, cloud):
        ts = await stage.client.say("@Orion run: echo 4711 > notes")
        await stage.answer(ts, timeout_s=150)
        if cloud.lose_snapshots is not None:
            cloud.lose_snapshots()
            third = await stage.client.say("@Orion run: cat notes", thread_ts=ts)
            said = text_of(await stage.answer(third, thread_ts=ts, timeout_s=150))
            assert "No such file" in said
        await give_key(stage, OWN)
        own = await stage.client.say("@Orion hello with a key of my own")
        await stage.answer(own, timeout_s=150)
        assert (await stage.world.model_requests())[-1]["headers"]["x-api-key"] == OWN
        assert await stage.orion.terminate() == 0
        assert KEY.encode() not in cloud.sent()
        assert OWN.encode() not in cloud.sent()


async def _crash(stage: Stage, cloud: Cloud) -> None:
    """The agent goes on in the cloud while there is no Orion, and the next one follows it to its end."""
    asked = len(await stage.world.model_requests())
    ts = await stage.client.say("@Orion run: echo once >> ran; sleep 12; cat ran")
    async with asyncio.timeout(60):
        while len(await stage.world.model_requests()) == asked:
            await asyncio.sleep(0.05)
    await asyncio.sleep(1)
    assert cloud.running() == 1
    await stage.orion.kill9()
    await stage.orion.start()
    answer = text_of(await stage.answer(ts, timeout_s=90))
    assert "```\nonce\n[exit code 0]" in answer
    run = await stage.record(ts)
    assert (run.attempt, run.result.resumed) == (2, Resumption.ATTACHED)


@pytest.mark.long
@pytest.mark.parametrize("name", CLOUDS)
async def test_a_sandbox_that_waited_there(name: str, tmp_path: Path) -> None:
    """With a pool, two threads each get one that waits; after kill -9 and at the end none of what waited is left."""
    async with open_stage_at(name, tmp_path, ORION_WARM_POOL_SIZE="1") as (stage, cloud):
        await stage.orion.until_logged("pool.filled", 1, timeout_s=150)
        ts = await stage.client.say("@Orion run: echo 4711 > notes; id -un")
        assert "agent" in text_of(await stage.answer(ts))
        await stage.orion.until_logged("pool.filled", 2, timeout_s=60)
        again = await stage.client.say("@Orion run: cat notes", thread_ts=ts)
        assert "4711" in text_of(await stage.answer(again, thread_ts=ts))
        assert len(stage.orion.log_lines("sandbox.taken")) == 1
        assert cloud.running() == 1
        await stage.orion.kill9()
        await stage.orion.start()
        await stage.orion.until_logged("pool.filled", 3, timeout_s=60)
        assert cloud.running() == 1
        other = await stage.client.say("@Orion run: cat notes")
        assert "No such file" in text_of(await stage.answer(other))
        assert len(stage.orion.log_lines("sandbox.taken")) == 2
        assert await stage.orion.terminate() == 0
        assert KEY.encode() not in cloud.sent()


@pytest.mark.long
@pytest.mark.parametrize("name", one_of_each(CLOUDS, lambda _name: None))
async def test_without_a_public_address_the_network_adds_the_key(name: str, tmp_path: Path) -> None:
    """The model answers, and the agent, who looks in its environment and among its files, has not seen the key.

    A person's own could not be added there, and is not passed over in silence.
    """
    async with open_stage_at(name, tmp_path, has_broker=False, ORION_OWN_KEYS_SECRET=SECRET) as (
        stage,
        _cloud,
    ):
        look = f"env > seen; grep -rsl {KEY[7:]} /work /orion /home /tmp /proc/self/environ || echo nothing"
        ts = await stage.client.say(f"@Orion run: {look}")
        assert "nothing" in text_of(await stage.answer(ts, timeout_s=150))
        for request in await stage.world.model_requests():
            headers = request["headers"]
            assert headers.get("x-api-key", KEY) == KEY
            assert headers["authorization"] == f"Bearer {KEY}"
        code, said = await stage.cli("doctor")
        assert "the agent may use any model" in said, (code, said)
        await give_key(stage, OWN)
        ts = await stage.client.say("@Orion hello")
        assert f"cannot be used at {name} here" in text_of(await stage.answer(ts))
        assert (await stage.record(ts)).result.error_code is ErrorCode.REQUEST_INVALID
