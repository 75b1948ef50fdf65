"""A run that is worked on in slices: what any process does next is in its record, and the agent does not notice."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from typing_extensions import override

from app.errors import ErrorCode
from app.runs.testing import (
    AgainIn,
    Done,
    ModelCall,
    ProcessId,
    Resumption,
    Run,
    RunFileKind,
    RunId,
    RunPolicy,
    RunState,
    SystemClock,
    Usage,
    session_id_for,
)
from app.store.memory import MemoryRunStore
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.task_group import open_task_group
from sandbox_runtime.testing.fake import FakeProvider
from sandbox_runtime.types import Capability, SandboxId
from tests.faults.building import POLICY, Core, core_of, ended, open_core, request_of
from tests.faults.plan_agent import Plan, PlanAdapter
from tests.long import long_but

SLICE_S = 0.4
HEARD_OFFSET = 2
"""Its start, and its first words: what the agent says on a busy machine may take more slices."""
WORK: Plan = [{"text": "a"}, {"tool": "one"}, {"sleep": 1.2}, {"tool": "two"}, {"final": "done"}]
ENDLESS: Plan = [{"text": "half"}, {"tool": "one"}, {"sleep": 60}]


async def placed(core: Core, plan: Plan, *, ts: str = "1795302364.000100") -> RunId:
    """A run that waits for its first slice, and that nobody but the test advances."""
    request = request_of(plan, ts=ts)
    await core.store.add(Run(id=request.run_id, request=request, created_at=request.received_at))
    await core.store.update(request.run_id, state=RunState.PLACED, reply_ts="9.1")
    return request.run_id


async def one_slice(core: Core, run_id: RunId, slice_s: float = SLICE_S) -> AgainIn | Done:
    return await core.service.advance(
        run_id, until=SystemClock().now() + timedelta(seconds=slice_s)
    )


async def first_slices(core: Core, run_id: RunId, *, count: int = 1) -> Run:
    """The run between two slices."""
    for _ in range(count):
        assert await one_slice(core, run_id) == AgainIn(seconds=0)
    return await of(core, run_id)


async def slices(core: Core, run_id: RunId, slice_s: float = SLICE_S) -> int:
    """Works on it to its end; returns how many slices that took."""
    async with asyncio.timeout(25):
        count = 1
        while isinstance(again := await one_slice(core, run_id, slice_s), AgainIn):
            await asyncio.sleep(again.seconds)
            count += 1
        return count


async def of(core: Core, run_id: RunId) -> Run:
    run = await core.store.get(run_id)
    assert run is not None
    return run


class Attachable(FakeProvider):
    """Whose sandboxes the next process can go on with."""

    @property
    @override
    def capabilities(self) -> frozenset[Capability]:
        return super().capabilities | {Capability.ATTACH}

    @override
    def release(self, sandbox_id: SandboxId) -> None:
        """It goes on anyway, as long as this object does."""


@asynccontextmanager
async def ready_core(
    tmp_path: Path,
    policy: RunPolicy = POLICY,
    *,
    adapter: PlanAdapter | None = None,
    store: MemoryRunStore | None = None,
    provider: FakeProvider | None = None,
) -> AsyncIterator[Core]:
    """With its environment made, so that slices are the agent's alone."""
    async with open_core(
        policy,
        socket=str(tmp_path / "broker.sock"),
        adapter=adapter,
        store=store,
        sandboxes=provider,
    ) as core:
        await core.runtime.runner.prepare_environment()
        yield core


async def test_slices_are_one_attempt(tmp_path: Path) -> None:
    """One sandbox, one start of the agent, one answer; steps and log are whole, nothing is in them twice."""
    async with ready_core(tmp_path) as core:
        run_id = await placed(core, WORK)
        made = core.provider.created
        assert await slices(core, run_id) >= 3
        run = await of(core, run_id)
        assert (run.state, run.result.answer, run.attempt) == (RunState.SUCCEEDED, "done", 1)
        assert (run.checkpoint, run.result.resumed, run.result.steps) == (None, None, 2)
        assert run.result.duration_s >= 1.2
        assert run.event_offset == 6
        log = await core.store.files.load(run_id, RunFileKind.LOG)
        assert [line.partition(" | ")[2] for line in log.splitlines()] == [
            json.dumps(step) for step in WORK if "sleep" not in step
        ]
        assert core.provider.created - made == 1
        assert [one for one, _ in core.replies.finished] == [run_id]
        assert core.broker.kept == []
        assert core.provider.alive == 0


