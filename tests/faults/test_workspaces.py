"""A thread's files from run to run: kept, saved, restored, and what becomes of them when something breaks."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import anyio
import pytest
from typing_extensions import override

from app.errors import ErrorCode
from app.runs.testing import (
    UNSAVED,
    Run,
    RunPolicy,
    RunState,
    Session,
    SessionLocks,
    SessionStatus,
    session_id_for,
)
from app.store.memory import MemoryRunStore
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.provider import SandboxProvider
from sandbox_runtime.task_group import open_task_group
from sandbox_runtime.testing.fake import FakeProvider
from sandbox_runtime.types import Capability, SandboxSpec, SnapshotId, SnapshotRef
from tests.building import T0
from tests.faults.building import SOON, Core, core_of, ended, nowhere, open_core, request_of
from tests.faults.plan_agent import Plan, PlanAdapter
from tests.faults.sick_stores import SickSessionStore
from tests.waiting import until

KEPT = RunPolicy(run_timeout_s=20, idle_timeout_s=10, announce_after_s=0, session_keep_s=600)
UNKEPT = RunPolicy(run_timeout_s=20, idle_timeout_s=10, announce_after_s=0)
ROOT = "1795302364.000100"
WRITE = [{"write": "notes", "text": "a"}, {"final": "written"}]
READ = [{"read": "notes"}]


async def ask(core: Core, plan: Plan, *, number: int = 0, root: str = ROOT) -> Run:
    """The `number`-th message of a thread, to its end."""
    ts = f"{root.partition('.')[0]}.{100 + number:06d}"
    request = request_of(plan, ts=ts, thread_ts=root)
    await core.intake.accept(request)
    return await ended(core, request.run_id)


async def session_of(core: Core, run: Run) -> Session:
    session = await core.store.sessions.get(session_id_for(run.thread))
    assert session is not None
    return session


@pytest.mark.parametrize("policy", [KEPT, UNKEPT], ids=["kept", "restored"])
async def test_a_follow_up_finds_its_files(policy: RunPolicy, tmp_path: Path) -> None:
    """In the kept sandbox, or in a new one from what was saved; another thread finds nothing."""
    async with core_of(tmp_path, policy) as core:
        first = await ask(core, WRITE)
        session = await session_of(core, first)
        follow_up = await ask(core, READ, number=1)
        assert follow_up.result.answer == "a"
        assert (first.sandbox_id == follow_up.sandbox_id) == (policy is KEPT)
        stranger = await ask(core, READ, root="1795302365.000100")
        assert stranger.result.answer == "nothing"
        assert (await session_of(core, stranger)).name != session.name
        assert core.provider.alive == (2 if policy is KEPT else 0)


async def test_the_record_tells_where_it_stands(tmp_path: Path) -> None:
    """Running while the sandbox is kept, stopped when its time is over; the name stays."""
    async with core_of(tmp_path, RunPolicy(run_timeout_s=20, session_keep_s=0.2)) as core:
        run = await ask(core, WRITE)
        kept = await session_of(core, run)
        assert (kept.status, kept.sandbox_id) == (SessionStatus.RUNNING, run.sandbox_id)
        assert (kept.agent, kept.model, kept.provider) == ("plan", "plan-1", "fake")
        assert kept.prompt.startswith('[{"write"')
        await anyio.sleep(0.3)
        await core.workspaces.destroy_overdue()
        stopped = await session_of(core, run)
        assert (stopped.status, stopped.sandbox_id) == (SessionStatus.STOPPED, "")
        assert (stopped.name, stopped.snapshot_slug) == (kept.name, kept.snapshot_slug)
        assert core.provider.alive == 0
        assert (await ask(core, READ, number=1)).result.answer == "a"


async def test_the_endpoint_goes_with_the_sandbox(tmp_path: Path) -> None:
    """While the sandbox is kept, so is what it sees of the broker; both go when its time is over."""
    async with core_of(tmp_path, RunPolicy(run_timeout_s=20, session_keep_s=0.2)) as core:
        run = await ask(core, WRITE)
        session = await session_of(core, run)
        assert core.broker.closed == []
        assert {grant.session_id for grant in core.broker.grants} == {session.id}
        await anyio.sleep(0.3)
        await core.workspaces.destroy_overdue()
        assert core.broker.closed == [session.id]
    other = tmp_path / "other"
    other.mkdir()
    async with core_of(other, UNKEPT) as core:
        run = await ask(core, WRITE)
        assert core.broker.closed == [(await session_of(core, run)).id]


async def test_no_endpoint_stays_of_a_sandbox_that_never_came(tmp_path: Path) -> None:
    """Its making fails: nothing will close it later."""
    async with core_of(tmp_path, UNKEPT) as core:
        await ask(core, READ)
        core.broker.closed.clear()
        core.provider.fail(
            "create",
            core.provider.count("create") + 1,
            SandboxError(SandboxErrorCode.CREATE_FAILED, "no room"),
        )
        run = await ask(core, READ, number=1)
        assert run.state is RunState.FAILED
        assert core.broker.closed == [(await session_of(core, run)).id]


async def test_secrets_of_a_prompt_are_masked(tmp_path: Path) -> None:
    """The session's first question is stored without them."""
    async with core_of(tmp_path, UNKEPT) as core:
        run = await ask(core, [{"final": "hunter2"}])
        assert "hunter2" not in (await session_of(core, run)).prompt


