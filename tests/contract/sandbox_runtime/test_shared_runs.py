"""Runs and kept sandboxes of several services that share an engine, and a store: each has its own provider and its own name."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from app.runs.testing import AgainIn, Run, RunId, RunPolicy, RunState, SystemClock, session_id_for
from app.store.memory import MemoryRunStore
from sandbox_runtime.providers.docker import DockerSettings
from sandbox_runtime.providers.docker.provider import DockerProvider
from sandbox_runtime.task_group import open_task_group
from tests.contract.sandbox_runtime.docker_engine import count
from tests.faults.building import POLICY, Core, open_core, request_of
from tests.faults.building import ended as found_ended
from tests.faults.plan_agent import Plan
from tests.waiting import until

pytestmark = [pytest.mark.docker, pytest.mark.timeout(120)]

KEPT = replace(POLICY, run_timeout_s=60, session_keep_s=60)
SLICE_S = 2.0
WORK: Plan = [
    {"write": "notes", "text": "kept"},
    {"sleep": 4},
    {"tool": "late"},
    {"final": "done"},
]


@pytest.fixture
def directory() -> Iterator[Path]:
    """Sandboxes, which do not run as root, reach through it."""
    with TemporaryDirectory(prefix="shared-") as name:
        Path(name).chmod(0o711)
        yield Path(name)


@asynccontextmanager
async def service(
    settings: DockerSettings,
    name: str,
    store: MemoryRunStore,
    directory: Path,
    policy: RunPolicy = KEPT,
) -> AsyncIterator[Core]:
    """One of several; nobody but the test advances its runs."""
    provider = DockerProvider(replace(settings, owner=name))
    socket = str(directory / "broker.sock")
    async with open_core(
        policy, socket=socket, store=store, sandboxes=provider, owner=name
    ) as core:
        await core.runtime.runner.prepare_environment()
        yield core


async def placed(store: MemoryRunStore, plan: Plan, *, number: int = 0) -> RunId:
    request = request_of(
        plan, ts=f"179530236{4 + number}.000100", thread_ts="1795302364.000100" if number else None
    )
    await store.add(Run(id=request.run_id, request=request, created_at=request.received_at))
    await store.update(request.run_id, state=RunState.PLACED, reply_ts=f"9.{number}")
    return request.run_id


async def one_slice(core: Core, run_id: RunId) -> bool:
    """Whether there is more to do."""
    ends_at = SystemClock().now() + timedelta(seconds=SLICE_S)
    return isinstance(await core.service.advance(run_id, until=ends_at), AgainIn)


async def ended(store: MemoryRunStore, run_id: RunId, *cores: Core) -> Run:
    """Works on it to its end, each slice by another service."""
    number = 0
    async with asyncio.timeout(60):
        while await one_slice(cores[number % len(cores)], run_id):
            number += 1
    run = await store.get(run_id)
    assert run is not None
    return run


@pytest.mark.long
async def test_each_slice_by_another_service(
    docker_settings: DockerSettings, directory: Path
) -> None:
    """One attempt in one sandbox, which the last one keeps; nothing of it is left when all are gone."""
    store = MemoryRunStore()
    async with (
        service(docker_settings, "one", store, directory) as one,
        service(docker_settings, "two", store, directory) as two,
    ):
        run_id = await placed(store, WORK)
        run = await ended(store, run_id, one, two)
        assert (run.state, run.result.answer, run.result.steps) == (RunState.SUCCEEDED, "done", 2)
        assert (run.attempt, run.result.resumed) == (1, None)
        session = await store.sessions.get(session_id_for(run.thread))
        assert session is not None
        assert session.kept_by in {"one", "two"}
        assert count(docker_settings, "ps") == 1
        await one.workspaces.end_idle(session.id)
        await two.workspaces.end_idle(session.id)
        assert count(docker_settings, "ps") == 0


@pytest.mark.long
async def test_a_service_that_ends_between_slices(
    docker_settings: DockerSettings, directory: Path
) -> None:
    """It leaves the sandbox alone, although it made it; whoever comes next goes on, in the same attempt."""
    store = MemoryRunStore()
    async with service(docker_settings, "one", store, directory) as one:
        run_id = await placed(store, WORK)
        assert await one_slice(one, run_id)
    async with service(docker_settings, "two", store, directory) as two:
        run = await found_ended(two, run_id)
        assert (run.state, run.attempt, run.result.resumed) == (RunState.SUCCEEDED, 1, None)
        await two.workspaces.end_idle(session_id_for(run.thread))


@pytest.mark.long
async def test_a_slice_that_is_cut_short_is_attached_to(
    docker_settings: DockerSettings, directory: Path
) -> None:
    """Its process dies; the sandbox is there, and another service follows the agent, which has begun: a second attempt, not a second start."""
    store = MemoryRunStore()
    async with service(docker_settings, "one", store, directory) as one:
        run_id = await placed(store, WORK)
        while not (one.replies.shown and one.replies.shown[-1].steps):
            assert await one_slice(one, run_id)
    await store.update(run_id, checkpoint=None)  # as the next slice does before it dies
    async with service(docker_settings, "two", store, directory) as two:
        run = await found_ended(two, run_id)
        assert (run.state, run.attempt, run.result.resumed) == (RunState.SUCCEEDED, 2, "attached")
        assert run.result.answer == "done"
        await two.workspaces.end_idle(session_id_for(run.thread))


@pytest.mark.long
async def test_a_kept_sandbox_is_taken_by_another_service(
    docker_settings: DockerSettings, directory: Path
) -> None:
    """Nothing is made anew; the keeper, whose time for it is over, lets it be, and so does its end."""
    store = MemoryRunStore()
    async with service(docker_settings, "two", store, directory) as two:
        async with service(docker_settings, "one", store, directory) as one:
            first = await ended(store, await placed(store, WORK), one)
            second = await ended(store, await placed(store, [{"read": "notes"}], number=1), two)
            assert (second.result.answer, second.sandbox_id) == ("kept", first.sandbox_id)
            await one.workspaces.end_idle(session_id_for(first.thread))
            assert count(docker_settings, "ps") == 1
        assert count(docker_settings, "ps") == 1
        session = await store.sessions.get(session_id_for(first.thread))
        assert session is not None
        assert (session.kept_by, session.sandbox_id) == ("two", first.sandbox_id)
        await two.workspaces.end_idle(session.id)
        assert count(docker_settings, "ps") == 0


async def test_who_drains_hands_over(docker_settings: DockerSettings, directory: Path) -> None:
    """Runs whose agents work are left at once, without a slice's end, and another service goes on with the same attempt."""
    store = MemoryRunStore()
    async with service(docker_settings, "one", store, directory) as one:
        run_id = await placed(store, WORK)
        async with asyncio.timeout(30), open_task_group() as group:
            going = group.create_task(one.service.advance(run_id))
            await until(lambda: bool(one.replies.shown and one.replies.shown[-1].steps))
            one.service.hand_over()
        assert going.result() == AgainIn(seconds=0)
    async with service(docker_settings, "two", store, directory) as two:
        run = await found_ended(two, run_id)
        assert (run.state, run.attempt, run.result.resumed) == (RunState.SUCCEEDED, 1, None)
        await two.workspaces.end_idle(session_id_for(run.thread))
