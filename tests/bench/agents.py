"""What Orion adds in Docker to a turn of each agent's own command line, against the same command by hand."""

import asyncio
from collections.abc import Sequence
from statistics import median
from typing import Final

from app.playground.client import open_client
from tests.bench.by_hand import open_by_hand
from tests.bench.docker import FIRST_ANSWER_TIMEOUT_S, docker_settings
from tests.bench.pool import until_waiting
from tests.bench.processes import open_server
from tests.bench.scale import Bench
from tests.bench.table import Row
from tests.bench.turns import ask_in, open_scene
from tests.docker_image import ensure_image
from tests.e2e.docker_world import lend_environment, namespace_of, prepared_image, remove_images
from tests.rotation import VENDORS

AGENTS: Final = ("claude", *VENDORS)


async def measure_agents(bench: Bench) -> Sequence[Row]:
    """Medians of alternating pairs, for each command line that there is."""
    image = await asyncio.to_thread(ensure_image)
    rows: list[Row] = []
    for agent in AGENTS:
        rows += await _measure(bench, image, agent)
    return rows


async def _measure(bench: Bench, image: str, agent: str) -> Sequence[Row]:
    prepared = await asyncio.to_thread(prepared_image, agent)
    async with open_scene(bench) as scene, open_client(scene.world.url) as person:
        namespace = namespace_of(scene.state_dir)
        await asyncio.to_thread(lend_environment, prepared, namespace)
        try:
            async with (
                open_server(
                    ("app.cli", "serve"),
                    port=scene.port,
                    directory=bench.directory,
                    settings=docker_settings(scene, image)
                    | {"ORION_AGENT": agent, "ORION_WARM_POOL_SIZE": "1"},  # as by default
                ) as orion,
                open_by_hand(scene, image, prepared, agent=agent) as by_hand,
            ):
                thread, _ = await ask_in(person, timeout_s=FIRST_ANSWER_TIMEOUT_S)
                await by_hand(is_fresh=True)
                new_s, fresh_s, kept_s, warm_s = [], [], [], []
                for _ in range(bench.scale.turn_pairs):
                    await until_waiting(orion)
                    new_s.append((await ask_in(person))[1])
                    await until_waiting(orion)
                    fresh_s.append(await by_hand(is_fresh=True))
                    kept_s.append((await ask_in(person, thread_ts=thread))[1])
                    warm_s.append(await by_hand(is_fresh=False))
        finally:
            await asyncio.to_thread(remove_images, namespace)
    return (
        *_rows(agent, "new thread", new_s, fresh_s),
        *_rows(agent, "follow-up", kept_s, warm_s),
    )


def _rows(
    agent: str, place: str, orion_s: Sequence[float], bare_s: Sequence[float]
) -> tuple[Row, Row]:
    """By hand the sandbox is there; for a new thread with nothing of the CLI in its home, as Orion's has, which waited in the pool."""
    return (
        Row(
            figure=f"mention to answer, {agent} in Docker, {place}",
            unit="s",
            orion=median(orion_s),
            baseline=median(bare_s),
        ),
        Row(
            figure=f"of which Orion's own, {agent}, {place}",
            unit="s",
            orion=median(orion_s) - median(bare_s),
            target=1.0,
        ),
    )