async def test_a_run_without_changes_saves_nothing(tmp_path: Path) -> None:
    """An agent that used no tool has changed no file."""
    async with core_of(tmp_path, UNKEPT) as core:
        run = await ask(core, [{"final": "just words"}])
        assert (await session_of(core, run)).snapshot_slug == ""


async def test_a_failed_agent_keeps_its_files(tmp_path: Path) -> None:
    """What it wrote before it failed is there for the next question."""
    async with core_of(tmp_path, UNKEPT) as core:
        failed = await ask(core, [{"write": "notes", "text": "half"}, {"exit": 3}])
        assert failed.state is RunState.FAILED
        assert (await ask(core, READ, number=1)).result.answer == "half"


class Remembering(FakeProvider):
    """Lists snapshots that it has no more."""

    def __init__(self) -> None:
        super().__init__()
        self._deleted: list[SnapshotRef] = []

    @override
    async def list_snapshots(self) -> Sequence[SnapshotRef]:
        return [*await super().list_snapshots(), *self._deleted]

    @override
    async def delete_snapshot(self, snapshot_id: SnapshotId) -> None:
        self._deleted += [ref for ref in await super().list_snapshots() if ref.id == snapshot_id]
        await super().delete_snapshot(snapshot_id)


@pytest.mark.parametrize("is_listed", [False, True])
async def test_lost_files_do_not_cost_the_answer(is_listed: bool, tmp_path: Path) -> None:
    """When what was saved is gone, the next run begins with nothing; also where the provider still lists what it let expire."""
    provider = Remembering() if is_listed else FakeProvider()
    socket = str(tmp_path / "broker.sock")
    async with open_core(UNKEPT, socket=socket, sandboxes=provider) as core:
        run = await ask(core, WRITE)
        slug = (await session_of(core, run)).snapshot_slug
        await core.provider.delete_snapshot(SnapshotId(slug))
        listed = {ref.id for ref in await core.provider.list_snapshots()}
        assert (slug in listed) is is_listed
        assert (await ask(core, READ, number=1)).result.answer == "nothing"


@pytest.mark.parametrize("policy", [KEPT, UNKEPT], ids=["kept", "unkept"])
async def test_a_failure_to_save_does_not_cost_the_answer(
    policy: RunPolicy, tmp_path: Path
) -> None:
    """The answer stands, and says so; the kept sandbox has the files, a new one what was saved before."""
    async with core_of(tmp_path, policy) as core:
        await ask(core, WRITE)
        full = SandboxError(SandboxErrorCode.UNAVAILABLE, "disk full")
        core.provider.fail("snapshot", core.provider.count("snapshot") + 1, full)
        again = await ask(core, WRITE, number=1)
        assert (again.state, again.result.answer) == (RunState.SUCCEEDED, f"written\n\n{UNSAVED}")
        assert (await ask(core, READ, number=2)).result.answer == ("aa" if policy is KEPT else "a")


class Declaring(FakeProvider):
    """Also has a capability that the fake lacks."""

    def __init__(self, capability: Capability) -> None:
        super().__init__()
        self._declared = capability

    @property
    @override
    def capabilities(self) -> frozenset[Capability]:
        return super().capabilities | {self._declared}


