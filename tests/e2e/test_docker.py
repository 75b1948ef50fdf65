"""The whole service with Docker sandboxes: answers, files, Stop, kill -9, and nothing left on the engine."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.playground.slack.types import FakeSlackConfig, JsonObject
from app.runs.testing import RunState
from tests.docker_image import ensure_image
from tests.e2e.harness import Stage, open_orion, open_world, text_of
from tests.e2e.orion_process import new_state_dir
from tests.e2e.test_sandbox_shell import script
from tests.e2e.typing_person import sitting_at

pytestmark = [pytest.mark.e2e, pytest.mark.docker, pytest.mark.timeout(600)]

MADE_S = 300.0
"""For the first answer, whose environment is made before: 20 s, or minutes beside builds of images."""

QUICK_RETRIES = FakeSlackConfig(rate_limits="off", retry_delays_s=(0.0, 2.0, 4.0, 8.0))


async def _engine(*arguments: str) -> list[str]:
    process = await asyncio.create_subprocess_exec(
        "docker", *arguments, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode().split()


async def _containers(namespace: str) -> list[str]:
    return await _engine("ps", "-aq", "--filter", f"label=orion.name={namespace}")


async def test_answers_files_stop_and_a_crash(tmp_path: Path) -> None:
    """In one service, since its environment takes 20 s to make."""
    async with _service_in_docker(tmp_path) as (stage, namespace):
        await _play(stage, namespace)


@pytest.mark.long
async def test_agents_left_behind_and_people_at_hand(tmp_path: Path) -> None:
    """An agent that goes on while there is no Orion; a person in the sandbox of a thread."""
    async with _service_in_docker(tmp_path) as (stage, namespace):
        await _attach(stage, namespace)
        await _visit(stage, namespace)


@asynccontextmanager
async def _service_in_docker(tmp_path: Path) -> AsyncIterator[tuple[Stage, str]]:
    """Nothing of it may be left, but for what it keeps by design, which is taken away."""
    state_dir = new_state_dir(tmp_path)
    namespace = f"s{hashlib.sha256(str(state_dir).encode()).hexdigest()[:10]}"
    nothing_prepared = tmp_path / "nothing"
    for name in ("environments", "snapshots", "names"):
        (nothing_prepared / name).mkdir(parents=True)
    image = await asyncio.to_thread(ensure_image)
    try:
        async with (
            open_world(QUICK_RETRIES) as world,
            open_orion(
                world,
                state_dir,
                nothing_prepared,
                ORION_SANDBOX="docker",
                ORION_DOCKER_IMAGE=image,
                ORION_SESSION_KEEP_S="600",
            ) as stage,
        ):
            yield stage, namespace
            assert await stage.orion.terminate() == 0
        assert await _containers(namespace) == []
        mine = ("--filter", f"label=orion.name={namespace}")
        assert await _engine("volume", "ls", "-q", *mine) == []
    finally:
        images = await _engine("images", "-q", "--filter", f"label=orion.name={namespace}")
        if images:
            await _engine("rmi", "-f", *dict.fromkeys(images))


async def _play(stage: Stage, namespace: str) -> None:
    ts = await stage.client.say("@Orion run: id -u; echo 4711 > notes")
    answer = await stage.answer(ts, timeout_s=MADE_S)
    assert "10001" in text_of(answer)
    assert "1 file changed" in json.dumps(answer["blocks"])
    second = await stage.client.say("@Orion run: cat notes", thread_ts=ts)
    assert "4711" in text_of(await stage.answer(second, thread_ts=ts))
    assert len(stage.orion.log_lines("sandbox.attached")) == 1
    assert len(await _containers(namespace)) == 1

    slow = await stage.client.say("@Orion !slow 60")
    await stage.client.wait_for_reply(slow, lambda reply: "I write slowly" in text_of(reply))
    await stage.client.say("stop", thread_ts=slow)
    stopped = await stage.answer(slow)
    assert "Stopped by" in json.dumps(stopped["blocks"])

    third = await stage.client.say("@Orion ! !slow 6", thread_ts=ts)
    await stage.client.wait_for_reply(
        ts, lambda reply: reply["ts"] > third and "I write slowly" in text_of(reply)
    )
    await stage.orion.kill9()
    left = await _containers(namespace)
    assert left != []
    await stage.orion.start()
    await stage.answer(third, thread_ts=ts, timeout_s=60)
    assert (await stage.record(third)).attempt == 2
    assert (await stage.record(third)).result.resumed == "repeated"
    assert not set(left) & set(await _containers(namespace))
    last = await stage.client.say("@Orion run: cat notes", thread_ts=ts)
    assert "4711" in text_of(await stage.answer(last, thread_ts=ts))

    deployed = await stage.client.say("@Orion !slow 15")  # longer than an orderly end waits
    await stage.client.wait_for_reply(deployed, lambda reply: "I write slowly" in text_of(reply))
    assert await stage.orion.terminate() == 0
    await stage.orion.start()
    assert "press Stop" in text_of(await stage.answer(deployed))
    assert (await stage.record(deployed)).state is RunState.SUCCEEDED


async def _attach(stage: Stage, namespace: str) -> None:
    """An agent that works while the service is away is followed to its end: what it did is done once."""
    ts = await stage.client.say("@Orion hello")
    await stage.answer(ts, timeout_s=MADE_S)
    fourth = await stage.client.say(
        "@Orion run: echo once >> count; sleep 12; wc -l < count", thread_ts=ts
    )
    await stage.client.wait_for_reply(
        ts, lambda reply: reply["ts"] > fourth and "sleep 12" in json.dumps(reply["blocks"])
    )
    await asyncio.sleep(2)
    await stage.orion.kill9()
    (container,) = await _containers(namespace)
    await stage.orion.start()
    assert "1\n" in text_of(await stage.answer(fourth, thread_ts=ts, timeout_s=60))
    record = await stage.record(fourth)
    assert (record.attempt, record.result.resumed) == (2, "attached")
    assert record.result.changes is not None
    assert container in await _containers(namespace)
    _code, shown = await stage.cli("runs", "show", record.id)
    assert "attached" in shown

    # Whoever stops it is obeyed, also when that is heard before anybody has attached to it.
    fifth = await stage.client.say("@Orion run: sleep 300", thread_ts=ts)
    await stage.client.wait_for_reply(
        ts, lambda reply: reply["ts"] > fifth and "sleep 300" in json.dumps(reply["blocks"])
    )
    await asyncio.sleep(2)
    await stage.orion.kill9()
    await stage.orion.start()
    await stage.client.say("stop", thread_ts=ts)
    stopped = await stage.answer(fifth, thread_ts=ts)
    assert "Stopped by" in json.dumps(stopped["blocks"])
    async with asyncio.timeout(10):
        while await _sleepers(namespace):
            await asyncio.sleep(0.2)


async def _sleepers(namespace: str) -> list[str]:
    """Processes of the stopped command, in whatever container is left."""
    found = []
    for container in await _containers(namespace):
        top = await _engine("top", container, "-eo", "pid,args")
        found += [word for word in top if word == "300"]
    return found


async def _visit(stage: Stage, namespace: str) -> None:
    """A person in the kept sandbox, and in one left running for the next run; the list as its provider sees it."""
    ts = await stage.client.say("@Orion run: echo 4711 > notes")
    await stage.answer(ts)
    row = await _row(stage)
    name, container = row["name"], row["container_name"]
    assert (row["provider"], row["status"]) == ("docker", "running")
    assert container in await _engine("ps", "--format", "{{.Names}}")
    async with sitting_at(stage, "sandboxes", "shell", name) as person:
        await person.sees(f"in its sandbox, {container}")
        await person.types("stty size; id -u; env | grep -c -i -e token -e api_key\n")
        await person.sees("33 101\r\n10001\r\n0\r\n")
        await person.types("sh -c 'echo sleeping; exec sleep 300'; echo by hand >> notes; exit 3\n")
        await person.sees("sleeping\r\n")
        person.presses_ctrl_c()
        await person.types("echo by hand >> notes; exit 3\n")
        assert await person.leaves() == 3
        assert f"{name}: saved" in person.shown
    second = await stage.client.say("@Orion run: cat notes", thread_ts=ts)
    assert "4711\nby hand" in text_of(await stage.answer(second, thread_ts=ts))

    code, said = await stage.cli("sandboxes", "resume", name, "--detached")
    assert (code, "is running already" in said) == (0, True)
    assert (await stage.cli("sandboxes", "stop", name))[0] == 0
    code, said = await stage.cli("sandboxes", "resume", name, "--detached")
    assert code == 0
    left = await _row(stage)
    assert left["status"] == "running"
    assert said == f"{name}: running in {left['container_name']}\n"
    code, said = await script(stage, name, "cat notes; (setsid sleep 301 &) ; echo left > left")
    assert (code, "by hand" in said) == (0, True)
    assert await stage.orion.terminate() == 0
    await stage.orion.start()
    third = await stage.client.say("@Orion run: cat left", thread_ts=ts)
    assert "left" in text_of(await stage.answer(third, thread_ts=ts))
    assert (await stage.record(third)).sandbox_id == left["sandbox_id"]

    assert (await _row(stage, ORION_SANDBOX="local"))["status"] == "running"
    away = await _row(stage, DOCKER_HOST="unix:///nowhere/docker.sock")
    assert (away["status"], away["sandbox_id"]) == ("unknown", left["sandbox_id"])
    await _engine("kill", left["container_name"])
    gone = await _row(stage)
    assert (gone["status"], gone["sandbox_id"], gone["exit_code"]) == ("stopped", "", None)
    saved = ("images", "-q", "--filter", f"label=orion.snapshot={gone['snapshot']}")
    assert await _engine(*saved) != []
    code, said = await stage.cli("sandboxes", "rm", name, DOCKER_HOST="unix:///nowhere/docker.sock")
    assert code == 1
    assert "Docker" in said
    assert (await stage.cli("sandboxes", "rm", name, ORION_SANDBOX="local"))[0] == 0
    assert await _engine(*saved) == []
    assert namespace in container


async def _row(stage: Stage, **settings: str) -> JsonObject:
    """Of the thread that was used last."""
    rows: list[JsonObject] = json.loads(
        (await stage.cli("sandboxes", "list", "--json", **settings))[1]
    )
    return rows[0]
