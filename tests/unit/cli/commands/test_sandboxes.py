"""What keeps people's commands off a thread's sandbox, in words."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from app.cli.commands.sandboxes import SandboxAdmin, SandboxCommandError, list_sandboxes
from app.cli.commands.shell import ShellSandbox, save
from app.cli.output import read_settings
from app.runs.session import SessionStatus
from app.runs.testing import Run, RunState, Session, session_id_for
from app.store.runs import open_store
from sandbox_runtime.testing.fake import FakeProvider
from sandbox_runtime.types import SandboxSpec
from tests.building import T0, make_run, make_session


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[SandboxAdmin]:
    settings = read_settings(orion_state_dir=str(tmp_path))
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(tmp_path / "orion.db"))
        yield SandboxAdmin(settings, store, stack)


async def _session(admin: SandboxAdmin, run: Run) -> Session:
    return await admin.store.sessions.add(
        Session(
            id=session_id_for(run.thread),
            name="brave-otter",
            thread=run.thread,
            provider="local",
            created_at=T0,
            used_at=T0,
        )
    )


async def test_of_many_threads_the_latest_and_those_with_a_sandbox(tmp_path: Path) -> None:
    """Where so many are asked for; a cloud that is not set up is not asked."""
    settings = read_settings(orion_state_dir=str(tmp_path))
    async with open_store(tmp_path / "orion.db") as store:
        for number in range(1, 6):
            await store.sessions.add(make_session(number))
        await store.sessions.update(make_session(2).id, sandbox_id="sb_2", provider="vercel")
    shown = await list_sandboxes(settings, limit=2)
    names = [one.session.name for one in shown if one.session is not None]
    assert names == ["brave-otter-5", "brave-otter-4", "brave-otter-2"]
    assert [one.session.status for one in shown if one.session][2] == SessionStatus.UNKNOWN
    assert len([one for one in await list_sandboxes(settings) if one.session]) == 5


@pytest.mark.parametrize(
    ("state", "told"), [(RunState.QUEUED, "waiting"), (RunState.RUNNING, "going")]
)
async def test_a_run_keeps_its_threads_sandbox(
    admin: SandboxAdmin, state: RunState, told: str
) -> None:
    """Whoever would end or remove it is told which run to end first."""
    run = make_run()
    await admin.store.add(run)
    await admin.store.update(run.id, state=state)
    with pytest.raises(SandboxCommandError) as refused:
        await admin.require_idle(await _session(admin, run))
    assert str(refused.value) == (
        f"brave-otter: a run is {told} in its thread; end it with `orion runs stop {run.id}` first"
    )


async def test_two_who_save_at_once(admin: SandboxAdmin) -> None:
    """The second one is told that their changes were not saved, and why."""
    session = await _session(admin, make_run())
    async with FakeProvider() as provider:
        sandbox = await provider.create(SandboxSpec())
        opened = ShellSandbox(sandbox=sandbox, is_of_thread=False)
        with admin.locks.lock_for_saving(session.id):
            told = await save(admin, session, opened, is_alone=lambda: True)
        assert told == "not saved: someone else is saving"
        assert await save(admin, session, opened, is_alone=lambda: True) == "saved"