@pytest.mark.parametrize("capability", [Capability.BILLED, Capability.ENDS_WHEN_SAVED])
async def test_what_costs_or_has_ended_is_not_kept(capability: Capability, tmp_path: Path) -> None:
    """No sandbox idles between two questions where it costs money, or where saving it has ended it."""
    socket = str(tmp_path / "broker.sock")
    async with open_core(KEPT, socket=socket, sandboxes=Declaring(capability)) as core:
        await ask(core, WRITE)
        assert core.provider.alive == 0
        assert (await ask(core, READ, number=1)).result.answer == "a"


@pytest.mark.long
@pytest.mark.parametrize("is_removed", [True, False])
async def test_a_kept_sandbox_that_died_is_replaced(is_removed: bool, tmp_path: Path) -> None:
    """The next run gets a new one, from what was saved; one that is there and takes no files is destroyed."""
    async with core_of(tmp_path, KEPT) as core:
        first = await ask(core, WRITE)
        (info,) = await core.provider.list()
        assert info.id == first.sandbox_id
        if is_removed:
            await core.provider.remove(info.id)  # as an operator would
        else:
            gone = SandboxError(SandboxErrorCode.UNAVAILABLE, "gone")
            core.provider.fail("write_files", core.provider.count("write_files") + 1, gone)
        follow_up = await ask(core, READ, number=1)
        assert follow_up.result.answer == "a"
        assert follow_up.sandbox_id != first.sandbox_id
        assert core.provider.alive == 1


async def test_a_kept_sandbox_that_fell_behind_is_not_used(tmp_path: Path) -> None:
    """Another process answered in the thread meanwhile: its files count."""
    async with core_of(tmp_path, KEPT) as core:
        first = await ask(core, WRITE)
        other = await ask(
            core, [{"write": "notes", "text": "of another"}, {"final": "x"}], root="1.000100"
        )
        slug = (await session_of(core, other)).snapshot_slug
        await core.store.sessions.update(session_id_for(first.thread), snapshot_slug=slug)
        assert (await ask(core, READ, number=1)).result.answer == "of another"


async def test_kept_sandboxes_make_room(tmp_path: Path) -> None:
    """Where the provider has no place left, the one unused for longest goes; beyond the number of runs at once too."""
    policy = RunPolicy(run_timeout_s=20, session_keep_s=600, capacity=1, announce_after_s=0)
    async with core_of(tmp_path, policy) as core:
        await ask(core, WRITE)
        full = SandboxError(SandboxErrorCode.LIMIT_REACHED, "1 is running")
        core.provider.fail("create", core.provider.count("create") + 1, full)
        second = await ask(core, WRITE, root="2.000100")
        assert second.state is RunState.SUCCEEDED
        assert core.provider.alive == 1
        await ask(core, WRITE, root="3.000100")
        await core.workspaces.destroy_overdue()
        assert core.provider.alive == 1
        assert (await ask(core, READ, number=1)).result.answer == "a"


async def test_what_nobody_used_for_long_is_removed(tmp_path: Path) -> None:
    """With the sandbox and what was saved of it; another thread's stays."""
    async with core_of(tmp_path, KEPT) as core:
        old = await ask(core, WRITE)
        fresh = await ask(core, WRITE, root="2.000100")
        snapshots = len(await core.provider.list_snapshots())
        await core.store.sessions.update(session_id_for(old.thread), used_at=T0)
        assert await core.workspaces.removal(nowhere).remove_unused(T0 + timedelta(seconds=1)) == 1
        assert await core.store.sessions.get(session_id_for(old.thread)) is None
        assert len(await core.provider.list_snapshots()) == snapshots - 1
        assert [info.id for info in await core.provider.list()] == [fresh.sandbox_id]
        assert (await ask(core, READ, number=1)).result.answer == "nothing"


async def test_a_sick_database_does_not_end_the_closing(tmp_path: Path) -> None:
    """A kept sandbox goes when its time is over, and the next round comes, whatever the records do."""
    policy = replace(UNKEPT, session_keep_s=0.2, timings=SOON)
    store, sessions = MemoryRunStore(), SickSessionStore()
    store.sessions = sessions
    async with core_of(tmp_path, policy, store=store) as core:
        await ask(core, WRITE)
        sessions.is_sick = True
        await until(lambda: core.provider.alive == 0)
        sessions.is_sick = False
        await ask(core, WRITE, root="2.000100")
        await until(lambda: core.provider.alive == 0)


