"""What Orion adds in a cloud: how long of a run no call to the provider is going, which is what the SDK by hand would leave out."""

import os
from collections.abc import Sequence
from statistics import median
from urllib.parse import urlsplit

from app.runs.testing import Run
from app.store.runs import open_store
from tests.bench.processes import BenchError, open_server
from tests.bench.scale import Bench
from tests.bench.table import Row
from tests.bench.turns import FIRST_ANSWER_TIMEOUT_S, Scene, ask_in, open_scene
from tests.e2e.clouds import CLOUDS, Cloud
from tests.emulators.machine_network import Address
from tests.fake_slack_client import FakeSlackClient, open_client

TARGET_S = 0.15


def why_no_machines() -> str | None:
    """Why no cloud can be emulated here, if so."""
    return None if os.geteuid() == 0 else "emulated machines are booted by root only"


async def measure_clouds(bench: Bench) -> Sequence[Row]:
    """Medians, each question in a thread of its own; the provider is an emulator, driven by the vendor's own SDK."""
    return [row for name in CLOUDS for row in await _measure(bench, name)]


async def _measure(bench: Bench, name: str) -> Sequence[Row]:
    async with open_scene(bench) as scene:
        ports = (scene.port, urlsplit(scene.world.url).port or 0)
        with CLOUDS[name]([Address(host="127.0.0.1", port=port) for port in ports]) as cloud:
            settings = scene.settings(traces=False) | dict(cloud.settings)
            settings["ORION_PUBLIC_URL"] = f"http://127.0.0.1:{scene.port}"
            async with (
                open_server(
                    ("app.cli", "serve"),
                    port=scene.port,
                    directory=bench.directory,
                    settings=settings,
                ),
                open_client(scene.world.url) as person,
            ):
                await ask_in(person, timeout_s=FIRST_ANSWER_TIMEOUT_S)
                found = [await _turn(scene, person, cloud) for _ in range(bench.scale.turn_pairs)]
    whole_s, own_s = (median(values) for values in zip(*found, strict=True))
    return (
        Row(figure=f"mention to answer, emulated {name}", unit="s", orion=whole_s),
        Row(
            figure=f"of its run, {name}: no call to the provider is going",
            unit="s",
            orion=own_s,
            target=TARGET_S,
        ),
    )


async def _turn(scene: Scene, person: FakeSlackClient, cloud: Cloud) -> tuple[float, float]:
    ts, whole_s = await ask_in(person, timeout_s=FIRST_ANSWER_TIMEOUT_S)
    run = await _run_of(scene, ts)
    if run.started_at is None or run.ended_at is None:
        raise BenchError(f"the run of {ts} has not ended")
    window = (run.started_at.timestamp(), run.ended_at.timestamp())
    return whole_s, cloud.spans.free_s(window)


async def _run_of(scene: Scene, ts: str) -> Run:
    async with open_store(scene.state_dir / "orion.db") as store:
        found = [run for run in await store.recent(limit=20) if run.request.message_ts == ts]
    if len(found) != 1:
        raise BenchError(f"{len(found)} runs of the message {ts}")
    return found[0]
