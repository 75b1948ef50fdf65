"""Harm at random under load: nothing is lost, nothing doubled, threads keep their order."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from app.errors import ErrorCode
from app.runs.testing import Run, RunState
from sandbox_runtime.task_group import open_task_group
from tests.crash.killing import FROZEN_S
from tests.crash.place import Place
from tests.crash.rig import ALONE, QUICK_RETRIES, Rig, Shape
from tests.e2e.harness import WITH_POOL, file_names, has_stop_button, run_of

SETTLED_WITHIN_S = 60.0
ANSWERED_IN_S = 1.6
"""Of one message, at the most: Slack takes an update, and a read of a thread, each 1.2 s."""
WATCH_INTERVAL_S = 0.5
BETWEEN_S = 6.0
"""Between two restarts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    name: str
    agent: str
    threads: int
    rounds: int
    """Messages in each thread."""
    pause_s: float
    """Between two messages, of any threads."""
    kills: int
    is_rolled: bool = False
    """Instead, one process after the other is told to end and started again."""
    seed: int = 20_261_121

    @property
    def messages(self) -> int:
        return self.threads * self.rounds


HEAVY = LoadPlan(name="instant", agent="instant", threads=50, rounds=7, pause_s=0.25, kills=10)
REAL = LoadPlan(name="anthropic", agent="anthropic", threads=6, rounds=3, pause_s=2.5, kills=3)
ROLLED = LoadPlan(
    name="small, restarted in turn",
    agent="small",
    threads=8,
    rounds=6,
    pause_s=0.8,
    kills=0,
    is_rolled=True,
)
SMALL = LoadPlan(name="instant", agent="instant", threads=10, rounds=4, pause_s=0.3, kills=2)


@dataclass(slots=True, kw_only=True)
class LoadResult:
    name: str
    shape: Shape
    messages: int
    threads: int
    kills: int
    deliveries: int = 0
    lost: int = 0
    doubled: int = 0
    pairs: int = 0
    disordered: int = 0
    interrupted: int = 0
    """Ended honestly, but without an answer."""
    last_s: float = 0.0
    faults: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Load:
    """What goes on, and what was seen of it."""

    rig: Rig
    plan: LoadPlan
    chance: random.Random
    threads: list[list[str]] = field(default_factory=list)
    deliveries: dict[str, Mapping[str, object]] = field(default_factory=dict)
    accepted_at: dict[str, datetime] = field(default_factory=dict)
    restarted: float = 0.0
    harms: int = 0


async def run_load(
    place: Place,
    plan: LoadPlan,
    shape: Shape = ALONE,
    *,
    befall: Callable[[Load], Coroutine[Any, Any, None]] | None = None,
) -> LoadResult:
    """Talk, while harm comes at random or what is to `befall` it instead, wait for the end, count."""
    config = replace(QUICK_RETRIES, deliveries_per_event=2)
    settings = WITH_POOL if plan.agent == "anthropic" else {}
    async with place.open_rig(shape, plan.agent, settings, config=config) as rig:
        load = Load(rig=rig, plan=plan, chance=random.Random(plan.seed))  # noqa: S311 - repeatable
        async with open_task_group() as group:
            watching = group.create_task(_watch(load))
            async with open_task_group() as people:
                people.create_task(_talk(load))
                people.create_task((befall or (_roll if plan.is_rolled else _harm))(load))
            await _settle(load)
            watching.cancel()
        result = await _judge(load)
        result.faults += await rig.faults_of_machine()
        return result


async def _talk(load: Load) -> None:
    plan, client = load.plan, load.rig.stage.client
    load.threads += [[] for _ in range(plan.threads)]
    for number in range(plan.rounds):
        for thread in load.chance.sample(load.threads, plan.threads):
            root = thread[0] if thread else None
            thread.append(await client.say(f"@Orion number {number}", thread_ts=root))
            await asyncio.sleep(plan.pause_s * load.chance.uniform(0.5, 1.5))


async def _harm(load: Load) -> None:
    """Harm spread over the talk, each at a moment of its own, to any process; at once after the restart, too."""
    plan, rig = load.plan, load.rig
    each_s = plan.messages * plan.pause_s / plan.kills
    for _ in range(plan.kills):
        due = time.monotonic() + each_s
        await asyncio.sleep(load.chance.uniform(0.0, each_s / 2))
        victim = load.chance.choice(rig.processes)
        rig.harm(victim)
        load.harms += 1
        assert await rig.until_harmed() is victim
        load.restarted = time.monotonic()
        if victim.is_frozen:
            await asyncio.sleep(FROZEN_S)
            victim.thaw()
        await rig.start_all()
        await asyncio.sleep(max(0.0, due - time.monotonic()))


