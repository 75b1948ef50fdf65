"""How soon and how many events are acknowledged: Orion, which stores them first, against bare Bolt, which does not."""

import asyncio
import json
import os
import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Literal

from app.playground.slack.types import FakeSlackConfig
from tests.bench.load import WARM_UP_EVENTS, LoadPlan, LoadResult, percentile
from tests.bench.processes import BenchError, Server, open_server, run_to_end
from tests.bench.scale import Bench
from tests.bench.table import Row
from tests.ports import free_port
from tests.postgres import create_database, run_postgres

Kind = Literal["orion", "orion-memory", "orion-held", "front", "bolt"]
"""`orion-memory`: its database in memory, so that the disk is left out. `orion-held`: one place for runs and an agent that
never answers, so events are stored and placed, but not run. `front`: without work, on a PostgreSQL.
"""
MEMORY_DIRECTORY = Path("/dev/shm")  # noqa: S108 - Linux's file system in memory
SYNC_BYTES = 32 * 1024
"""About what one acknowledgement writes: eight pages."""
ENDING_S = 40.0
"""For the load process beside its measured seconds."""

PLACED_WITHIN_S = 60.0
"""After the load, all that was accepted."""

CONFIG = FakeSlackConfig()


async def measure_acks(bench: Bench) -> Sequence[Row]:
    """Acknowledgement latency in the open loop, and throughput in the closed one; medians over rounds."""
    scale = bench.scale
    opened: dict[Kind, list[LoadResult]] = {
        "orion": [],
        "orion-memory": [],
        "orion-held": [],
        "front": [],
        "bolt": [],
    }
    sync_s: list[float] = []
    closed: dict[Kind, list[LoadResult]] = {"orion": [], "bolt": []}
    cpu_ms: dict[Kind, list[float]] = {kind: [] for kind in opened}
    async with open_slack(bench) as slack, _open_postgres() as postgres:
        for round_number in range(scale.ack_rounds):
            for kind, results in opened.items():
                url = create_database(postgres, f"front{round_number}") if kind == "front" else ""
                async with _server(bench, kind, slack, url) as (server, database):
                    before_s = server.cpu_s
                    results.append(await load(bench, server, "open", scale.ack_seconds))
                    deliveries = results[-1].answered + results[-1].failed
                    mentions = deliveries // 2 + WARM_UP_EVENTS
                    if kind == "orion-held":
                        await _until_placed(database, mentions)
                    cpu_ms[kind].append(1000 * (server.cpu_s - before_s) / mentions)
            if round_number == 0:
                sync_s += await asyncio.to_thread(_sync_at_rate, bench)
        for _ in range(scale.saturation_rounds):
            for kind, results in closed.items():
                async with _server(bench, kind, slack) as (server, _):
                    results.append(await load(bench, server, "closed", scale.saturation_seconds))
    rate = f"{scale.ack_rate:.0f} events/s"
    orion, memory, held, front, bolt = opened.values()
    return (
        _row(f"ack p50, {rate}, runs going (fake sandbox)", "p50_ms", orion, bolt, times=2),
        _row(f"ack p95, {rate}, runs going (fake sandbox)", "p95_ms", orion, bolt),
        _row(
            f"ack p99, {rate}, runs going (fake sandbox)",
            "p99_ms",
            orion,
            bolt,
            times=3,
            plus=1000 * percentile(sync_s, 0.99),
        ),
        _row(f"ack p99, {rate}, database in memory", "p99_ms", memory, bolt, times=3),
        _row(f"ack p99, {rate}, placed, not run", "p99_ms", held, bolt),
        _row(f"ack p50, {rate}, serve --no-work on PostgreSQL", "p50_ms", front, bolt, times=2),
        _row(f"ack p99, {rate}, serve --no-work on PostgreSQL", "p99_ms", front, bolt),
        Row(
            figure=f"the disk by itself: p99 of fdatasync, {rate}",
            unit="ms",
            orion=1000 * percentile(sync_s, 0.99),
        ),
        Row(
            figure="the disk by itself: longest fdatasync",
            unit="ms",
            orion=1000 * max(sync_s),
        ),
        Row(
            figure="processor time per mention that is placed, none run",
            unit="ms",
            orion=median(cpu_ms["orion-held"]),
            baseline=median(cpu_ms["bolt"]),
            target=6,
        ),
        Row(
            figure=f"acks per second, {scale.in_flight} in flight (fake sandbox)",
            unit="/s",
            orion=_middle(closed["orion"], "per_s"),
            baseline=_middle(closed["bolt"], "per_s"),
            sign=">=",
            target=0.4 * _middle(closed["bolt"], "per_s"),
        ),
        Row(
            figure="events not acknowledged with 200",
            unit="",
            orion=sum(
                result.failed for result in (*orion, *memory, *held, *front, *closed["orion"])
            ),
            baseline=sum(result.failed for result in (*bolt, *closed["bolt"])),
            target=0,
        ),
    )


def _row(
    figure: str,
    field: str,
    orion: Sequence[LoadResult],
    bolt: Sequence[LoadResult],
    *,
    times: float | None = None,
    plus: float = 0,
) -> Row:
    """`times`: of the baseline, and `plus` so many milliseconds, it may take at the most."""
    baseline = _middle(bolt, field)
    return Row(
        figure=figure,
        unit="ms",
        orion=_middle(orion, field),
        baseline=baseline,
        target=None if times is None else times * baseline + plus,
    )


