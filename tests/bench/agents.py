"""What Orion adds to a turn of each agent's own command line, against the same command by hand."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from sandbox_runtime.provider import SandboxProvider
from sandbox_runtime.providers.docker import DockerSettings
from sandbox_runtime.providers.docker.provider import DockerProvider
from sandbox_runtime.providers.local.provider import LocalProvider
from sandbox_runtime.types import SnapshotId
from tests.bench.by_hand import open_by_hand
from tests.bench.docker import FIRST_ANSWER_TIMEOUT_S, docker_settings
from tests.bench.pool import until_waiting
from tests.bench.processes import open_server
from tests.bench.scale import Bench
from tests.bench.table import Row
from tests.bench.turns import Scene, ask_in, open_scene
from tests.docker_image import ensure_image
from tests.e2e.docker_world import lend_environment, namespace_of, prepared_image, remove_images
from tests.e2e.orion_process import put_environments
from tests.e2e.prepared import VENDORS, prepared_state_dir
from tests.fake_slack_client import open_client

AGENTS: Final = ("claude", *VENDORS)


async def measure_agents(bench: Bench) -> Sequence[Row]:
    """Local: medians of alternating pairs, for each command line that there is."""
    rows: list[Row] = []
    for agent in AGENTS:
        prepared = await asyncio.to_thread(prepared_state_dir, agent)
        async with open_scene(bench) as scene:
            by_hand_dir = bench.directory / f"{agent}-local"
            for state_dir in (scene.state_dir, by_hand_dir):
                await asyncio.to_thread(put_environments, prepared, state_dir)
            settings = scene.settings(traces=False)
            async with LocalProvider(by_hand_dir) as provider:
                (environment,) = [
                    snapshot
                    for snapshot in await provider.list_snapshots()
                    if (snapshot.name or "").startswith(f"{agent}-")
                ]
                at = _Place(name="local", provider=provider, snapshot_id=environment.id)
                rows += await _measure(scene, at, agent, settings)
    return rows


async def measure_agents_in_docker(bench: Bench) -> Sequence[Row]:
    """The same in Docker."""
    image = await asyncio.to_thread(ensure_image)
    rows: list[Row] = []
    for agent in AGENTS:
        prepared = await asyncio.to_thread(prepared_image, agent)
        async with open_scene(bench) as scene:
            namespace = namespace_of(scene.state_dir)
            await asyncio.to_thread(lend_environment, prepared, namespace)
            try:
                async with DockerProvider(DockerSettings(name=namespace, image=image)) as provider:
                    snapshot_id = SnapshotId(prepared.rpartition(":")[2])
                    at = _Place(name="Docker", provider=provider, snapshot_id=snapshot_id)
                    rows += await _measure(scene, at, agent, docker_settings(scene, image))
            finally:
                await asyncio.to_thread(remove_images, namespace)
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    name: str
    provider: SandboxProvider
    snapshot_id: SnapshotId


async def _measure(
    scene: Scene, at: _Place, agent: str, settings: Mapping[str, str]
) -> Sequence[Row]:
    async with (
        open_client(scene.world.url) as person,
        open_server(
            ("app.cli", "serve"),
            port=scene.port,
            directory=scene.bench.directory,
            settings={
                **settings,
                "ORION_AGENT": agent,
                "ORION_WARM_POOL_SIZE": "1",
            },  # as by default
        ) as orion,
        open_by_hand(scene, at.provider, at.snapshot_id, agent=agent) as by_hand,
    ):
        thread, _ = await ask_in(person, timeout_s=FIRST_ANSWER_TIMEOUT_S)
        await by_hand(is_fresh=True)
        new_s, fresh_s, kept_s, warm_s = [], [], [], []
        for _ in range(scene.bench.scale.turn_pairs):
            await until_waiting(orion)
            new_s.append((await ask_in(person))[1])
            await until_waiting(orion)
            fresh_s.append(await by_hand(is_fresh=True))
            kept_s.append((await ask_in(person, thread_ts=thread))[1])
            warm_s.append(await by_hand(is_fresh=False))
    return (
        *_rows(f"{agent}, {at.name}, new thread", new_s, fresh_s),
        *_rows(f"{agent}, {at.name}, follow-up", kept_s, warm_s),
    )


def _rows(what: str, orion_s: Sequence[float], bare_s: Sequence[float]) -> tuple[Row, Row]:
    """By hand the sandbox is there; for a new thread with nothing of the CLI in its home, as Orion's has, which waited in the pool."""
    return (
        Row(
            figure=f"mention to answer, {what}",
            unit="s",
            orion=median(orion_s),
            baseline=median(bare_s),
        ),
        Row(
            figure=f"of which Orion's own, {what}",
            unit="s",
            orion=median(orion_s) - median(bare_s),
            target=1.0,
        ),
    )
