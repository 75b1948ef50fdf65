"""What every sandbox of commands does, whoever starts them."""

from collections.abc import AsyncIterator, Sequence

import pytest
from typing_extensions import override

from sandbox_runtime.command import Command, CommandSandbox, StartedProcess, collect_result
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.provider import Terminal
from sandbox_runtime.types import (
    ExecEvent,
    ExecExited,
    SandboxId,
    SandboxPaths,
    SnapshotId,
    SnapshotRef,
)

_AWAY = SandboxError(SandboxErrorCode.UNAVAILABLE, "the API is away", retryable=True)


class _Process(StartedProcess):
    def __init__(self, failure: SandboxError | None = None) -> None:
        self._failure = failure
        self.is_killed = False

    @property
    @override
    def ended(self) -> bool:
        return self.is_killed

    @override
    async def events(self) -> AsyncIterator[ExecEvent]:
        if self._failure is not None:
            raise self._failure
        yield ExecExited(exit_code=0)

    @override
    async def detach(self) -> None:
        raise NotImplementedError

    @override
    async def kill(self) -> None:
        if self._failure is not None:
            raise self._failure
        self.is_killed = True


class _Sandbox(CommandSandbox):
    def __init__(self, *processes: _Process) -> None:
        paths = SandboxPaths(work="/work", home="/home", run="/run", environment="/env", broker="")
        super().__init__(SandboxId("one"), paths=paths, env={})
        self._processes = set(processes)

    @override
    async def _start(self, command: Command) -> StartedProcess:
        raise AssertionError(command)

    @override
    async def open_terminal(self, argv: Sequence[str], **_: object) -> Terminal:
        raise AssertionError(argv)

    @override
    async def _remove(self) -> None:
        self._removed = True

    @override
    async def snapshot(self, *, name: str | None = None) -> SnapshotRef:
        async with self._saving(saved=None):
            await self._kill_all()
        raise AssertionError(SnapshotId(name or ""))


async def test_a_process_that_cannot_be_killed() -> None:
    """All others are killed, and who would save is told the plain error, not a group of errors."""
    stuck, others = _Process(_AWAY), [_Process(), _Process()]
    with pytest.raises(SandboxError, match="the API is away"):
        await _Sandbox(stuck, *others).snapshot()
    assert [process.is_killed for process in others] == [True, True]


async def test_a_lost_command_says_no_more_than_is_known() -> None:
    """Without output the error ends where its words do, and still says that trying again may help."""
    with pytest.raises(SandboxError) as lost:
        await collect_result(_Process(_AWAY), max_output_bytes=10)
    assert str(lost.value) == "the API is away"
    assert lost.value.retryable
