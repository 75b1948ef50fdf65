"""What a thousand runs at once cost: memory of the one process, and acknowledgements meanwhile."""

import asyncio
import re
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import httpx

from tests.bench.acks import MEMORY_DIRECTORY, load, open_instant_orion, open_slack
from tests.bench.processes import Server
from tests.bench.scale import Bench
from tests.bench.table import Row
from tests.plain_http import NO_TLS

FILL_RATE = 150.0
"""Events per second until all have been sent; Orion begins 10 runs a second."""
STARTS_PER_S = 10.0
FILL_SLACK_S = 25.0
SETTLE_S = 5.0
"""For the few events more than runs to be placed."""
IDLE_S = 4.0
MEMORY_TARGET_MIB = 400.0
ACK_TARGET_MS = 60.0


async def measure_crowd(bench: Bench, *, bolt_p99_ms: float | None) -> Sequence[Row]:
    """Fills the process with runs whose agents say nothing, weighs it, and sends more events that have to wait."""
    crowd, seconds = bench.scale.crowd, bench.scale.crowd_seconds
    parent = MEMORY_DIRECTORY if MEMORY_DIRECTORY.is_dir() else bench.directory
    with tempfile.TemporaryDirectory(dir=parent) as directory:
        place = replace(bench, directory=Path(directory))
        async with (
            open_slack(bench) as slack,
            open_instant_orion(
                place, api_url=f"{slack.url}/api/", holds=True, capacity=crowd
            ) as orion,
        ):
            await load(bench, orion, "open", crowd / FILL_RATE + 0.2, rate=FILL_RATE)
            await _until_running(orion, crowd)
            await asyncio.sleep(SETTLE_S)
            before_s = orion.cpu_s
            await asyncio.sleep(IDLE_S)
            processor = 100 * (orion.cpu_s - before_s) / IDLE_S
            memory_mib = orion.memory_mib
            acks = await load(bench, orion, "open", seconds)
            memory_mib = max(memory_mib, orion.memory_mib)
            running = await _running(orion)
    going, rate = f"{crowd} runs going", f"{bench.scale.ack_rate:.0f} events/s"
    return (
        Row(figure="runs in flight at once", unit="", orion=running, sign=">=", target=crowd),
        Row(
            figure=f"memory, {going} (fake sandbox)",
            unit="MiB",
            orion=memory_mib,
            target=MEMORY_TARGET_MIB,
        ),
        Row(figure=f"processor, {going}, no other events", unit="%", orion=processor),
        Row(
            figure=f"ack p99, {rate}, {going}, database in memory",
            unit="ms",
            orion=acks.p99_ms,
            baseline=bolt_p99_ms,
            target=ACK_TARGET_MS,
        ),
        Row(
            figure=f"events not acknowledged with 200, {going}",
            unit="",
            orion=acks.failed,
            target=0,
        ),
    )


async def _until_running(orion: Server, crowd: int) -> None:
    """Or until the time for it is over: the table then says how many there were."""
    with suppress(TimeoutError):
        async with asyncio.timeout(crowd / STARTS_PER_S + FILL_SLACK_S):
            while await _running(orion) < crowd:
                await asyncio.sleep(0.5)


async def _running(orion: Server) -> int:
    async with httpx.AsyncClient(verify=NO_TLS, trust_env=False) as http:
        text = (await http.get(f"{orion.url}/metrics")).text
    found = re.search(r'^orion_runs\{state="running"\} (\d+)', text, re.MULTILINE)
    return int(found.group(1)) if found else 0
