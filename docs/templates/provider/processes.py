"""A command, by way of the program that runs commands inside (`inside/run.py`), with lines for its output."""

import asyncio
import binascii
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from contextlib import suppress

from typing_extensions import override

from sandbox_runtime.command import KILLED, Command, Detachment
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.provider import Process
from sandbox_runtime.providers.inside_scripts import RUN_SOURCE, encode_command
from sandbox_runtime.types import ExecEvent, ExecExited, ExecOutput, OutputStream, SandboxLimits

_KILL_S = 5.0
_MAX_LINE_BYTES = 1024 * 1024
_STREAMS = {b"o": OutputStream.STDOUT, b"e": OutputStream.STDERR}


async def start_process(command: Command, *, work: str, limits: SandboxLimits) -> "NameProcess":
    """Starts a command. Raises: SandboxError: UNAVAILABLE."""
    bounds = {
        "FSIZE": limits.max_file_bytes,
        "NOFILE": limits.max_open_files,
        "DATA": limits.memory_bytes,
    }
    argv = (sys.executable, "-I", "-S", "-c", RUN_SOURCE, "lines")
    child = await asyncio.create_subprocess_exec(
        *argv, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env={}, limit=_MAX_LINE_BYTES
    )
    process = NameProcess(child)
    try:
        await process.tell(encode_command(command, work=work, limits=bounds))
        await process.until_started()
    except BaseException:
        await process.kill()
        raise
    return process


class NameProcess(Process):
    """A started command."""

    def __init__(self, child: asyncio.subprocess.Process) -> None:
        self._child = child
        self._reading = asyncio.Lock()
        self._exit_code: int | None = None
        self._killed = False
        self._detachment = Detachment()

    @property
    def ended(self) -> bool:
        return self._exit_code is not None

    async def tell(self, data: bytes) -> None:
        if self._child.stdin is not None:
            with suppress(OSError):
                self._child.stdin.write(data)
                await self._child.stdin.drain()

    async def until_started(self) -> None:
        await self._line()

    @override
    async def events(self) -> AsyncIterator[ExecEvent]:
        while self._exit_code is None:
            line = await self._detachment.wait_for(self._line)
            if line is None:
                return
            if (stream := _STREAMS.get(line[:1])) is not None:
                yield ExecOutput(stream=stream, data=binascii.a2b_base64(line[1:]))
        yield ExecExited(exit_code=self._exit_code)

    async def _line(self) -> bytes:
        """Returns the next one; the last line is the exit code."""
        async with self._reading:
            line = b""
            if self._child.stdout is not None and self._exit_code is None:
                line = await self._child.stdout.readline()
            if line.startswith(b"x"):
                await self._child.wait()
                self._exit_code = int(line[1:])
            elif not line and self._exit_code is None:
                self._exit_code = KILLED
                if not self._killed:
                    reason = "what ran a command was killed"
                    raise SandboxError(SandboxErrorCode.UNAVAILABLE, reason)
            return line

    @override
    async def detach(self) -> None:
        self._detachment.set()

    @override
    async def kill(self) -> None:
        self._killed = True
        try:
            async with asyncio.timeout(_KILL_S):
                if self._exit_code is None:
                    await self.tell(b"K")
                while self._exit_code is None:
                    await self._line()
        except TimeoutError as exc:
            self._child.kill()
            reason = "a command still lives after it was killed"
            raise SandboxError(SandboxErrorCode.UNAVAILABLE, reason) from exc
