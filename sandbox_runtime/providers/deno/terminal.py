"""A command in a sandbox on a terminal, so that a person can work in it."""

from collections.abc import AsyncIterator
from contextlib import suppress

from typing_extensions import override

from sandbox_runtime.errors import SandboxError
from sandbox_runtime.processes import KILLED
from sandbox_runtime.provider import Terminal
from sandbox_runtime.providers.deno.processes import RemoteProcess
from sandbox_runtime.types import ExecEvent, ExecExited, ExecOutput, TerminalSize


class DenoTerminal(Terminal):
    """Over a process that was started with one."""

    def __init__(self, process: RemoteProcess) -> None:
        self._process = process
        self._events: AsyncIterator[ExecEvent] = process.events()
        self._exit_code: int | None = None
        self._closed = False

    @override
    async def read(self) -> bytes:
        with suppress(StopAsyncIteration, SandboxError):
            match await anext(self._events):
                case ExecOutput(data=data):
                    return data
                case ExecExited(exit_code=code):
                    self._exit_code = code
        return b""

    @override
    async def write(self, data: bytes) -> None:
        await self._process.type(data)

    @override
    async def resize(self, size: TerminalSize) -> None:
        await self._process.resize(size)

    @override
    async def close(self) -> int:
        if not self._closed:
            self._closed = True
            with suppress(SandboxError):
                await self._process.kill()
        return KILLED if self._exit_code is None else self._exit_code