@pytest.mark.parametrize("takes_id", [True, False])
async def test_an_agent_that_ended_before_it_told_its_session(
    tmp_path: Path, takes_id: bool
) -> None:
    """It is known all the same where its id was given, and comes up again with the next question."""
    policy, socket = replace(UNKEPT, idle_timeout_s=1), str(tmp_path / "broker.sock")
    adapter = PlanAdapter(has_sessions=True, takes_session_id=takes_id)
    async with open_core(policy, socket=socket, adapter=adapter) as core:
        run = await ask(core, [{"text": "half"}, {"sleep": 60}])
        assert run.result.error_code is ErrorCode.AGENT_IDLE
        given = (await session_of(core, run)).agent_session_id
        assert bool(given) is takes_id
        follow_up = await ask(core, [{"final": "x"}], number=1)
        assert (await session_of(core, follow_up)).agent_session_id == given


async def test_a_thread_at_another_provider_begins_anew(tmp_path: Path) -> None:
    """It does not look there for its files, and what it left there goes with it; as long as that cannot be, the record stays."""
    there = FakeProvider()
    is_away = True

    @asynccontextmanager
    async def elsewhere(name: str) -> AsyncIterator[SandboxProvider]:
        assert name == "other"
        if is_away:
            raise SandboxError(SandboxErrorCode.UNAVAILABLE, "the engine is down")
        yield there

    async with (
        there,
        open_core(UNKEPT, socket=str(tmp_path / "broker.sock")) as core,
    ):
        sandbox = await there.create(SandboxSpec())
        left = await sandbox.snapshot(name="left")
        run = await ask(core, WRITE)
        session_id = session_id_for(run.thread)
        await core.store.sessions.update(
            session_id, provider="other", snapshot_slug=left.id, agent_session_id="memory"
        )
        follow_up = await ask(core, [{"write": "notes", "text": "new"}, {"final": "x"}], number=1)
        assert (await ask(core, READ, number=2)).result.answer == "new"
        session = await session_of(core, follow_up)
        assert (session.provider, session.agent_session_id) == ("fake", "")
        assert session.snapshots == {"other": left.id, "fake": session.snapshot_slug}

        await core.store.sessions.update(session_id, used_at=T0)
        later = T0 + timedelta(seconds=1)
        assert await core.workspaces.removal(elsewhere).remove_unused(later) == 0
        assert await core.store.sessions.get(session_id) is not None
        is_away = False
        assert await core.workspaces.removal(elsewhere).remove_unused(later) == 1
        assert await there.list_snapshots() == ()
        assert session.snapshot_slug not in {ref.id for ref in await core.provider.list_snapshots()}


async def test_a_visited_sandbox_is_not_given_up(tmp_path: Path) -> None:
    """Its time runs out when the person has left; nor does it make room for others."""
    policy = RunPolicy(run_timeout_s=20, session_keep_s=0.1, announce_after_s=0)
    async with core_of(tmp_path, policy) as core:
        run = await ask(core, WRITE)
        with SessionLocks(tmp_path / "visits").use(session_id_for(run.thread)):
            await anyio.sleep(0.2)
            await core.workspaces.destroy_overdue()
            assert core.provider.alive == 1
            full = SandboxError(SandboxErrorCode.LIMIT_REACHED, "1 is running")
            core.provider.fail("create", core.provider.count("create") + 1, full)
            assert (await ask(core, WRITE, root="2.000100")).state is RunState.FAILED
        await core.workspaces.destroy_overdue()
        assert core.provider.alive == 0


async def test_the_oldest_of_too_many_stays_while_somebody_works_in_it(tmp_path: Path) -> None:
    """Beyond as many as may run at once the oldest go before their time, but not under a person."""
    policy = replace(KEPT, capacity=1)
    async with core_of(tmp_path, policy) as core:
        oldest = await ask(core, WRITE)
        with SessionLocks(tmp_path / "visits").use(session_id_for(oldest.thread)):
            await ask(core, WRITE, root="2.000100")
            await core.workspaces.destroy_overdue()
            assert (await session_of(core, oldest)).status is SessionStatus.RUNNING
        await core.workspaces.destroy_overdue()
        assert (await session_of(core, oldest)).status is SessionStatus.STOPPED


