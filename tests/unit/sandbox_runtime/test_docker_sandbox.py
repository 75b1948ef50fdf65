"""A container whose commands cannot be killed one by one, and one whose scripts never end."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import cast

import pytest
from typing_extensions import override

from sandbox_runtime import SandboxError, SandboxErrorCode, SandboxId, SandboxLimits
from sandbox_runtime.command import Command, StartedProcess
from sandbox_runtime.lifecycle import Owner
from sandbox_runtime.providers.docker.client import Engine
from sandbox_runtime.providers.docker.labels import SandboxLabels
from sandbox_runtime.providers.docker.processes import ContainerProcess, Host, run_script
from sandbox_runtime.providers.docker.sandbox import DockerSandbox
from sandbox_runtime.providers.docker.snapshots import Snapshots
from sandbox_runtime.types import ExecEvent, ExecExited, SnapshotRef


class _Stuck(StartedProcess):
    """Survives all that is done to kill it."""

    @property
    @override
    def ended(self) -> bool:
        return False

    @override
    async def events(self) -> AsyncIterator[ExecEvent]:
        await asyncio.Event().wait()
        yield ExecExited(exit_code=0)

    @override
    async def detach(self) -> None:
        raise NotImplementedError

    @override
    async def kill(self) -> None:
        raise SandboxError(SandboxErrorCode.UNAVAILABLE, "a command still lives")


class _Engine:
    """Signals everything in a container, and removes it; an exec is never answered."""

    def __init__(self) -> None:
        self.signals = 0

    async def signal(self, _container_id: str, _signal: str) -> None:
        self.signals += 1

    async def count_processes(self, _container_id: str) -> int:
        return 1

    async def remove(self, _container_id: str) -> None:
        pass

    async def exec(self, *_: object, **__: object) -> None:
        await asyncio.Event().wait()


class _Snapshots:
    async def save(self, *_: object, quiet: Callable[[], Awaitable[None]]) -> SnapshotRef:
        await quiet()
        return cast("SnapshotRef", "saved")


class _Sandbox(DockerSandbox):
    @override
    async def _start(self, command: Command) -> ContainerProcess:
        return cast("ContainerProcess", _Stuck())


@pytest.fixture
def engine() -> _Engine:
    return _Engine()


@pytest.fixture
def forgotten() -> list[SandboxId]:
    return []


@pytest.fixture
async def sandbox(engine: _Engine, forgotten: list[SandboxId]) -> DockerSandbox:
    async def forget(sandbox_id: SandboxId) -> None:
        forgotten.append(sandbox_id)

    labels = SandboxLabels(
        id="one",
        owner=Owner.of(),
        created_at=datetime.now(UTC),
        labels={},
        base="",
        environment="",
        environment_writable=False,
        broker="",
        limits=SandboxLimits(),
    )
    sandbox = _Sandbox(
        cast("Engine", engine),
        "c1",
        labels=labels,
        name="orion-one",
        env={},
        snapshots=cast("Snapshots", _Snapshots()),
        forget=forget,
    )
    await sandbox.spawn(["sleep", "1"])
    return sandbox


async def test_a_command_that_cannot_be_killed_keeps_nobody_from_saving(
    sandbox: DockerSandbox, engine: _Engine
) -> None:
    """The engine kills all that is in the container before its files are copied."""
    await sandbox.snapshot()
    assert engine.signals == 1


async def test_a_removed_container_is_forgotten_whatever_its_commands_say(
    sandbox: DockerSandbox, forgotten: list[SandboxId]
) -> None:
    """It is gone, and its provider owns it no more."""
    with pytest.raises(SandboxError, match="still lives"):
        await sandbox.destroy()
    assert forgotten == [sandbox.id]


async def test_a_script_that_does_not_end_is_given_up(engine: _Engine) -> None:
    """An engine that hangs holds up nobody for ever."""
    host = Host(
        engine=cast("Engine", engine),
        container_id="c1",
        limits=SandboxLimits(),
        is_closed=lambda: False,
    )
    async with asyncio.timeout(5):
        with pytest.raises(SandboxError, match="did not end within") as caught:
            await run_script(host, "pass", timeout_s=0.05)
    assert caught.value.code is SandboxErrorCode.UNAVAILABLE
