"""The whole of `compose.yaml`, with the commands of `docs/operate.md`: who answers, who takes over, what the proxies let through, and a restore."""

import asyncio
import json
import secrets
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from app.playground.slack.types import TEAM_ID, JsonObject
from app.playground.stack import orion_environment
from app.runs.testing import run_id_for
from tests.docker_image import ensure_image
from tests.e2e.compose import Composed, open_compose, written
from tests.e2e.container import BASE, build_image
from tests.e2e.docker_world import docker, lend_environment, objects_of, prepared_image
from tests.e2e.harness import World, has_stop_button, open_world, run_of, text_of
from tests.forking import REPOSITORY
from tests.plain_http import NO_TLS
from tests.ports import free_port, own_address

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.compose,
    pytest.mark.docker,
    pytest.mark.long,
    pytest.mark.timeout(900),
]

ANSWERED_WITHIN_S = 120.0
TAKEN_OVER_WITHIN_S = 60.0
_ASK = """
import http.client, json, sys
for line in json.loads(sys.argv[1]):
    connection = http.client.HTTPConnection("engine", 2375, timeout=10)
    connection.request(*line)
    print(connection.getresponse().status)
"""
_NAMESPACE = (
    "docker compose exec -T postgres psql --username=orion --no-align --tuples-only"
    " --command='SELECT namespace FROM orion_installation'"
)
REFUSED = (
    ("GET", "/v1.41/secrets"),
    ("GET", "/v1.41/networks"),
    ("GET", "/v1.41/containers/self/logs"),
    ("POST", "/v1.41/images/create?fromImage=busybox"),
    ("POST", "/v1.41/containers/self/update"),
    ("POST", "/v1.41/volumes/create"),
    ("POST", "/v1.41/swarm/init"),
    ("POST", "/v1.41/containers/prune"),
    ("DELETE", "/v1.41/networks/bridge"),
    ("GET", "/v1.41/containers/../secrets"),
    ("GET", "/"),
)
ALLOWED = (("GET", "/version"), ("GET", "/v1.41/info"), ("GET", "/v1.41/containers/json"))


async def test_the_whole_of_it(tmp_path: Path) -> None:
    async with _composed(tmp_path) as (composed, world, url):
        await _answers(composed, world)
        await _leaves_the_others(composed)
        await _lets_through(composed, url)
        await _takes_over(composed, world)
        await _restores(composed, world)
        await _ends(composed)


async def test_it_is_read_and_built(tmp_path: Path) -> None:
    """Compose itself takes the file, Langfuse's profile included, and says what is missing; `build` makes the image, of the base and by the name that `.env` has."""
    shutil.copy(REPOSITORY / "compose.yaml", tmp_path)
    composed = Composed(directory=tmp_path, project=f"orion-test-{secrets.token_hex(4)}")
    (tmp_path / ".env").touch()
    with pytest.raises(AssertionError, match="letters and digits"):
        await composed.sh("docker compose config")
    name = f"{composed.project}:built"
    base = await asyncio.to_thread(ensure_image, BASE, wanted=())
    values = {"POSTGRES_PASSWORD": "4711", "SERVICE_IMAGE": name, "BASE_IMAGE": base}
    (tmp_path / ".env").write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    assert "langfuse/langfuse-worker" in await composed.sh(
        "docker compose --profile langfuse config"
    )
    # The sources are elsewhere, and so is the network that packages come by.
    build = {"build": {"context": str(REPOSITORY), "network": "host"}}
    override = {"services": dict.fromkeys(("serve", "worker"), build)}
    (tmp_path / "compose.override.yaml").write_text(json.dumps(override))
    (_, (build_it, *_)) = written("With compose")[-2:]
    assert build_it == "docker compose build"
    try:
        await composed.sh(build_it)
        assert "worker" in await composed.sh(f"docker run --rm {name} --help")
    finally:
        await composed.sh(f"docker image rm --force {name}")


