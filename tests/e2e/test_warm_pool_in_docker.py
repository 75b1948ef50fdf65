"""Prepared containers: given out, killed, frozen, left by a crash; and what is in one before anybody has it."""

import asyncio

import pytest

from app.playground.slack.types import FakeSlackConfig
from tests.e2e.docker_world import docker, namespace_of, objects_of, open_docker_orion
from tests.e2e.docker_world import prepared_image as prepare
from tests.e2e.harness import RUN_TIMEOUT_S, WITH_POOL, Stage, open_world, text_of
from tests.e2e.orion_process import POLL_S, new_state_dir, put_environments
from tests.e2e.prepared import prepared_state_dir
from tests.e2e.test_warm_pool import filled, pool_of
from tests.waiting import until

pytestmark = [
    pytest.mark.long,
    pytest.mark.e2e,
    pytest.mark.docker,
    pytest.mark.bubblewrap,
    pytest.mark.timeout(300),
]

QUICK_RETRIES = FakeSlackConfig(rate_limits="off", retry_delays_s=(0.0, 2.0, 4.0, 8.0))
_LOOK = (
    "for p in /proc/[0-9]*; do tr '\\0' '\\n' < $p/environ; done; find /orion /work /home -type f"
)


async def test_prepared_containers(tmp_path_factory: pytest.TempPathFactory) -> None:
    """In one service, since each start of one takes seconds."""
    state_dir = new_state_dir(tmp_path_factory.mktemp("orion"))
    prepared = await asyncio.to_thread(prepare)
    async with (
        open_world(QUICK_RETRIES) as world,
        open_docker_orion(world, state_dir, prepared, **WITH_POOL) as stage,
    ):
        namespace = namespace_of(state_dir)
        await _is_given(stage, namespace)
        await _killed_and_frozen(stage, namespace)
        await _survives_a_crash(stage, namespace)
        await _another_room(stage)


async def _waiting(namespace: str) -> str:
    filters = (f"label=orion.name={namespace}", "label=orion.pool=true")
    options = [word for one in filters for word in ("--filter", one)]
    newest, *_ = (await asyncio.to_thread(docker, "ps", "--quiet", *options)).split()
    return newest


async def _is_given(stage: Stage, namespace: str) -> None:
    await filled(stage)
    container = await _waiting(namespace)
    seen = await asyncio.to_thread(
        docker, "exec", "--user", "0", container, "sh", "-c", f"({_LOOK}) 2>/dev/null || true"
    )
    assert "plan.json" in seen
    assert "TOKEN" not in seen
    assert "API_KEY" not in seen
    assert "request.json" not in seen
    ts = await stage.client.say("@Orion run: hostname; ls -A . | wc -l")
    said = text_of(await stage.answer(ts))
    assert "\n0\n" in said
    assert await pool_of(stage) in {
        f"docker: {waiting} of 1 wait; taken 1, missed 0, failed 0" for waiting in (0, 1)
    }
    assert stage.orion.log_lines("sandbox.created") == []


async def _killed_and_frozen(stage: Stage, namespace: str) -> None:
    await filled(stage, 2)
    await asyncio.to_thread(docker, "kill", await _waiting(namespace))
    await until(lambda: len(stage.orion.log_lines("pool.failed")) == 1, timeout_s=RUN_TIMEOUT_S)
    await filled(stage, 3)
    container = await _waiting(namespace)
    await asyncio.to_thread(docker, "pause", container)
    ts = await stage.client.say("@Orion run: echo thawed")
    assert "thawed" in text_of(await stage.answer(ts))
    assert len(stage.orion.log_lines("sandbox.unfit")) == 1
    await filled(stage, 4)


async def _survives_a_crash(stage: Stage, namespace: str) -> None:
    """A run in a prepared container goes on after kill -9, through the same door; what only waited is gone."""
    ts = await stage.client.say("@Orion run: sleep 15; echo survived")
    await until(lambda: len(stage.orion.log_lines("agent.started")) == 3, timeout_s=RUN_TIMEOUT_S)
    await filled(stage, 5)
    left = await _waiting(namespace)
    await stage.orion.kill9()
    await stage.orion.start()
    assert "survived" in text_of(await stage.answer(ts))
    (resumed,) = stage.orion.log_lines("run.resumed")
    assert resumed["how"] == "attached"
    assert not [one for one in await asyncio.to_thread(objects_of, namespace, "ps") if one == left]


async def _another_room(stage: Stage) -> None:
    """A provider that a message names has a pool of its own from then on."""
    put_environments(await asyncio.to_thread(prepared_state_dir), stage.orion.state_dir)
    ts = await stage.client.say("@Orion sandbox=local run: echo elsewhere")
    assert "elsewhere" in text_of(await stage.answer(ts))
    assert (await stage.record(ts)).provider == "local"
    async with asyncio.timeout(60):
        while "local: 1 of 1 wait" not in await pool_of(stage):
            await asyncio.sleep(POLL_S)
    second = await stage.client.say("@Orion sandbox=local run: echo again")
    assert "again" in text_of(await stage.answer(second))
    assert stage.sandbox_of(second) in {
        line["sandbox_id"] for line in stage.orion.log_lines("sandbox.taken")
    }
