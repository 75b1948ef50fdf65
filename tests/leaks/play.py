"""The proof: questions with their fates, a census before and after, and what there is more of."""

import asyncio
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from app.errors import ErrorCode
from app.playground.model.server import ModelPace
from app.playground.slack.types import FakeSlackConfig
from app.runs.testing import Run
from sandbox_runtime.task_group import open_task_group
from tests.e2e.docker_world import (
    docker,
    namespace_of,
    objects_of,
    open_docker_orion,
    prepared_image,
)
from tests.e2e.harness import WITH_POOL, Stage, World, open_orion, open_world
from tests.e2e.orion_process import new_state_dir
from tests.e2e.prepared import prepared_state_dir
from tests.fake_slack_client import FakeSlackError
from tests.leaks.census import CONNECTIONS, DESCRIPTORS, Census, take_census
from tests.leaks.plan import WARM_UP, Course, Fate, Plan, draw

ENDED_WITHIN_S = 180.0
SETTLED_WITHIN_S = 90.0
"""A pool whose sandboxes were killed three times rests for a minute."""
VICTIM_WITHIN_S = 3.0
POLL_S = 0.3
QUICK_RETRIES = FakeSlackConfig(rate_limits="off", retry_delays_s=(0.0, *(1.0,) * 60))


@dataclass(slots=True, kw_only=True)
class Result:
    """What came of a plan."""

    plan: Plan
    before: Census = field(default_factory=lambda: Census(kinds={}))
    after: Census = field(default_factory=lambda: Census(kinds={}))
    outcomes: Counter[str] = field(default_factory=Counter)
    fates: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    """What leaked, and runs that did not end."""


@dataclass(slots=True, kw_only=True)
class _Proof:
    stage: Stage
    result: Result
    chance: random.Random
    temporary: Path
    threads: list[str] = field(default_factory=list)
    ended: int = 0
    is_starting: bool = False
    """A service that finds its own first sandbox killed refuses to start, and rightly."""

    @property
    def namespace(self) -> str | None:
        if self.result.plan.provider != "docker":
            return None
        return namespace_of(self.stage.orion.state_dir)

    async def census(self) -> Census:
        return await take_census(
            self.stage.orion, temporary=self.temporary, namespace=self.namespace
        )


async def prove(directory: Path, plan: Plan) -> Result:
    """Play a plan in a service of its own, and count."""
    temporary = directory / f"tmp-{plan.provider}"
    temporary.mkdir()
    result = Result(plan=plan)
    pace = ModelPace(word_s=0.01, slow_word_s=0.5)
    async with (
        open_world(QUICK_RETRIES, pace=pace) as world,
        _open_stage(world, directory, plan, temporary) as stage,
    ):
        proof = _Proof(
            stage=stage,
            result=result,
            chance=random.Random(plan.seed),  # noqa: S311 - repeatable
            temporary=temporary,
        )
        await _play(proof, [WARM_UP] * plan.warm_up)
        first = await _settled(proof, None)
        half = plan.runs // 2
        await _play_and_kill_service(proof, draw(plan, proof.chance, half))
        await _play(proof, [WARM_UP] * plan.warm_up)
        warm = await _settled(proof, first)
        # Descriptors are of a process: those of the last one are compared with its own.
        own = {kind: warm.kinds[kind] for kind in (DESCRIPTORS, CONNECTIONS)}
        result.before = Census(kinds={**first.kinds, **own})
        await _play(proof, draw(plan, proof.chance, plan.runs - half))
        result.after = await _settled(proof, result.before)
        result.faults += result.after.beyond(result.before)
    return result


@asynccontextmanager
async def _open_stage(
    world: World, directory: Path, plan: Plan, temporary: Path
) -> AsyncIterator[Stage]:
    state_dir = new_state_dir(directory)
    settings = {**WITH_POOL, "ORION_SESSION_KEEP_S": plan.keep_s, "TMPDIR": str(temporary)}
    if plan.provider == "docker":
        prepared = await asyncio.to_thread(prepared_image)
        opened = open_docker_orion(world, state_dir, prepared, **settings)
    else:
        opened = open_orion(
            world, state_dir, await asyncio.to_thread(prepared_state_dir), **settings
        )
    async with opened as stage:
        yield stage


async def _play(proof: _Proof, courses: Sequence[Course]) -> None:
    waiting = list(courses)

    async def lane() -> None:
        while waiting:
            await _ask(proof, waiting.pop(0))

    async with open_task_group() as group:
        for _ in range(proof.result.plan.lanes):
            group.create_task(lane())


