"""Prepared sandboxes on a fake provider: who is given one, how often, and what becomes of those that nobody can use."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from typing_extensions import override

from app.runs.testing import (
    FAILURES,
    MAX_WAIT_S,
    SAVING_S,
    PoolFigures,
    Run,
    RunPolicy,
    RunState,
    SessionId,
    session_id_for,
)
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.provider import Sandbox
from sandbox_runtime.task_group import open_task_group
from sandbox_runtime.testing.fake import FakeProvider
from sandbox_runtime.types import SandboxId, SandboxSpec
from tests.faults.building import POLICY, Core, ended, open_core, request_of
from tests.faults.plan_agent import ANSWER, Plan
from tests.waiting import until

DEFAULT_OF_A_THREAD = 1795302364
BURST = 15
REST_S = 3.0
"""Longer than a run takes on a busy machine."""


class Picky(FakeProvider):
    """Makes no sandboxes to wait: it fails, or with `hangs` never returns."""

    def __init__(self, *, hangs: bool) -> None:
        super().__init__()
        self.hangs = hangs
        self.asked = 0

    @override
    async def create(self, spec: SandboxSpec) -> Sandbox:
        if "orion.pool" in spec.labels:
            self.asked += 1
            if self.hangs:
                await asyncio.Event().wait()
            raise SandboxError(SandboxErrorCode.CREATE_FAILED, "no room", retryable=True)
        return await super().create(spec)


@asynccontextmanager
async def pooled(
    tmp_path: Path,
    *,
    size: int = 1,
    policy: RunPolicy = POLICY,
    wait_s: float = MAX_WAIT_S,
    rest_s: float = 0,
    sandboxes: FakeProvider | None = None,
) -> AsyncIterator[Core]:
    """With the environment ready."""
    async with open_core(
        policy,
        socket=str(tmp_path / "s"),
        pool_size=size,
        pool_wait_s=wait_s,
        pool_rest_s=rest_s,
        sandboxes=sandboxes,
    ) as core:
        await core.runtime.runner.prepare_environment()
        core.runtime.pool.wake()
        yield core


def figures(core: Core) -> PoolFigures:
    return core.runtime.pool.figures


async def filled(core: Core) -> None:
    await until(lambda: figures(core).waiting == figures(core).size)


async def ask(core: Core, plan: Plan = ANSWER, *, thread: int = 0, number: int = 0) -> Run:
    """A message of the `thread`-th thread, to the run's end."""
    root = f"{DEFAULT_OF_A_THREAD + thread}.000100"
    ts = f"{DEFAULT_OF_A_THREAD + thread}.{100 + number:06d}"
    request = request_of(plan, ts=ts, thread_ts=root)
    await core.intake.accept(request)
    return await ended(core, request.run_id)


async def test_each_is_given_once(tmp_path: Path) -> None:
    """A new thread gets the one that waits, with its endpoint; the next thread another one; no file is in it."""
    async with pooled(tmp_path) as core:
        await filled(core)
        first = await ask(core, [{"write": "notes", "text": "a"}, {"final": "written"}])
        await filled(core)
        second = await ask(core, [{"read": "notes"}], thread=1)
        assert (first.state, second.result.answer) == (RunState.SUCCEEDED, "nothing")
        assert first.sandbox_id != second.sandbox_id
        sessions = [session_id_for(run.thread) for run in (first, second)]
        assert [session for session, _ in core.broker.rebound] == sessions
        assert (figures(core).taken, figures(core).missed) == (2, 0)
    assert core.provider.alive == 0


async def test_a_thread_with_files_has_its_own(tmp_path: Path) -> None:
    """What it saved is brought into a new sandbox; the one that waits goes on waiting."""
    async with pooled(tmp_path) as core:
        await filled(core)
        await ask(core, [{"write": "notes", "text": "a"}, {"final": "written"}])
        await filled(core)
        assert (await ask(core, [{"read": "notes"}], number=1)).result.answer == "a"
        assert (figures(core).taken, figures(core).missed, figures(core).waiting) == (1, 0, 1)


@pytest.mark.long
async def test_a_kept_sandbox_comes_first(tmp_path: Path) -> None:
    """Also one that was prepared: it is the thread's for as long as any other."""
    async with pooled(tmp_path, policy=replace(POLICY, session_keep_s=600)) as core:
        await filled(core)
        first = await ask(core, [{"write": "notes", "text": "a"}, {"final": "written"}])
        again = await ask(core, [{"read": "notes"}], number=1)
        assert (again.result.answer, again.sandbox_id) == ("a", first.sandbox_id)
        assert figures(core).taken == 1


