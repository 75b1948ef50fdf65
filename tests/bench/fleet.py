"""`orion serve --no-work` and `orion worker` with nothing replaced, on one PostgreSQL: what an idle worker takes, a Stop that another process hears, the end of one that is killed."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from statistics import median

from app.slack.actions import STOP_ACTION
from sandbox_runtime.task_group import open_task_group
from tests.bench.processes import BenchError, Server, open_server
from tests.bench.scale import Bench
from tests.bench.slack_server import CHANNELS
from tests.bench.table import Row
from tests.bench.turns import (
    ANSWER_TIMEOUT_S,
    FIRST_ANSWER_TIMEOUT_S,
    Scene,
    ask,
    ask_in,
    open_scene,
)
from tests.e2e.harness import has_stop_button, text_of
from tests.fake_slack_client import FakeSlackClient, open_client
from tests.ports import free_port
from tests.postgres import create_database, run_postgres

IDLE_PERCENT, STOPPED_WITHIN_S, ANSWERED_WITHIN_S = 3.0, 2.0, 60.0
SETTLE_S = 5.0
SLOW_WORDS = "I write slowly"
SLOTS, WRITES_S = 2, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    scene: Scene
    person: FakeSlackClient
    url: str
    """Of its database."""

    @asynccontextmanager
    async def start(self, *command: str, port: int) -> AsyncIterator[Server]:
        settings = self.scene.settings(traces=False) | {
            "ORION_DATABASE_URL": self.url,
            "ORION_PORT": str(port),
            "ORION_MAX_CONCURRENT_RUNS": str(SLOTS),
        }
        async with open_server(
            ("app.cli", *command),
            port=port,
            directory=self.scene.bench.directory,
            settings=settings,
        ) as server:
            yield server

    @asynccontextmanager
    async def workers(self, count: int) -> AsyncIterator[Sequence[Server]]:
        async with AsyncExitStack() as stack:
            yield [
                await stack.enter_async_context(self.start("worker", port=free_port()))
                for _ in range(count)
            ]


async def measure_fleet(bench: Bench) -> Sequence[Row]:
    """One front, and one or two workers behind it."""
    scale = bench.scale
    with run_postgres() as server:
        async with open_scene(bench) as scene, open_client(scene.world.url) as person:
            fleet = Fleet(scene=scene, person=person, url=create_database(server, "fleet"))
            async with fleet.start("serve", "--no-work", port=scene.port):
                async with fleet.workers(1) as (worker,):
                    await ask(person, timeout_s=FIRST_ANSWER_TIMEOUT_S)
                    idle = await _idle(worker, scale.idle_seconds)
                    stopped_s = [await _stop(person) for _ in range(2 * scale.worker_ends)]
                killed_s = [await _kill(fleet) for _ in range(scale.worker_ends)]
    return (
        Row(figure="processor of an idle worker", unit="%", orion=idle, target=IDLE_PERCENT),
        Row(
            figure="Stop pressed at one process: the agent of another is dead, and that is told, median",
            unit="s",
            orion=median(stopped_s),
        ),
        Row(
            figure="Stop pressed at one process: the same, at the longest",
            unit="s",
            orion=max(stopped_s),
            target=STOPPED_WITHIN_S,
        ),
        Row(
            figure=f"kill -9 of one of two workers to the last answer, at the longest (a model that writes for {WRITES_S} s)",
            unit="s",
            orion=max(killed_s),
            target=ANSWERED_WITHIN_S,
        ),
    )


async def _idle(worker: Server, seconds: float) -> float:
    """Percent of a core."""
    await asyncio.sleep(SETTLE_S)
    before_s = worker.cpu_s
    await asyncio.sleep(seconds)
    return 100 * (worker.cpu_s - before_s) / seconds


async def _stop(person: FakeSlackClient) -> float:
    """Seconds from the press to the message without its button, which is told when the agent is dead."""
    root = await person.say("@Orion !slow 60")
    message = await person.wait_for_reply(
        root, lambda reply: SLOW_WORDS in text_of(reply), timeout_s=ANSWER_TIMEOUT_S
    )
    pressed_s = time.monotonic()
    await person.press(message, STOP_ACTION)
    told = await person.wait_for_reply(
        root,
        lambda reply: reply["is_bot"] and not has_stop_button(reply),
        timeout_s=ANSWER_TIMEOUT_S,
    )
    took_s = time.monotonic() - pressed_s
    if "topped" not in str(told):
        raise BenchError(f"it was not stopped: {text_of(told)}")
    return took_s


async def _kill(fleet: Fleet) -> float:
    """Seconds from the kill of one that works to the last answer; each question has one."""
    async with fleet.workers(2) as (victim, _):
        killed: list[float] = []

        async def ask_slowly(number: int) -> float:
            root, took_s = await ask_in(
                fleet.person,
                f"!slow {WRITES_S}",
                channel=CHANNELS[number % len(CHANNELS)],
                timeout_s=ANSWERED_WITHIN_S + ANSWER_TIMEOUT_S,
            )
            return float(root) + took_s

        async def kill() -> None:
            await asyncio.sleep(WRITES_S / 2)
            killed.append(time.time())
            os.kill(victim.pid, signal.SIGKILL)

        async with open_task_group() as group:
            asked = [group.create_task(ask_slowly(number)) for number in range(2 * SLOTS)]
            group.create_task(kill())
        return max(one.result() for one in asked) - killed[0]