@asynccontextmanager
async def _composed(tmp_path: Path) -> AsyncIterator[tuple[Composed, World, str]]:
    """Everything up, as the page says, with an agent's environment that was made before."""
    await asyncio.to_thread(build_image)
    prepared = await asyncio.to_thread(prepared_image)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    async with open_world(host=own_address()) as world:
        settings = {
            **orion_environment(world.url, world.config),
            "POSTGRES_PASSWORD": secrets.token_hex(24),
            "PUBLISH": f"127.0.0.1:{port}",
            "ORION_DOCKER_IMAGE": await asyncio.to_thread(ensure_image),
            "ORION_WARM_POOL_SIZE": "1",
            "ORION_MAX_CONCURRENT_RUNS": "2",
            "ORION_RUNS_PER_USER_HOUR": "1000",
            "ORION_SESSION_KEEP_S": "0",
        }
        project = f"orion-test-{secrets.token_hex(4)}"
        async with open_compose(tmp_path, settings, project=project) as composed:
            await composed.sh("docker compose up --detach postgres serve")
            await _until_healthy(composed, "serve")
            namespace = (await composed.sh(_NAMESPACE)).strip()
            await asyncio.to_thread(lend_environment, prepared, namespace)
            composed.namespaces.append(namespace)
            (*_, (*_, check, up)) = written("With compose")
            assert "ok   slack" in await composed.sh(check)
            await composed.sh(up)
            world.fake_slack.events_url = f"{url}/slack/events"
            for service in ("serve", "worker"):
                await _until_healthy(composed, service)
            yield composed, world, url


async def _until_healthy(composed: Composed, service: str) -> None:
    """Both of it."""
    async with asyncio.timeout(90):
        while True:
            ids = await composed.containers(service)
            states = [
                json.loads(docker("container", "inspect", one))[0]["State"]["Health"]["Status"]
                for one in ids
            ]
            if states == ["healthy"] * 2:
                return
            await asyncio.sleep(0.5)


def _run_id(world: World, ts: str) -> str:
    channel = world.fake_slack.workspace.channel("general").id
    return run_id_for(team=TEAM_ID, channel=channel, message_ts=ts)


async def _answer(world: World, ts: str, *, thread_ts: str | None = None) -> str:
    """What the final message says to the question `ts`."""
    run_id = _run_id(world, ts)

    def is_final(reply: JsonObject) -> bool:
        return run_of(reply) == run_id and not has_stop_button(reply)

    return text_of(
        await world.client.wait_for_reply(thread_ts or ts, is_final, timeout_s=ANSWERED_WITHIN_S)
    )


async def _answers(composed: Composed, world: World) -> None:
    """Mentions are answered through balancer, front, worker, proxy and engine, by both workers."""
    asked = [await world.client.say(f"@Orion run: id -u; sleep 8; echo {n}") for n in range(4)]
    for n, ts in enumerate(asked):
        answer = await _answer(world, ts)
        assert ("10001" in answer, str(n) in answer) == (True, True), answer
    logs = [await composed.log(container) for container in await composed.containers("worker")]
    assert all("run.started" in log for log in logs)
    for service in ("serve", "worker"):
        assert "Traceback" not in await composed.sh(f"docker compose logs --no-color {service}")


async def _leaves_the_others(composed: Composed) -> None:
    """A worker that starts again removes no sandbox of one that lives."""
    waiting = await _until_sandboxes(composed, 2)
    _, second = await composed.containers("worker")
    docker("restart", "--time", "45", second)
    await _until_healthy(composed, "worker")
    now = await _until_sandboxes(composed, 2)
    assert len(waiting & now) == 1


async def _until_sandboxes(composed: Composed, count: int) -> set[str]:
    """Ids of all that it has, once there are so many; the engine may have others' as well."""
    (namespace,) = composed.namespaces
    async with asyncio.timeout(60):
        while True:
            found = objects_of(namespace, "ps")
            if len(found) == count:
                return set(found)
            await asyncio.sleep(0.5)