@pytest.mark.long
@pytest.mark.timeout(90)
async def test_a_burst_takes_what_there_is_and_makes_the_rest(tmp_path: Path) -> None:
    """Fifty at once, two prepared: every one is answered, and none of the prepared was given twice."""
    policy = replace(
        POLICY, capacity=BURST, run_timeout_s=60, idle_timeout_s=60, runs_per_user_hour=1000
    )
    async with pooled(tmp_path, size=2, policy=policy) as core:
        await filled(core)
        async with open_task_group() as group:
            tasks = [group.create_task(ask(core, thread=number)) for number in range(BURST)]
        runs = [task.result() for task in tasks]
        assert {run.state for run in runs} == {RunState.SUCCEEDED}
        assert len({run.sandbox_id for run in runs}) == BURST
        assert figures(core).taken + figures(core).missed == BURST
        assert figures(core).taken >= 2
        assert figures(core).failed == 0
    assert core.provider.alive == 0


async def test_nobody_waits_for_a_refill(tmp_path: Path) -> None:
    """It hangs: a run makes its own at once."""
    provider = Picky(hangs=True)
    async with pooled(tmp_path, sandboxes=provider) as core:
        await until(lambda: provider.asked == 1)
        run = await ask(core)
        assert run.state is RunState.SUCCEEDED
        assert (figures(core).taken, figures(core).missed) == (0, 1)


async def test_the_breaker(tmp_path: Path) -> None:
    """After three failures none is made for a while, and everybody can see it; runs make their own."""
    provider = Picky(hangs=False)
    async with pooled(tmp_path, sandboxes=provider) as core:
        await until(lambda: figures(core).is_stopped)
        assert (await ask(core)).state is RunState.SUCCEEDED
        assert (await ask(core, thread=1)).state is RunState.SUCCEEDED
        assert provider.asked == FAILURES
        assert figures(core).failed == FAILURES
        assert "stopped for a while" in str(figures(core))


async def test_one_that_ends_while_it_waits_is_replaced(tmp_path: Path) -> None:
    """Its end is noticed without anybody asking for it; its endpoint goes too."""
    async with pooled(tmp_path) as core:
        await filled(core)
        (info,) = await core.provider.list({"orion.pool": "true"})
        core.broker.closed.clear()
        await core.provider.remove(info.id)
        await until(lambda: figures(core).failed == 1)
        await filled(core)
        assert len([one for one in core.broker.closed if one.startswith("pool_")]) == 1
        assert (await ask(core)).state is RunState.SUCCEEDED


async def test_one_that_is_taken_lives_on(tmp_path: Path) -> None:
    """However long it has waited, and however long a run may be: it is made for the wait, and extended for its run."""
    policy = replace(POLICY, run_timeout_s=5000)
    async with pooled(tmp_path, policy=policy) as core:
        await filled(core)
        made_for = [spec.lifetime_s for spec in core.provider.specs if "orion.pool" in spec.labels]
        assert made_for == [MAX_WAIT_S + SAVING_S]
        run = await ask(core)
        assert run.sandbox_id is not None
        lives_s = core.provider.lifetimes_s[SandboxId(run.sandbox_id)]
        assert 4990 + SAVING_S < lives_s <= 5000 + SAVING_S


@pytest.mark.parametrize("how", ["refused", "silent", "ends soon"])
async def test_one_that_does_not_take_its_task(how: str, tmp_path: Path) -> None:
    """The run goes on in a new sandbox of its own, within seconds; the unfit one is destroyed."""
    async with pooled(tmp_path) as core:
        await filled(core)
        (info,) = await core.provider.list({"orion.pool": "true"})
        nth = core.provider.count("write_files") + 1
        if how == "refused":
            error = SandboxError(SandboxErrorCode.UNAVAILABLE, "the engine does not answer")
            core.provider.fail("write_files", nth, error)
        elif how == "ends soon":
            error = SandboxError(SandboxErrorCode.UNAVAILABLE, "it lives no longer")
            core.provider.fail("extend", 1, error)
        else:
            core.provider.fail("write_files", nth, TimeoutError())
        run = await ask(core)
        assert run.state is RunState.SUCCEEDED
        assert run.sandbox_id != info.id
        assert figures(core).failed == 1
        assert [grant.run_id for grant in core.broker.grants] == [run.id, run.id]
        await until(lambda: core.provider.alive == 1)  # the next that waits
    assert core.provider.alive == 0