async def test_a_server_in_slices(tmp_path: Path) -> None:
    """By the setting alone the dispatcher's runs are worked on in slices, with progress in each."""
    async with ready_core(tmp_path, replace(POLICY, slice_s=SLICE_S)) as core:
        request = request_of(WORK)
        await core.intake.accept(request)
        run = await ended(core, request.run_id)
        assert len(core.broker.grants) >= 3
        assert (run.state, run.attempt, run.result.steps) == (RunState.SUCCEEDED, 1, 2)
        assert "two" in {tool.argument for shown in core.replies.shown for tool in shown.tools}


async def test_a_stop_between_slices(tmp_path: Path) -> None:
    """The next slice ends the agent, which is dead then, and tells what had been written."""
    async with ready_core(tmp_path) as core:
        run_id = await placed(core, ENDLESS)
        await first_slices(core, run_id, count=2)
        async with asyncio.timeout(15):
            while (await of(core, run_id)).event_offset < HEARD_OFFSET:
                await first_slices(core, run_id)
        await core.store.request_stop(run_id, user="U0YOU", at=SystemClock().now())
        async with asyncio.timeout(6):
            assert await one_slice(core, run_id) == Done()
        run = await of(core, run_id)
        assert (run.state, run.result.stopped_by) == (RunState.STOPPED, "U0YOU")
        assert (run.result.answer, run.attempt) == ("half", 1)
        assert core.provider.alive == 0


async def test_a_stop_in_a_slice(tmp_path: Path) -> None:
    """A slice hears of it by itself, from the record, and goes on until the agent is dead."""
    async with ready_core(tmp_path) as core:
        run_id = await placed(core, ENDLESS)
        await first_slices(core, run_id)
        async with asyncio.timeout(8), open_task_group() as group:
            going = group.create_task(one_slice(core, run_id, 20))
            await asyncio.sleep(0.5)
            await core.store.request_stop(run_id, user="U0YOU", at=SystemClock().now())
        assert going.result() == Done()
        assert (await of(core, run_id)).state is RunState.STOPPED
        assert core.provider.alive == 0


async def test_the_deadline_counts_over_all_slices(tmp_path: Path) -> None:
    """However short they are, the run ends when its time is over, by the wall clock of its beginning."""
    async with ready_core(tmp_path, replace(POLICY, run_timeout_s=2)) as core:
        run_id = await placed(core, ENDLESS)
        assert await slices(core, run_id, 0.3) >= 4
        run = await of(core, run_id)
        assert run.result.error_code is ErrorCode.SANDBOX_TIMEOUT
        assert (run.result.answer, run.attempt) == ("half", 1)
        assert 1.9 <= run.result.duration_s < 6
        assert core.provider.alive == 0


@pytest.mark.long
async def test_silence_counts_over_all_slices(tmp_path: Path) -> None:
    """An agent that is silent for too long is ended, whoever reads it meanwhile."""
    async with ready_core(tmp_path, replace(POLICY, idle_timeout_s=1)) as core:
        run_id = await placed(core, ENDLESS)
        assert await slices(core, run_id, 0.3) >= 3
        assert (await of(core, run_id)).result.error_code is ErrorCode.AGENT_IDLE


async def test_a_frozen_process_comes_back_too_late(tmp_path: Path) -> None:
    """Time stands still for nobody: when the next slice begins after the deadline, the run ends at once."""
    async with ready_core(tmp_path, replace(POLICY, run_timeout_s=2)) as core:
        run_id = await placed(core, ENDLESS)
        await first_slices(core, run_id, count=2)
        await asyncio.sleep(2.5)
        async with asyncio.timeout(5):
            assert await one_slice(core, run_id) == Done()
        run = await of(core, run_id)
        assert (run.result.error_code, run.attempt) == (ErrorCode.SANDBOX_TIMEOUT, 1)
        assert core.provider.alive == 0


@pytest.mark.long
async def test_an_agent_that_ends_between_slices(tmp_path: Path) -> None:
    """Its answer is found in its log."""
    async with ready_core(tmp_path) as core:
        run_id = await placed(core, WORK)
        run = await first_slices(core, run_id)
        assert run.checkpoint is not None
        sandbox = await core.provider.attach(SandboxId(run.sandbox_id or ""))
        log = f"{run.checkpoint.directory}/events.jsonl"
        until_ended = f'until grep -q \'"kind": "exit"\' {log}; do sleep 0.1; done'
        await sandbox.exec(["sh", "-c", until_ended], timeout_s=15)
        assert await one_slice(core, run_id) == Done()
        assert (await of(core, run_id)).result.answer == "done"