async def _lets_through(composed: Composed, url: str) -> None:
    """The engine's proxy refuses what Orion never asks; the balancer shows Slack's address and nothing of the operator's."""
    (worker, *_) = await composed.containers("worker")
    asks = json.dumps([*REFUSED, *ALLOWED])
    argv = ("exec", worker, "/opt/orion/bin/python", "-c", _ASK, asks)
    statuses = (await asyncio.to_thread(docker, *argv)).split()
    assert statuses == ["403"] * len(REFUSED) + ["200"] * len(ALLOWED)
    (front, *_) = await composed.containers("serve")
    process = await asyncio.to_thread(
        docker,
        "exec",
        front,
        "/opt/orion/bin/python",
        "-c",
        "import socket\ntry: print(socket.gethostbyname('engine'))\nexcept OSError: print('no')",
    )
    assert process == "no\n"
    async with httpx.AsyncClient(verify=NO_TLS, trust_env=False, base_url=url, timeout=10) as http:
        assert (await http.get("/healthz")).status_code == 200
        assert (await http.post("/slack/events", content=b"{}")).status_code == 401
        for path in ("/metrics", "/readyz", "/slack", "/slack/events/x"):
            assert (await http.get(path)).status_code == 404


async def _takes_over(composed: Composed, world: World) -> None:
    """kill -9 of the worker that answers, and of a front: the others go on, and nobody is told twice."""
    ts = await world.client.say("@Orion !slow 8")
    await world.client.wait_for_reply(ts, lambda reply: "I write slowly" in text_of(reply))
    workers = await composed.containers("worker")
    (busy,) = [one for one in workers if _run_id(world, ts) in await composed.log(one)]
    (front, *_) = await composed.containers("serve")
    docker("kill", busy, front)
    async with asyncio.timeout(TAKEN_OVER_WITHIN_S):
        await _answer(world, ts)
    assert "4711" in await _answer(world, await world.client.say("@Orion run: echo 4711"))
    replies = await world.client.replies(ts)
    assert len([reply for reply in replies if reply["is_bot"]]) == 1
    docker("start", busy, front)


async def _restores(composed: Composed, world: World) -> None:
    """Back up, lose a record, restore, by the commands of the page: what was asked before is known again."""
    ts = await world.client.say("@Orion run: echo 4711 > notes")
    await _answer(world, ts)
    (back_up,) = written("Back up")
    for command in back_up:
        await composed.sh(command)
    psql = "docker compose exec -T postgres psql --username=orion --quiet --command="
    await composed.sh(f"{psql}'TRUNCATE orion_runs CASCADE'")
    (restore,) = written("Restore")
    for command in restore:
        await composed.sh(command)
    for service in ("serve", "worker"):
        await _until_healthy(composed, service)
    listed = await composed.sh("docker compose exec -T worker orion runs list --json")
    assert len(json.loads(listed)) == 7
    second = await world.client.say("@Orion run: cat notes", thread_ts=ts)
    assert "4711" in await _answer(world, second, thread_ts=ts)
    (upgrade,) = written("Upgrade")
    fetch, build, *rest = upgrade
    assert (fetch, build) == ("git pull", "docker compose build")  # it is built
    for command in rest:
        await composed.sh(command)
    for service in ("serve", "worker"):
        await _until_healthy(composed, service)
    assert "4711" in await _answer(world, await world.client.say("@Orion run: echo 4711"))


async def _ends(composed: Composed) -> None:
    """All in order, within the grace."""
    ids = [
        one for name in ("serve", "worker", "postgres") for one in await composed.containers(name)
    ]
    await composed.sh("docker compose stop")
    for state in json.loads(docker("container", "inspect", *ids)):
        assert state["State"]["ExitCode"] == 0, state["Name"]
