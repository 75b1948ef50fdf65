"""Several processes on one PostgreSQL: what three do against one, and what becomes of the runs of one that is killed or ended.

Handlers sleep, so that what is left is the handing out of runs; and once nothing is replaced, and a model writes for 8 s. Taking over is
counted from the kill to the beginning elsewhere.
"""

import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from statistics import median

from app.runs.testing import Run
from sandbox_runtime.task_group import open_task_group
from tests.bench import fleet
from tests.bench.fleet import Fleet
from tests.bench.load import percentile
from tests.bench.scale import Bench
from tests.bench.slack_server import CHANNELS
from tests.bench.table import Row
from tests.bench.turns import FIRST_ANSWER_TIMEOUT_S, ask, ask_in, open_scene
from tests.dispatchers import Crowd, accept, accepting, new_run
from tests.fake_slack_client import FakeSlackClient, open_client
from tests.postgres import create_database, run_postgres
from tests.waiting import until

SLEEP_S, SLOTS, PEOPLE = 2.0, 8, 12
WORKERS = 3
LEAST_SPEED_UP, LARGEST_SHARE = 2.6, 1.25
TAKEN_OVER_WITHIN_S, GIVEN_BACK_WITHIN_S = 20.0, 2.0
REAL_SPEED_UP, MODEL_S = 2.3, 8
REAL_ANSWER_TIMEOUT_S = 200.0
"""Of the last one of a batch, which has to wait for all the others."""


async def measure_workers(bench: Bench) -> Sequence[Row]:
    """Three workers against one, and the ends of workers."""
    scale = bench.scale
    with run_postgres() as server:
        alone_s, _ = await _batch(bench, create_database(server, "one"), workers=1)
        together_s, shares = await _batch(bench, create_database(server, "three"), workers=WORKERS)
        taken_s: list[float] = []
        given_s: list[float] = []
        for number in range(scale.worker_ends):
            taken_s += await _end(bench, create_database(server, f"killed{number}"), signal.SIGKILL)
            given_s += await _end(bench, create_database(server, f"ended{number}"), signal.SIGTERM)
        real_alone_s, real_together_s = await _real_batches(bench, create_database(server, "real"))
    even = scale.worker_runs / WORKERS
    return (
        Row(
            figure=f"{scale.worker_runs} runs of {SLEEP_S:g} s, {SLOTS} slots each: three workers against one",
            unit="x",
            orion=alone_s / together_s,
            sign=">=",
            target=LEAST_SPEED_UP,
        ),
        Row(
            figure="of three workers, the largest share against an even one",
            unit="x",
            orion=max(shares) / even,
            target=LARGEST_SHARE,
        ),
        Row(
            figure=f"{scale.real_runs} mentions answered, real sandboxes, {fleet.SLOTS} slots each, a model that writes for {MODEL_S} s: three workers against one",
            unit="x",
            orion=real_alone_s / real_together_s,
            sign=">=",
            target=REAL_SPEED_UP,
        ),
        Row(
            figure="kill -9 of a worker: its runs begin elsewhere after, p95",
            unit="s",
            orion=percentile(taken_s, 0.95),
            target=TAKEN_OVER_WITHIN_S,
        ),
        Row(
            figure="SIGTERM of a worker: what it had begins elsewhere after, median",
            unit="s",
            orion=median(given_s),
        ),
        Row(
            figure="SIGTERM of a worker: the same, at the longest",
            unit="s",
            orion=max(given_s),
            target=GIVEN_BACK_WITHIN_S,
        ),
    )


async def _batch(bench: Bench, url: str, *, workers: int) -> tuple[float, Sequence[int]]:
    """How long a batch takes, and how many runs each worker did."""
    async with _crowd(bench, url) as crowd, accepting(url) as store:
        for _ in range(workers):
            await crowd.start(capacity=SLOTS, hold_s=SLEEP_S)
        count = bench.scale.worker_runs
        started = time.time()
        await accept(store, *_runs(count))
        await until(lambda: len(crowd.effects()) == count, timeout_s=60 + count)
        notes = crowd.notes("effect")
        return notes[-1].at - started, list(Counter(note.pid for note in notes).values())


async def _real_batches(bench: Bench, url: str) -> Sequence[float]:
    """From the first of as many mentions at once to the last answer: with one worker, and with three; before them a front."""
    async with open_scene(bench) as scene, open_client(scene.world.url) as person:
        processes = Fleet(scene=scene, person=person, url=url)
        took_s = []
        async with processes.start("serve", "--no-work", port=scene.port):
            for count in (1, WORKERS):
                async with processes.workers(count):
                    await ask(person, timeout_s=FIRST_ANSWER_TIMEOUT_S)
                    took_s.append(await _answered(person, bench.scale.real_runs))
    return took_s


async def _answered(person: FakeSlackClient, count: int) -> float:
    """Seconds until the last of so many that are asked at once."""

    async def ask_slowly(number: int) -> float:
        root, took_s = await ask_in(
            person,
            f"!slow {MODEL_S}",
            channel=CHANNELS[number % len(CHANNELS)],
            timeout_s=REAL_ANSWER_TIMEOUT_S,
        )
        return float(root) + took_s

    started = time.time()
    async with open_task_group() as group:
        asked = [group.create_task(ask_slowly(number)) for number in range(count)]
    return max(task.result() for task in asked) - started


async def _end(bench: Bench, url: str, number: signal.Signals) -> Sequence[float]:
    """Ends one of three in the middle of its runs; returns after how long each is begun by another."""
    async with _crowd(bench, url) as crowd, accepting(url) as store:
        pids = [await crowd.start(capacity=SLOTS, hold_s=30) for _ in range(WORKERS)]
        count = WORKERS * SLOTS // 2
        await accept(store, *_runs(count))
        await until(lambda: len(crowd.notes("start")) == count)
        left = {note.run_id for note in crowd.notes("start") if note.pid == pids[0]}
        ended_at = time.time()
        os.kill(pids[0], number)
        await until(lambda: len(crowd.notes("start")) == count + len(left), timeout_s=60)
        return [note.at - ended_at for note in crowd.notes("start")[count:]]


def _runs(count: int) -> Sequence[Run]:
    return [new_run(number, user=f"U{number % PEOPLE}") for number in range(count)]


@asynccontextmanager
async def _crowd(bench: Bench, url: str) -> AsyncIterator[Crowd]:
    directory = bench.directory / url.rpartition("/")[2]
    directory.mkdir()
    crowd = Crowd(url, directory)
    try:
        yield crowd
    finally:
        await crowd.kill_all()