async def _roll(load: Load) -> None:
    for process in load.rig.processes:
        await asyncio.sleep(BETWEEN_S)
        assert await process.terminate() == 0
        load.harms += 1
        await process.start()
    load.restarted = time.monotonic()


async def _watch(load: Load) -> None:
    """Slack's log of deliveries keeps the last thousand only."""
    while True:
        for entry in load.rig.stage.world.fake_slack.deliverer.log():
            key = f"{entry['event_id']} {entry['at']}"
            if key not in load.deliveries:
                load.deliveries[key] = entry
                _note_acceptance(load, entry)
        await asyncio.sleep(WATCH_INTERVAL_S)


def _note_acceptance(load: Load, entry: Mapping[str, object]) -> None:
    ts, at = entry["message_ts"], datetime.fromisoformat(str(entry["at"]))
    if isinstance(ts, str) and entry["status"] == 200:
        load.accepted_at[ts] = min(at, load.accepted_at.get(ts, at))


async def _settle(load: Load) -> None:
    """Returns when nothing moves any more, or it takes too long; the counts then tell."""
    with suppress(TimeoutError):
        async with asyncio.timeout(SETTLED_WITHIN_S + ANSWERED_IN_S * load.plan.messages):
            while True:
                accepted = all(ts in load.accepted_at for thread in load.threads for ts in thread)
                if accepted and not await load.rig.stage.orion.unfinished():
                    break
                await asyncio.sleep(WATCH_INTERVAL_S)
    await asyncio.sleep(1.0)  # for the last deliveries of what is long done


async def _judge(load: Load) -> LoadResult:
    plan = load.plan
    result = LoadResult(
        name=plan.name,
        shape=load.rig.shape,
        messages=plan.messages,
        threads=plan.threads,
        kills=load.harms,
        deliveries=len(load.deliveries),
    )
    ended = []
    for thread in load.threads:
        records = {run.request.message_ts: run for run in await load.rig.thread_records(thread[0])}
        everything = await load.rig.stage.client.replies(thread[0])
        replies = [reply for reply in everything if not file_names(reply)]
        files = Counter(name for reply in everything for name in file_names(reply))
        result.doubled += sum(count > 1 for count in files.values())
        bots = Counter(run_of(reply) for reply in replies if reply["is_bot"])
        open_ones = [reply for reply in replies if reply["is_bot"] and has_stop_button(reply)]
        result.faults += [f"still open: {reply['text']}" for reply in open_ones]
        own = {load.rig.stage.run_id(ts) for ts in thread}
        result.faults += [f"a message of no run: {run_id}" for run_id in set(bots) - own]
        for ts in thread:
            count, record = bots[load.rig.stage.run_id(ts)], records.get(ts)
            result.lost += count == 0 or record is None or not record.state.is_final
            result.doubled += count > 1
            result.interrupted += (
                record is not None and record.result.error_code is ErrorCode.INTERRUPTED
            )
            if record is not None:
                ended.append(record)
        result.doubled += len(set(records) - set(thread))
        _judge_order(load, [records[ts] for ts in thread if ts in records], result)
    result.faults += [
        f"{run.id} is {run.state} ({run.result.error_code}, {run.delivery})"
        for run in ended
        if run.delivery != "sent"
        or (
            run.state is not RunState.SUCCEEDED
            and run.result.error_code is not ErrorCode.INTERRUPTED
        )
    ]
    last = max((run.ended_at.timestamp() for run in ended if run.ended_at), default=0.0)
    result.last_s = max(0.0, last - (time.time() - (time.monotonic() - load.restarted)))
    if result.lost or result.doubled or result.disordered:
        result.faults.append("lost, doubled or out of order")
    return result


def _judge_order(load: Load, records: list[Run], result: LoadResult) -> None:
    for before, after in pairwise(records):
        accepted, late = load.accepted_at, datetime.max.replace(tzinfo=UTC)
        if accepted.get(before.request.message_ts, late) >= accepted.get(
            after.request.message_ts, late
        ):
            continue
        result.pairs += 1
        if before.ended_at is None or after.started_at is None:
            continue
        result.disordered += before.ended_at > after.started_at
