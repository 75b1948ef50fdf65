"""What a prepared sandbox saves: from a message to the first request that the model sees of it, with a pool and without."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from statistics import median

import httpx

from tests.bench.processes import BenchError, Server, open_server
from tests.bench.scale import Bench
from tests.bench.table import Row
from tests.bench.turns import (
    ANSWER_TIMEOUT_S,
    FIRST_ANSWER_TIMEOUT_S,
    QUESTION,
    Scene,
    ask,
    open_scene,
)
from tests.docker_image import ensure_image
from tests.e2e.docker_world import lend_environment, namespace_of, prepared_image, remove_images
from tests.fake_slack_client import FakeSlackClient, open_client
from tests.plain_http import NO_TLS

POLL_S = 0.05
SETTLE_S = 0.5
"""After an answer, until the run has let go of its sandbox."""
TURNS_PER_PAIR = 2


async def measure_pool(bench: Bench) -> Sequence[Row]:
    """Local."""
    async with open_scene(bench) as scene:
        return (await _measure(scene, {}, figure="local", target_s=0.3),)


async def measure_docker_pool(bench: Bench) -> Sequence[Row]:
    """Docker, each in a container of its own."""
    image = await asyncio.to_thread(ensure_image)
    prepared = await asyncio.to_thread(prepared_image)
    async with open_scene(bench) as scene:
        namespace = namespace_of(scene.state_dir)
        await asyncio.to_thread(lend_environment, prepared, namespace)
        settings = {"ORION_SANDBOX": "docker", "ORION_DOCKER_IMAGE": image}
        try:
            return (await _measure(scene, settings, figure="Docker", target_s=0.4),)
        finally:
            await asyncio.to_thread(remove_images, namespace)


async def _measure(scene: Scene, settings: dict[str, str], *, figure: str, target_s: float) -> Row:
    count = scene.bench.scale.turn_pairs * TURNS_PER_PAIR
    async with open_client(scene.world.url) as person:
        async with open_orion(scene, settings, pool_size=0):
            await ask(person, timeout_s=FIRST_ANSWER_TIMEOUT_S)
            cold_s = [await first_request(scene, person) for _ in range(count)]
        async with open_orion(scene, settings, pool_size=1) as orion:
            await until_waiting(orion)
            await ask(person)
            warm_s = []
            for _ in range(count):
                await until_waiting(orion)
                warm_s.append(await first_request(scene, person))
    return Row(
        figure=f"message to first model request, warm, {figure}",
        unit="ms",
        orion=1000 * median(warm_s),
        baseline=1000 * median(cold_s),
        target=1000 * target_s,
    )


@asynccontextmanager
async def open_orion(
    scene: Scene, settings: dict[str, str], *, pool_size: int
) -> AsyncIterator[Server]:
    """`orion serve` with that many prepared sandboxes, none of which is kept for a thread's next message."""
    pool = {"ORION_WARM_POOL_SIZE": str(pool_size), "ORION_SESSION_KEEP_S": "0"}
    async with open_server(
        ("app.cli", "serve"),
        port=scene.port,
        directory=scene.bench.directory,
        settings=scene.settings(traces=False) | settings | pool,
    ) as server:
        yield server


async def until_waiting(orion: Server) -> None:
    """Its pool of one is full."""
    async with (
        asyncio.timeout(FIRST_ANSWER_TIMEOUT_S),
        httpx.AsyncClient(verify=NO_TLS, base_url=orion.url, trust_env=False) as http,
    ):
        while "1 of 1 wait" not in (await http.get("/readyz")).json()["pool"]["detail"]:
            await asyncio.sleep(POLL_S)


async def first_request(scene: Scene, person: FakeSlackClient) -> float:
    """Seconds from a message, in a thread of its own, to the model's first request of it; returns after its answer."""
    root = await person.say(f"@Orion {QUESTION}")
    await person.wait_for_reply(
        root, lambda reply: "offline model" in str(reply["text"]), timeout_s=ANSWER_TIMEOUT_S
    )
    await asyncio.sleep(SETTLE_S)
    return await first_request_after(scene, root)


async def first_request_after(scene: Scene, ts: str) -> float:
    """Seconds from a message to the first request that the model got after it."""
    async with httpx.AsyncClient(verify=NO_TLS, base_url=scene.world.url, trust_env=False) as http:
        requests = (await http.get("/model/requests")).json()
    asked_at = [request["at"] for request in requests if request["at"] > float(ts)]
    if not asked_at:
        raise BenchError("the model was not asked")
    return float(min(asked_at)) - float(ts)