async def test_a_slice_that_dies_is_an_attempt(tmp_path: Path) -> None:
    """Cut short in its midst it counts; the turn is run again, as its sandbox went with it."""
    async with ready_core(tmp_path) as core:
        run_id = await placed(core, WORK)
        await first_slices(core, run_id)
        async with open_task_group() as group:
            dying = group.create_task(one_slice(core, run_id, 20))
            await asyncio.sleep(0.2)
            dying.cancel()
        run = await of(core, run_id)
        assert (run.checkpoint, run.attempt, core.provider.alive) == (None, 1, 0)
        await slices(core, run_id)
        run = await of(core, run_id)
        assert (run.state, run.attempt) == (RunState.SUCCEEDED, 2)
        assert run.result.resumed is Resumption.REPEATED
        assert len(core.replies.finished) == 1


async def test_a_crash_between_slices(tmp_path: Path) -> None:
    """The sandboxes of this provider end with their process: another one begins the turn anew, as a further attempt."""
    store = MemoryRunStore()
    async with core_of(tmp_path, store=store) as core:
        await core.runtime.runner.prepare_environment()
        run_id = await placed(core, WORK)
        assert (await first_slices(core, run_id)).checkpoint is not None
    async with core_of(tmp_path, store=store) as core:
        run = await ended(core, run_id)
        assert (run.state, run.attempt) == (RunState.SUCCEEDED, 2)
        assert run.result.resumed is Resumption.REPEATED
        assert core.provider.alive == 0


async def test_what_may_have_changed_something_outside_is_not_repeated(tmp_path: Path) -> None:
    """Nor when its sandbox is lost between two slices."""
    async with ready_core(tmp_path) as core:
        run_id = await placed(core, ENDLESS)
        run = await first_slices(core, run_id)
        await core.store.update(run_id, has_outside_effect=True)
        assert run.sandbox_id is not None
        sandbox = await core.provider.attach(SandboxId(run.sandbox_id))
        await sandbox.destroy()
        await slices(core, run_id)
        run = await of(core, run_id)
        assert (run.result.error_code, run.attempt) == (ErrorCode.INTERRUPTED, 2)


async def test_a_provider_that_cannot_be_reached_is_asked_again(tmp_path: Path) -> None:
    """A slice that finds its provider away leaves the agent alone, and the next one goes on: the same attempt."""
    async with ready_core(tmp_path) as core:
        run_id = await placed(core, WORK)
        before = await first_slices(core, run_id)
        error = SandboxError(SandboxErrorCode.UNAVAILABLE, "away for a moment", retryable=True)
        core.provider.fail("attach", 1, error)
        assert await one_slice(core, run_id) == AgainIn(seconds=1.0)
        assert (await of(core, run_id)).checkpoint == before.checkpoint
        await slices(core, run_id)
        run = await of(core, run_id)
        assert (run.state, run.attempt) == (RunState.SUCCEEDED, 1)


async def test_calls_between_slices_are_counted(tmp_path: Path) -> None:
    """The grant is open all the time, and what the agent asks a model for is the run's, once."""
    async with ready_core(tmp_path) as core:
        run_id = await placed(core, [*WORK[:-1], {"cost_usd": 0.5}, WORK[-1]])
        core.broker.model_calls = [_call()]
        await first_slices(core, run_id)
        for _ in range(2):
            core.broker.hooks.on_call(_call())
        await slices(core, run_id)
        run = await of(core, run_id)
        assert (run.result.usage.model_calls, run.result.usage.input_tokens) == (3, 30)
        assert run.result.cost_usd == 0.5


def _call() -> ModelCall:
    now = SystemClock().now()
    return ModelCall(
        model="priced-1",
        started_at=now,
        first_token_at=now,
        ended_at=now,
        status=200,
        usage=Usage(input_tokens=10),
    )


async def test_a_memory_that_is_found_lost_in_a_later_slice(tmp_path: Path) -> None:
    """The agent is started once more, with the thread's history, within the same attempt."""
    adapter = PlanAdapter(has_sessions=True)
    async with ready_core(tmp_path, replace(POLICY, session_keep_s=60), adapter=adapter) as core:
        first = await placed(core, [{"final": "hello"}])
        await slices(core, first)
        await core.store.sessions.update(
            session_id_for((await of(core, first)).thread),
            agent_session_id="00000000-0000-4000-8000-000000000000",
        )
        plan: Sequence[dict[str, object]] = [
            {"sleep": 0.8},
            {"run": "[ -e again ] || { touch again; kill -9 $PPID; }"},
            {"final": "remembered anew"},
        ]
        request = request_of(plan, ts="1795302365.000100", thread_ts="1795302364.000100")
        await core.store.add(
            Run(id=request.run_id, request=request, created_at=request.received_at)
        )
        await core.store.update(request.run_id, state=RunState.PLACED, reply_ts="9.2")
        assert await slices(core, request.run_id) >= 3
        run = await of(core, request.run_id)
        assert (run.state, run.result.answer, run.attempt) == (
            RunState.SUCCEEDED,
            "remembered anew",
            1,
        )
        resumed, anew = adapter.turns[-2:]
        assert resumed.session is not None
        assert anew.session is not None
        assert (resumed.session.resume, anew.session.resume) == (True, False)


