"""A command on a terminal of its own, whose connection may be lost."""

from collections.abc import AsyncIterator

import pytest
from typing_extensions import override

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.providers.inside_scripts import OrderedProcess, ProcessTerminal
from sandbox_runtime.types import ExecEvent, ExecOutput, OutputStream


class _Lost(OrderedProcess):
    """Its sandbox ends under it."""

    ended = False

    @override
    async def events(self) -> AsyncIterator[ExecEvent]:
        yield ExecOutput(stream=OutputStream.STDOUT, data=b"$ ")
        raise SandboxError(SandboxErrorCode.UNAVAILABLE, "the sandbox has ended")

    @override
    async def detach(self) -> None:
        raise NotImplementedError

    @override
    async def kill(self) -> None:
        raise SandboxError(SandboxErrorCode.UNAVAILABLE, "nobody is there")

    @override
    async def order(self, data: bytes) -> None:
        raise AssertionError(data)


async def test_whoever_sits_there_is_told_why_it_ended() -> None:
    """It shows no more; closing it says what was lost, and once."""
    terminal = ProcessTerminal(_Lost())
    assert await terminal.read() == b"$ "
    assert await terminal.read() == b""
    with pytest.raises(SandboxError, match="the sandbox has ended"):
        await terminal.close()
    assert await terminal.close() == 137
