"""A command in a container on a terminal of the engine's, so that a person can work in it."""

import asyncio
from contextlib import suppress

from typing_extensions import override

from sandbox_runtime.command_sandbox import Command
from sandbox_runtime.errors import SandboxError
from sandbox_runtime.processes import KILLED
from sandbox_runtime.provider import Terminal
from sandbox_runtime.providers.docker.containers import USER, WORK
from sandbox_runtime.providers.docker.exec_stream import ExecStream
from sandbox_runtime.providers.docker.inside_scripts import KILL_SOURCE
from sandbox_runtime.providers.docker.processes import MARK_NAME, Host, run_script
from sandbox_runtime.types import TerminalSize

_END_S = 2.0
_KILL_S = 5.0


async def open_terminal(
    host: Host, command: Command, *, size: TerminalSize, mark: str
) -> "ContainerTerminal":
    """Start it.

    Raises:
        SandboxError: UNAVAILABLE.
    """
    # The engine knows the size only of a terminal that is there: what starts at once must not see another one.
    sized = f'stty rows {size.rows} cols {size.columns} 2> /dev/null; exec "$@"'
    stream = await host.engine.exec(
        host.container_id,
        ["sh", "-c", sized, "sh", *command.argv],
        user=USER,
        env={**command.env, MARK_NAME: mark},
        terminal_in=WORK,
    )
    return ContainerTerminal(host, stream, mark=mark)


class ContainerTerminal(Terminal):
    """A started command and the connection to its terminal."""

    def __init__(self, host: Host, stream: ExecStream, *, mark: str) -> None:
        self._host = host
        self._stream = stream
        self._mark = mark
        self._is_over = False
        self._exit_code: int | None = None

    @override
    async def read(self) -> bytes:
        output = await self._stream.read()
        self._is_over = output is None
        return b"" if output is None else output.data

    @override
    async def write(self, data: bytes) -> None:
        await self._stream.write(data)

    @override
    async def resize(self, size: TerminalSize) -> None:
        await self._stream.resize(size)

    @override
    async def close(self) -> int:
        if self._exit_code is not None:
            return self._exit_code
        await self._stream.close()
        code = await self._ended() if self._is_over else None
        # The engine ends neither the command nor what it left behind.
        with suppress(SandboxError, TimeoutError):
            async with asyncio.timeout(_KILL_S):
                await run_script(self._host, KILL_SOURCE, f"{MARK_NAME}={self._mark}")
        self._exit_code = KILLED if code is None else code
        return self._exit_code

    async def _ended(self) -> int | None:
        with suppress(SandboxError, TimeoutError):
            async with asyncio.timeout(_END_S):
                state = await self._stream.ended()
                return None if state is None else state.exit_code
        return None