@pytest.mark.long
async def test_the_sandbox_is_kept_after_slices_too(tmp_path: Path) -> None:
    """What the first slice knew of its environment is known at the end: the thread's next run finds the sandbox."""
    async with ready_core(tmp_path, replace(POLICY, session_keep_s=60)) as core:
        first = await placed(core, [{"write": "notes", "text": "kept"}, *WORK])
        assert await slices(core, first) >= 2
        request = request_of(
            [{"read": "notes"}], ts="1795302365.000100", thread_ts="1795302364.000100"
        )
        await core.store.add(
            Run(id=request.run_id, request=request, created_at=request.received_at)
        )
        await core.store.update(request.run_id, state=RunState.PLACED, reply_ts="9.2")
        made = core.provider.created
        await slices(core, request.run_id)
        run = await of(core, request.run_id)
        assert (run.result.answer, core.provider.created) == ("kept", made)


LINES = 400
LONG = f"python3 -c \"for n in range({LINES}): print('{{\\\"tool\\\": \\\"' + 'x' * 10000 + str(n) + '\\\"}}')\""


@pytest.mark.long
async def test_a_long_log_is_read_whole_once(tmp_path: Path) -> None:
    """Beyond 2 MB a slice reads only what is new; at the end all steps are counted, and the log is whole."""
    async with ready_core(tmp_path) as core:
        run_id = await placed(
            core, [{"run": LONG}, {"sleep": 1}, {"tool": "more"}, {"sleep": 1}, {"final": "done"}]
        )
        assert await slices(core, run_id, 0.6) >= 3
        run = await of(core, run_id)
        # Those of the command, the command itself, and the one after it.
        assert (run.state, run.result.answer) == (RunState.SUCCEEDED, "done")
        assert run.result.steps == LINES + 2
        log = await core.store.files.load(run_id, RunFileKind.LOG)
        assert log.splitlines()[0].endswith('x0"}')
        assert log.splitlines()[-1].endswith(json.dumps({"final": "done"}))


@pytest.mark.parametrize("slice_s", [0, 20])
async def test_the_setting_is_a_bound(slice_s: float, tmp_path: Path) -> None:
    """A turn that is shorter than a slice is done in one."""
    async with ready_core(tmp_path, replace(POLICY, slice_s=slice_s)) as core:
        run_id = await placed(core, [{"final": "done"}])
        assert await core.service.advance(run_id) == Done()
        assert (await of(core, run_id)).attempt == 1


@pytest.mark.parametrize(
    "how", long_but(["handed over", "ended between slices", "lives"], lambda how: how == "lives")
)
async def test_an_agent_that_fails_when_its_process_has_ended(tmp_path: Path, how: str) -> None:
    """What it asked its model for may have gone with that one: the turn is run again. It has not where the process lives."""
    store, provider = MemoryRunStore(), Attachable()
    failing: Plan = [{"text": "half"}, {"tool": "one"}, {"sleep": 1.2}]
    async with (
        ready_core(tmp_path, store=store, provider=provider) as first,
        ready_core(tmp_path, store=store, provider=provider) as core,
    ):
        run_id = await placed(first, failing)
        if how == "handed over":
            first.service.hand_over()
            assert await first.service.advance(run_id) == AgainIn(seconds=0)
        else:
            await first_slices(first, run_id)
        if how == "ended between slices":
            store.leases.id = ProcessId("another one")
        await slices(core, run_id, 20)
        run = await of(core, run_id)
        assert (run.state, run.attempt) == (RunState.FAILED, 1 if how == "lives" else 2)


async def test_a_sandbox_left_for_a_run_that_goes_on_elsewhere(tmp_path: Path) -> None:
    """The process is frozen between two slices, and the turn is begun anew in another one: what was left is taken away."""
    async with ready_core(tmp_path) as core:
        run_id = await placed(core, ENDLESS)
        run = await first_slices(core, run_id)
        await core.runtime.workspaces.destroy_overdue()
        assert core.provider.alive == 1
        await core.store.sessions.update(session_id_for(run.thread), sandbox_id="another")
        await core.runtime.workspaces.destroy_overdue()
        assert core.provider.alive == 0


async def test_who_drains_leaves_alone_what_only_it_can_go_on_with(tmp_path: Path) -> None:
    """The sandboxes of this provider end with their process: the turn is worked on to its end."""
    async with ready_core(tmp_path) as core:
        run_id = await placed(core, WORK)
        core.service.hand_over()
        assert await core.service.advance(run_id) == Done()
        assert (await of(core, run_id)).result.answer == "done"
