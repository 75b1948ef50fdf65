"""What Orion adds on Docker: to an exec, against doing it by hand, and to the start of an agent."""

import asyncio
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from statistics import median

from sandbox_runtime import SandboxSpec, open_sandbox
from sandbox_runtime.providers.docker import DockerSettings
from sandbox_runtime.providers.docker.provider import DockerProvider
from tests.bench.by_hand import EXEC_TIMEOUT_S, container_name, run_program
from tests.bench.processes import BenchError, open_server
from tests.bench.scale import Bench
from tests.bench.table import Row
from tests.bench.turns import ANSWER_TIMEOUT_S, Scene, open_scene
from tests.docker_image import ensure_image, missing
from tests.e2e.docker_world import (
    namespace_of,
    remove_images,
)
from tests.fake_slack_client import FakeSlackClient, open_client

FIRST_ANSWER_TIMEOUT_S = 60.0
EXECS_PER_PAIR = 4
_BEGAN = re.compile(r"began at (\d+\.\d+)")


async def why_not() -> str | None:
    """Why nothing can be measured on Docker here, if so."""
    reason = missing()
    if reason is not None:
        return reason
    process = await asyncio.create_subprocess_exec(
        "docker",
        "info",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(EXEC_TIMEOUT_S):
            return "no engine answers" if await process.wait() else None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def measure_docker(bench: Bench) -> Sequence[Row]:
    """Medians of alternating pairs."""
    image = await asyncio.to_thread(ensure_image)
    return (
        await _measure_exec(bench, image),
        await _measure_start(bench, image),
    )


async def _measure_exec(bench: Bench, image: str) -> Row:
    settings = DockerSettings(name=f"bench-{secrets.token_hex(4)}", image=image)
    async with (
        DockerProvider(settings) as provider,
        open_sandbox(provider, SandboxSpec()) as sandbox,
    ):
        container = container_name(provider, sandbox)

        async def ours() -> None:
            await sandbox.exec(["true"], timeout_s=EXEC_TIMEOUT_S)

        async def bare() -> None:
            await run_program("docker", "exec", container, "true")

        ours_s, bare_s = await _pairs(bench.scale.turn_pairs * EXECS_PER_PAIR, ours, bare)
    return Row(
        figure="exec in a Docker sandbox, against `docker exec` (<= 2x)",
        unit="ms",
        orion=1000 * ours_s,
        baseline=1000 * bare_s,
        target=2 * 1000 * bare_s,
    )


async def _measure_start(bench: Bench, image: str) -> Row:
    """Each question in a thread of its own, so each agent in a container of its own."""
    async with open_scene(bench) as scene, open_client(scene.world.url) as person:
        try:
            settings = docker_settings(scene, image)
            async with open_server(
                ("tests.bench.clock",),
                port=scene.port,
                directory=bench.directory,
                settings=settings,
            ):
                await _began_after(person, timeout_s=FIRST_ANSWER_TIMEOUT_S)
                waits_s = [
                    await _began_after(person, timeout_s=ANSWER_TIMEOUT_S)
                    for _ in range(bench.scale.turn_pairs)
                ]
        finally:
            await asyncio.to_thread(remove_images, namespace_of(scene.state_dir))
    return Row(
        figure="message to running agent, Docker, no pool",
        unit="s",
        orion=median(waits_s),
        target=1.2,
    )


async def _began_after(person: FakeSlackClient, *, timeout_s: float) -> float:
    root = await person.say("@Orion when?")
    try:
        answer = await person.wait_for_reply(
            root, lambda reply: bool(_BEGAN.search(str(reply["text"]))), timeout_s=timeout_s
        )
    except TimeoutError as exc:
        raise BenchError(f"no answer of the clock: {exc.__notes__}") from exc
    began = _BEGAN.search(str(answer["text"]))
    return float(began[1] if began else "nan") - float(root)


async def _pairs(
    count: int, ours: Callable[[], Awaitable[None]], bare: Callable[[], Awaitable[None]]
) -> tuple[float, float]:
    took: tuple[list[float], list[float]] = ([], [])
    for _ in range(count):
        for times, act in zip(took, (ours, bare), strict=True):
            started = time.perf_counter()
            await act()
            times.append(time.perf_counter() - started)
    return median(took[0]), median(took[1])


def docker_settings(scene: Scene, image: str) -> dict[str, str]:
    return scene.settings(traces=False) | {
        "ORION_SANDBOX": "docker",
        "ORION_DOCKER_IMAGE": image,
    }