async def _play_and_kill_service(proof: _Proof, courses: Sequence[Course]) -> None:
    """The service dies so often while the questions are asked, by itself and with its group in turn."""
    plan, orion = proof.result.plan, proof.stage.orion
    async with open_task_group() as group:
        playing = group.create_task(_play(proof, courses))
        due = [
            proof.ended + (number + 1) * len(courses) // (plan.service_kills + 1)
            for number in range(plan.service_kills)
        ]
        for number, ended in enumerate(due):
            while proof.ended < ended and not playing.done():
                await asyncio.sleep(POLL_S)
            await asyncio.sleep(proof.chance.uniform(0.0, 1.0))
            proof.is_starting = True
            if number % 2:
                orion.kill_group()
                await orion.died(timeout_s=10)
            else:
                await orion.kill9()
            proof.result.fates["the service killed"] += 1
            await orion.start()
            proof.is_starting = False


async def _ask(proof: _Proof, course: Course) -> None:
    client, result = proof.stage.client, proof.result
    root = proof.chance.choice(proof.threads) if proof.threads and course.is_follow_up else None
    ts = await client.say(f"@Orion {course.text}", thread_ts=root)
    if root is None:
        proof.threads.append(ts)
    if course.fate is not Fate.LEFT:
        await asyncio.sleep(course.delay_s)
    result.fates[await _meet(proof, course, thread_ts=root or ts)] += 1
    try:
        run = await _ended(proof, ts)
    except TimeoutError:
        result.faults.append(f"no end within {ENDED_WITHIN_S:.0f} s: {course}")
    else:
        result.outcomes[run.result.error_code or run.state] += 1
        if run.result.error_code is ErrorCode.INTERNAL:
            result.faults.append(f"a bug: {run.result.detail or 'without detail'}: {course}")
    proof.ended += 1
    if proof.ended % 10 == 0:
        sys.stderr.write(f"{result.plan.provider}: {proof.ended} runs have ended\n")


async def _meet(proof: _Proof, course: Course, *, thread_ts: str) -> str:
    """What has befallen it in the end."""
    client = proof.stage.client
    match course.fate:
        case Fate.STOPPED_BY_WORD:
            await client.say("stop", thread_ts=thread_ts)
        case Fate.STOPPED_NATIVELY:
            try:
                await client.stop(thread_ts)
            except FakeSlackError:  # Slack shows the button while a session is at work
                return "nothing there to stop"
        case Fate.KILLED if not await _kill_one(proof):
            return "nobody there to kill"
        case _:
            pass
    return course.fate


async def _ended(proof: _Proof, ts: str) -> Run:
    async with asyncio.timeout(ENDED_WITHIN_S):
        while True:
            run = await proof.stage.orion.run(proof.stage.run_id(ts))
            if run is not None and run.state.is_final:
                return run
            await asyncio.sleep(POLL_S)


async def _kill_one(proof: _Proof) -> bool:
    """SIGKILL to any process of any sandbox: agent, supervisor, a command, the sandbox's own first process."""
    with suppress(TimeoutError):
        async with asyncio.timeout(VICTIM_WITHIN_S):
            while True:
                pids = await asyncio.to_thread(_sandboxed, proof)
                if pids and not proof.is_starting:
                    with suppress(ProcessLookupError):
                        os.kill(proof.chance.choice(pids), signal.SIGKILL)
                        return True
                await asyncio.sleep(POLL_S)
    return False


def _sandboxed(proof: _Proof) -> list[int]:
    if proof.namespace is None:
        found = proof.stage.orion.sandbox_processes()
        return [int(process.partition(":")[0]) for process in found]
    pids: list[int] = []
    for container in objects_of(proof.namespace, "ps"):
        with suppress(AssertionError):  # it ended just now
            pids += map(int, docker("top", container, "-eo", "pid").split()[1:])
    return pids


async def _settled(proof: _Proof, before: Census | None) -> Census:
    """The census once nothing is too much, or it will not become less: sandboxes are kept for a while, and one waits in the pool."""
    census = await proof.census()
    with suppress(TimeoutError):
        async with asyncio.timeout(SETTLED_WITHIN_S):
            while not _is_at_rest(census) or (before is not None and census.beyond(before)):
                await asyncio.sleep(1.0)
                census = await proof.census()
    return census


def _is_at_rest(census: Census) -> bool:
    """No sandbox is kept or made, and the pool is full."""
    return (
        len(census.kinds.get("containers") or census.kinds["sandbox folders"])
        == census.waiting
        == 1
    )
