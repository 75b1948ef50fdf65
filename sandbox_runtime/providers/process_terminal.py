"""A command in a cloud's sandbox on a terminal, so that a person can work in it."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Protocol, runtime_checkable

from typing_extensions import override

from sandbox_runtime.command_sandbox import Command, StartedProcess
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.processes import KILLED
from sandbox_runtime.provider import Terminal
from sandbox_runtime.types import ExecEvent, ExecExited, ExecOutput, TerminalSize

_PIECE_BYTES = 4096


@runtime_checkable
class OrderedProcess(StartedProcess, Protocol):
    """Whose runner is one of inside/run.py, and can be told more while it runs."""

    async def order(self, data: bytes) -> None:
        """At its end, lost."""
        ...


class ProcessTerminal(Terminal):
    """Over a process that was started with one."""

    def __init__(self, process: OrderedProcess) -> None:
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
        for start in range(0, len(data), _PIECE_BYTES):
            piece = data[start : start + _PIECE_BYTES]
            await self._process.order(b"I%04d" % len(piece) + piece)

    @override
    async def resize(self, size: TerminalSize) -> None:
        await self._process.order(b"R" + digits(size).encode())

    @override
    async def close(self) -> int:
        if not self._closed:
            self._closed = True
            with suppress(SandboxError):
                await self._process.kill()
        return KILLED if self._exit_code is None else self._exit_code


def on_terminal(argv: Sequence[str], *, size: TerminalSize, env: Mapping[str, str]) -> Command:
    """What a sandbox runs for `terminal_of`; whatever terminal a person has, the commonest one is named unless `env` does."""
    whole = {"TERM": "xterm-256color", **env}
    return Command(argv=argv, env=whole, bound=True, terminal=size)


def terminal_of(process: StartedProcess) -> Terminal:
    """Of a started `on_terminal`.

    Raises:
        SandboxError: UNAVAILABLE: its sandbox was destroyed while it started.
    """
    if not isinstance(process, OrderedProcess):
        raise SandboxError(SandboxErrorCode.UNAVAILABLE, "the sandbox is destroyed")
    return ProcessTerminal(process)


def digits(size: TerminalSize) -> str:
    """As inside/terminal.py reads it."""
    return f"{min(size.rows, 9999):04}{min(size.columns, 9999):04}"