async def test_a_run_in_a_prepared_sandbox_that_takes_too_long(tmp_path: Path) -> None:
    """Its time begins with its task, and ends it as any other."""
    policy = replace(POLICY, run_timeout_s=2)
    async with pooled(tmp_path, policy=policy) as core:
        await filled(core)
        run = await ask(core, [{"sleep": 30}, {"final": "late"}])
        assert (run.state, run.result.error_code) == (RunState.FAILED, "SANDBOX_TIMEOUT")
        assert figures(core).taken == 1
    assert core.provider.alive == 0


async def test_a_stop_in_a_prepared_sandbox(tmp_path: Path) -> None:
    """The agent that was prepared is dead when the run has ended."""
    async with pooled(tmp_path) as core:
        await filled(core)
        request = request_of([{"tool": "begun"}, {"sleep": 30}, {"final": "late"}])
        await core.intake.accept(request)
        await until(lambda: any(progress.steps for progress in core.replies.shown))
        await core.intake.stop_run(request.run_id, user="U0YOU")
        run = await ended(core, request.run_id)
        assert run.state is RunState.STOPPED
        assert figures(core).taken == 1
    assert core.provider.alive == 0


async def test_what_has_waited_for_long_is_replaced(tmp_path: Path) -> None:
    """Before its provider, or its own supervisor, would end it; that is no failure."""
    async with pooled(tmp_path, wait_s=0.5) as core:
        await filled(core)
        (first,) = await core.provider.list({"orion.pool": "true"})
        async with asyncio.timeout(10):
            while first.id in {one.id for one in await core.provider.list()}:
                await asyncio.sleep(0.05)
        assert figures(core).failed == 0


async def test_another_sandbox_than_asked_for_is_never_given(tmp_path: Path) -> None:
    """Anything that a run's own sandbox would have and this one has not: it is destroyed instead."""
    async with pooled(tmp_path) as core:
        await filled(core)
        spec = await core.runtime.runner.spec_to_wait(SessionId("ses_1"), 1)
        assert spec is not None
        other = replace(spec, limits=replace(spec.limits, max_processes=7))
        assert core.runtime.pool.take(other, SessionId("ses_1")) is None
        assert figures(core).waiting == 0
        await until(lambda: figures(core).waiting == 1)
        assert core.runtime.pool.take(spec, SessionId("ses_1")) is not None


async def test_room_is_made_for_those_who_ask(tmp_path: Path) -> None:
    """At a provider's limit what waits gives way to a run, and does not come back at once."""
    async with pooled(tmp_path) as core:
        await filled(core)
        await ask(core, [{"write": "notes", "text": "a"}, {"final": "written"}])
        await filled(core)
        nth = core.provider.count("create") + 1
        core.provider.fail(
            "create", nth, SandboxError(SandboxErrorCode.LIMIT_REACHED, "5 are running")
        )
        assert (await ask(core, [{"read": "notes"}], number=1)).result.answer == "a"
        assert figures(core).waiting == 0


async def test_nothing_waits_before_there_is_an_environment(tmp_path: Path) -> None:
    """To make one is not the pool's business."""
    async with open_core(POLICY, socket=str(tmp_path / "s"), pool_size=1) as core:
        await asyncio.sleep(0.2)
        assert core.provider.created == 0
        assert (await ask(core)).state is RunState.SUCCEEDED


def test_the_longest_wait_fits_into_every_providers_life() -> None:
    """With a run of the default length and what is saved after it, half an hour."""
    assert MAX_WAIT_S + 600 + 120 + 60 <= 1800


@pytest.mark.long
async def test_the_next_is_made_when_the_agent_of_the_last_has_started(tmp_path: Path) -> None:
    """Not at once: the two would be in each other's way. Whoever comes meanwhile has one of their own."""
    async with pooled(tmp_path, rest_s=REST_S) as core:
        await filled(core)
        started_s = asyncio.get_running_loop().time()
        assert (await ask(core)).state is RunState.SUCCEEDED
        assert (await ask(core, thread=1)).state is RunState.SUCCEEDED
        assert (figures(core).taken, figures(core).missed) == (1, 1)
        await filled(core)
        assert asyncio.get_running_loop().time() - started_s >= REST_S
