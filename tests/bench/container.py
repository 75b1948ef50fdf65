"""The image: how large it is, and how soon a container of it is healthy."""

import asyncio
from collections.abc import Sequence
from statistics import median

from tests.bench.scale import Bench
from tests.bench.table import Row
from tests.e2e.container import BUILD_TIMEOUT_S, OrionContainer, build_image
from tests.e2e.docker_world import inspect, open_docker_orion, prepared_image
from tests.e2e.harness import open_world
from tests.e2e.orion_process import new_state_dir

HEALTHY_TIMEOUT_S = 60.0
STARTS = 3


async def measure_container(bench: Bench) -> Sequence[Row]:
    """Starts on a state directory that is there, which is what a restart and a deploy wait for."""
    async with asyncio.timeout(BUILD_TIMEOUT_S):
        image = await asyncio.to_thread(build_image)
        prepared = await asyncio.to_thread(prepared_image)
    (built,) = await asyncio.to_thread(inspect, "image", [image])
    waits_s = []
    directory = new_state_dir(bench.directory)
    async with (
        open_world() as world,
        open_docker_orion(world, directory, prepared, OrionContainer) as stage,
    ):
        orion = stage.orion
        assert isinstance(orion, OrionContainer)
        for start in range(STARTS):
            if start:
                await orion.start()
            waits_s.append(await orion.until_healthy(timeout_s=HEALTHY_TIMEOUT_S))
            await orion.stop()
    return (
        Row(figure="image", unit="MB", orion=built["Size"] / 1e6, target=400),
        Row(figure="container to healthy", unit="s", orion=median(waits_s), target=5),
    )
