"""Prepared sandboxes in the running service: what a person gains, what an operator sees, and what is left of them."""

import json
import os
import re
import signal
from pathlib import Path

import pytest

from app.playground.slack.types import JsonObject
from tests.e2e.conftest import OpenOrion
from tests.e2e.harness import RUN_TIMEOUT_S, WITH_POOL, Stage, open_world, text_of
from tests.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.bubblewrap, pytest.mark.timeout(180)]


async def filled(stage: Stage, times: int = 1) -> None:
    """So many have become ready, in all starts of the service together."""
    await stage.orion.until_logged("pool.filled", times, timeout_s=RUN_TIMEOUT_S)


async def pool_of(stage: Stage) -> str:
    """What `/readyz` says of it."""
    return str((await stage.world.http.get(f"{stage.orion.url}/readyz")).json()["pool"]["detail"])


async def steps_of(stage: Stage, ts: str) -> dict[str, JsonObject]:
    """Of the trace of the run that this message began, by name; once it has arrived."""
    trace_id = (await stage.ended(ts)).trace_id
    (root,) = (await stage.world.whole_trace(trace_id))["observations"]
    return {step["name"]: step for step in root["children"]}


@pytest.mark.long
async def test_a_new_thread_is_given_what_waits(start_orion: OpenOrion) -> None:
    """Its agent works at once, in a sandbox without any file; the next thread is given another one; both are counted."""
    async with open_world() as world, start_orion(world, **WITH_POOL) as stage:
        await filled(stage)
        first = await stage.client.say("@Orion run: ls -A . ~ | wc -l; echo 4711 > notes")
        assert "\n3\n" in text_of(await stage.answer(first))
        await filled(stage, 2)
        second = await stage.client.say("@Orion run: cat notes")
        assert "No such file" in text_of(await stage.answer(second))
        again = await stage.client.say("@Orion run: cat notes", thread_ts=first)
        assert "4711" in text_of(await stage.answer(again, thread_ts=first))
        assert len(stage.orion.log_lines("sandbox.taken")) == 2
        assert (
            len(stage.orion.log_lines("sandbox.created")) == 1
        )  # of the follow-up, from what was saved
        await filled(stage, 3)
        assert await pool_of(stage) == "local: 1 of 1 wait; taken 2, missed 0, failed 0"
        rows = json.loads((await stage.cli("sandboxes", "list", "--json"))[1])
        assert [row["sandbox_id"] for row in rows if row["status"] == "waiting"] == (
            stage.orion.sandbox_directories()
        )
        code, said = await stage.cli("doctor")
        assert "local: 1 of 1 wait; taken 2" in said, code
        metrics = (await world.http.get(f"{stage.orion.url}/metrics")).text
        assert 'orion_pool_taken{provider="local"} 2.0' in metrics
        steps = await steps_of(stage, first)
        assert steps["take-warm"]["metadata"]["origin"] == "pool"
        assert steps["take-warm"]["metadata"]["taken"] is True
        assert "sandbox-create" not in steps


@pytest.mark.long
async def test_what_waits_is_gone_after_a_kill(start_orion: OpenOrion) -> None:
    """Kill -9 while one waits, and while one that waited works: the next start leaves nothing, and the question is answered."""
    async with (
        open_world() as world,
        start_orion(world, **WITH_POOL) as stage,
    ):
        await filled(stage)
        ts = await stage.client.say("@Orion run: sleep 3; echo done")
        await until(
            lambda: len(stage.orion.log_lines("agent.started")) == 1, timeout_s=RUN_TIMEOUT_S
        )
        await filled(stage, 2)
        await stage.orion.kill9()
        await stage.orion.start()
        await filled(stage, 3)
        assert "done" in text_of(await stage.answer(ts))
        await until(lambda: len(stage.orion.sandbox_directories()) == 1, timeout_s=RUN_TIMEOUT_S)
        assert await stage.orion.terminate() == 0
        assert stage.orion.sandbox_directories() == []
        assert stage.orion.sandbox_processes() == []
        assert list((stage.orion.state_dir / "broker").iterdir()) == []


@pytest.mark.long
async def test_a_sandbox_that_ended_while_it_waited(start_orion: OpenOrion) -> None:
    """It is noticed at once and replaced; and one that hangs costs a run some seconds, not its answer."""
    async with open_world() as world, start_orion(world, **WITH_POOL) as stage:
        await filled(stage)
        _signal_waiting(stage, signal.SIGKILL)
        await until(lambda: len(stage.orion.log_lines("pool.failed")) == 1, timeout_s=RUN_TIMEOUT_S)
        await filled(stage, 2)
        _signal_waiting(stage, signal.SIGSTOP)
        ts = await stage.client.say("@Orion run: echo fine")
        assert "fine" in text_of(await stage.answer(ts))


@pytest.mark.long
async def test_stop_of_an_agent_that_waited(start_orion: OpenOrion) -> None:
    """As of any other: nothing of it runs when the person is told."""
    async with open_world() as world, start_orion(world, **WITH_POOL) as stage:
        await filled(stage)
        ts = await stage.client.say("@Orion run: sleep 4711.25")
        await until(lambda: bool(stage.orion.log_lines("agent.started")), timeout_s=RUN_TIMEOUT_S)
        await stage.client.stop(ts)
        await stage.answer(ts)
        assert (await stage.record(ts)).state == "stopped"
        assert not [line for line in stage.orion.sandbox_processes() if "4711.25" in line]


def _signal_waiting(stage: Stage, number: signal.Signals) -> None:
    """To the supervisor that waits."""
    needle = f"{stage.orion.state_dir.name}/sandboxes/".encode()
    for entry in Path("/proc").iterdir():
        if not re.fullmatch(r"\d+", entry.name):
            continue
        try:
            is_ours = needle in (entry / "mountinfo").read_bytes()
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if is_ours and words[0].endswith(b"python3") and words[-2].endswith(b"plan.json"):
            os.kill(int(entry.name), number)
            return
    raise AssertionError("no supervisor waits")
