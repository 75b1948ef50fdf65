"""Named environments: made once, shared, made again after a failure."""

from collections.abc import AsyncIterator

import pytest

from sandbox_runtime import (
    SYMBOLIC_PATHS,
    Agent,
    SandboxError,
    SandboxErrorCode,
    SandboxSpec,
    SnapshotRef,
    ensure_environment,
    open_sandbox,
)
from sandbox_runtime.task_group import open_task_group
from sandbox_runtime.testing.fake import FakeProvider

_LOCK = f"{SYMBOLIC_PATHS.environment}/lock"
_COPY = ["sh", "-c", 'cp "$1" "$1.copy"', "sh", _LOCK]


def _fill(agent: Agent) -> None:
    agent.add_files({_LOCK: b"pinned"}).run_commands([_COPY])


@pytest.fixture
async def fake() -> AsyncIterator[FakeProvider]:
    async with FakeProvider() as provider:
        await provider.ensure_ready()
        yield provider


async def _ensure(fake: FakeProvider, steps: list[str] | None = None) -> SnapshotRef:
    progress = steps.append if steps is not None else None
    return await ensure_environment(fake, name="agent-1", fill=_fill, progress=progress)


async def test_made_once_and_then_found(fake: FakeProvider) -> None:
    """The first call prepares it, the second finds it, and it holds files and the commands' work."""
    first_steps: list[str] = []
    first = await _ensure(fake, first_steps)
    second_steps: list[str] = []
    assert await _ensure(fake, second_steps) == first
    assert first.name == "agent-1"
    assert first_steps == [
        *("checking", "base: checking", "base: exists", "creating", "booting"),
        *("installing sh (1/1)", "snapshotting", "cleaning up", "done"),
    ]
    assert second_steps == ["checking", "exists"]
    assert fake.created == 1
    async with open_sandbox(fake, SandboxSpec(snapshot_id=first.id)) as sandbox:
        assert await sandbox.read_file(f"{sandbox.paths.environment}/lock.copy") == b"pinned"


async def test_concurrent_callers_share_one_preparation(fake: FakeProvider) -> None:
    """Five at once make it once."""
    async with open_task_group() as group:
        tasks = [group.create_task(_ensure(fake)) for _ in range(5)]
    assert len({task.result() for task in tasks}) == 1
    assert fake.created == 1


async def test_failed_preparation_can_be_tried_again(fake: FakeProvider) -> None:
    """A failure leaves nothing that is found, and the next caller makes it."""
    fake.fail("exec", 1, SandboxError(SandboxErrorCode.UNAVAILABLE, "lost"))
    with pytest.raises(SandboxError, match="lost"):
        await _ensure(fake)
    assert await fake.find_snapshot("agent-1") is None
    assert (await _ensure(fake)).name == "agent-1"
    assert fake.alive == 0


async def test_without_a_recipe_it_is_the_base(fake: FakeProvider) -> None:
    """An agent that needs nothing gets the base environment."""
    found = await ensure_environment(fake, name="bare", fill=lambda _agent: None)
    assert found == await fake.ensure_ready()