def _middle(results: Sequence[LoadResult], field: str) -> float:
    return float(median(getattr(result, field) for result in results))


@asynccontextmanager
async def open_slack(bench: Bench) -> AsyncIterator[Server]:
    """A Slack that says yes to everything."""
    port = free_port()
    argv = ("tests.bench.slack_server", str(port), "instant")
    async with open_server(argv, port=port, directory=bench.directory) as server:
        yield server


@asynccontextmanager
async def _open_postgres() -> AsyncIterator[str]:
    """One that waits for its disk."""
    with run_postgres(settings=()) as url:
        yield url


@asynccontextmanager
async def _server(
    bench: Bench, kind: Kind, slack: Server, database_url: str = ""
) -> AsyncIterator[tuple[Server, Path]]:
    """Yields it with the path of Orion's database, unless that is at a URL."""
    if kind == "bolt":
        async with open_bolt(bench, api_url=f"{slack.url}/api/") as server:
            yield server, bench.directory
    else:
        parent = MEMORY_DIRECTORY if kind == "orion-memory" else bench.directory
        with tempfile.TemporaryDirectory(dir=parent) as directory:
            place = replace(bench, directory=Path(directory))
            async with open_instant_orion(
                place,
                api_url=f"{slack.url}/api/",
                holds=kind == "orion-held",
                capacity=1 if kind == "orion-held" else 32,
                database_url=database_url,
                works=kind != "front",
            ) as server:
                yield server, next(place.directory.glob("*/orion.db"), place.directory)


async def _until_placed(database: Path, count: int) -> None:
    """Waits for what was accepted and not placed yet: that is work for these mentions, too."""
    query = "SELECT count(*) FROM orion_runs WHERE state != 'accepted'"
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        try:
            async with asyncio.timeout(PLACED_WITHIN_S):
                while connection.execute(query).fetchone()[0] < count:
                    await asyncio.sleep(0.2)
        except TimeoutError as exc:
            raise BenchError(f"not all were placed within {PLACED_WITHIN_S:g} s") from exc


def _sync_at_rate(bench: Bench) -> list[float]:
    """What the disk takes for the write that an acknowledgement needs, with nothing else going on; seconds."""
    waits_s = []
    with (bench.directory / "sync").open("wb", buffering=0) as file:
        for _ in range(int(bench.scale.ack_seconds * bench.scale.ack_rate)):
            file.write(bytes(SYNC_BYTES))
            before = time.monotonic()
            os.fdatasync(file.fileno())
            waits_s.append(time.monotonic() - before)
            time.sleep(1 / bench.scale.ack_rate)
    return waits_s


@asynccontextmanager
async def open_bolt(
    bench: Bench, *, api_url: str, port: int | None = None, replies: bool = False
) -> AsyncIterator[Server]:
    """The baseline's process."""
    port = port or free_port()
    argv = ["tests.bench.bolt_server", str(port), CONFIG.signing_secret, CONFIG.bot_token, api_url]
    if replies:
        argv.append("--reply")
    async with open_server(argv, port=port, directory=bench.directory) as server:
        yield server


@asynccontextmanager
async def open_instant_orion(
    bench: Bench,
    *,
    api_url: str,
    port: int | None = None,
    holds: bool = False,
    work_s: float = 0,
    capacity: int = 32,
    database_url: str = "",
    works: bool = True,
    writes: bool = False,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> AsyncIterator[Server]:
    """`orion serve` on the state directory of its port, and on PostgreSQL if its URL is given, with the fake sandbox and the instant agent."""
    port = port or free_port()
    instant = {
        "SLACK_BOT_TOKEN": CONFIG.bot_token,
        "SLACK_SIGNING_SECRET": CONFIG.signing_secret,
        "SLACK_API_URL": api_url,
        "ANTHROPIC_API_KEY": "sk-ant-bench",
        "ORION_STATE_DIR": str(bench.directory / f"state-{port}"),
        "ORION_PORT": str(port),
        "ORION_RUNS_PER_USER_HOUR": "1000000",
        "ORION_WARM_POOL_SIZE": "0",
        "ORION_QUEUE_LIMIT": "1000000",
        "ORION_MAX_CONCURRENT_RUNS": str(capacity),
        "ORION_DATABASE_URL": database_url,
    }
    argv = ["tests.bench.orion_server", *(["--hold"] if holds else ["--work-s", str(work_s)])]
    if writes:
        argv.append("--writes")
    if not works:
        argv.append("--no-work")
    async with open_server(
        argv,
        port=port,
        directory=bench.directory,
        settings={**instant, **settings},
        stop_timeout_s=1,
    ) as server:
        yield server


async def load(
    bench: Bench,
    server: Server,
    mode: Literal["open", "closed"],
    seconds: float,
    *,
    rate: float | None = None,
) -> LoadResult:
    """What the load process measured; `rate` in events per second, the scale's unless given."""
    plan = LoadPlan(
        url=f"{server.url}/slack/events",
        mode=mode,
        seconds=seconds,
        rate=rate or bench.scale.ack_rate,
        in_flight=bench.scale.in_flight,
    )
    output = await run_to_end(
        ("tests.bench.load", json.dumps(asdict(plan))),
        directory=bench.directory,
        timeout_s=seconds + ENDING_S,
    )
    try:
        return LoadResult(**json.loads(output))
    except (ValueError, TypeError) as exc:
        raise BenchError(f"the load process printed {output[:200]!r}") from exc