async def test_a_run_takes_what_was_saved_meanwhile(tmp_path: Path) -> None:
    """Whoever saves a thread's files while its run begins is waited for, and the kept sandbox is behind then."""
    async with core_of(tmp_path, KEPT) as core:
        first = await ask(core, WRITE)
        other = await ask(
            core, [{"write": "notes", "text": "saved"}, {"final": "x"}], root="2.000100"
        )
        slug = (await session_of(core, other)).snapshot_slug
        session_id = session_id_for(first.thread)
        async with open_task_group() as group:
            with SessionLocks(tmp_path / "visits").lock_for_saving(session_id):
                asking = group.create_task(ask(core, READ, number=1))
                await anyio.sleep(0.3)
                assert not asking.done()
                await core.store.sessions.update(session_id, snapshot_slug=slug)
        assert (await asking).result.answer == "saved"


async def test_an_unsaved_run_leaves_the_saved_files_alone(tmp_path: Path) -> None:
    """A run without changes does not point its thread back at what was saved when it began."""
    async with core_of(tmp_path, UNKEPT) as core:
        run = await ask(core, WRITE)
        session_id = session_id_for(run.thread)
        async with open_task_group() as group:
            asking = group.create_task(ask(core, [{"sleep": 1}, {"final": "words"}], number=1))
            async with asyncio.timeout(10):
                while (await session_of(core, run)).sandbox_id == "":
                    await anyio.sleep(0.02)
            await core.store.sessions.update(session_id, snapshot_slug="newer")
        assert (await asking).result.answer == "words"
        assert (await session_of(core, run)).snapshot_slug == "newer"


async def test_the_door_of_a_sandbox_left_running_stays(tmp_path: Path) -> None:
    """A kept sandbox whose time is over takes its thread's endpoint along, unless a person left another one running behind it."""
    policy = RunPolicy(run_timeout_s=20, session_keep_s=0.1, announce_after_s=0)
    async with core_of(tmp_path, policy) as core:
        locks = SessionLocks(tmp_path / "visits")
        session_id = session_id_for((await ask(core, WRITE)).thread)
        locks.mark_detached(session_id)
        await anyio.sleep(0.15)
        await core.workspaces.destroy_overdue()
        assert core.provider.alive == 0
        assert core.broker.closed == []
        locks.clear_detached(session_id)
        await ask(core, WRITE, number=1)
        await anyio.sleep(0.15)
        await core.workspaces.destroy_overdue()
        assert core.broker.closed == [session_id]


async def test_an_agent_is_told_what_is_true_of_its_run(tmp_path: Path) -> None:
    """Of its files, its network and its limits: a first question begins with nothing, the next one with what that left."""
    adapter = PlanAdapter()
    socket = str(tmp_path / "broker.sock")
    async with open_core(KEPT, socket=socket, adapter=adapter) as core:
        await ask(core, [{"write": "a.txt", "text": "x"}, {"final": "done"}])
        await ask(core, [{"final": "done"}], number=1)
    first, second = (turn.system_prompt for turn in adapter.turns)
    assert "starts empty. Its files are kept for the next message" in first
    assert "holds what earlier messages of this thread left" in second
    for prompt in (first, second):
        assert "The sandbox has no network" in prompt
        assert "seconds for the whole answer, 2 GiB of memory, and 10 GiB for files" in prompt


class Faraway(FakeProvider):
    """Has a region."""

    @property
    @override
    def region(self) -> str:
        return "fra1"


async def test_a_session_tells_its_region(tmp_path: Path) -> None:
    """Of the provider in which its thread's latest run began; on this machine there is none."""
    socket = str(tmp_path / "broker.sock")
    async with open_core(UNKEPT, socket=socket, sandboxes=Faraway()) as core:
        run = await ask(core, WRITE)
        assert (await session_of(core, run)).region == "fra1"
        await core.store.sessions.update(session_id_for(run.thread), region="elsewhere")
        assert (await session_of(core, await ask(core, READ, number=1))).region == "fra1"
    async with core_of(tmp_path, UNKEPT) as core:
        assert (await session_of(core, await ask(core, WRITE))).region == ""
