"""One exec of the engine with its standard streams connected."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

import aiodocker
import aiohttp
from aiodocker.execs import Exec
from aiodocker.stream import Stream

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.providers.docker.errors import asking
from sandbox_runtime.types import ExecOutput, OutputStream, TerminalSize

_WRITE_BYTES = 256 * 1024
_INSPECT_TIMEOUT_S = 10.0
_FIRST_POLL_S, _MAX_POLL_S = 0.002, 0.05

# Source: Docker Engine API v1.41, ContainerAttach, "Stream format".
_STREAMS = {1: OutputStream.STDOUT, 2: OutputStream.STDERR}


@dataclass(frozen=True, slots=True)
class ExecState:
    """What the engine knows of it."""

    running: bool
    exit_code: int | None


class ExecStream:
    """Made by `Engine.exec`. Whoever has it closes it."""

    def __init__(self, made: Exec, stream: Stream) -> None:
        self._made = made
        self._stream = stream
        self._closed = False

    @classmethod
    async def connect(cls, made: Exec) -> Self:
        """Start the exec. If this fails or is cancelled, what was started finds its stdin at the end."""
        self = cls(made, made.start(detach=False))
        try:
            await self._stream.__aenter__()
        except BaseException:
            await self.close()
            raise
        return self

    async def write(self, data: bytes) -> None:
        """Give it to stdin, as fast as it is taken. A connection that broke, or is closed, shows when it is read."""
        if self._closed:
            return
        view = memoryview(data)
        try:
            for start in range(0, len(view), _WRITE_BYTES):
                await self._stream.write_in(bytes(view[start : start + _WRITE_BYTES]))
        except (OSError, aiohttp.ClientError, AssertionError):
            return  # AssertionError: the client's way to say that the connection is gone (aiodocker 0.27.0)

    async def read(self) -> ExecOutput | None:
        """The next piece of output; None at the end. Not reading stops the command at a full pipe."""
        while True:
            try:
                message = await self._stream.read_out()
            except (OSError, aiohttp.ClientError):
                return None
            if message is None:
                return None
            if message.data and message.stream in _STREAMS:
                return ExecOutput(stream=_STREAMS[message.stream], data=message.data)

    async def resize(self, size: TerminalSize) -> None:
        """Of its terminal. Too early or too late, nothing."""
        with suppress(SandboxError):
            async with asking("cannot resize a terminal", timeout_s=_INSPECT_TIMEOUT_S):
                await self._made.resize(h=size.rows, w=size.columns)

    async def close(self) -> None:
        """Disconnect; the command finds its stdin at the end. What was written before still arrives. Idempotent."""
        self._closed = True
        try:
            await self._stream.close()
        except AssertionError:
            # The connection is gone already; the client marks the stream as closed first (aiodocker 0.27.0).
            return

    async def state(self) -> ExecState | None:
        """None when the engine does not know it any more, because its container is gone."""
        async with asking(
            "cannot inspect a command",
            timeout_s=_INSPECT_TIMEOUT_S,
            missing=SandboxErrorCode.UNAVAILABLE,
        ):
            try:
                found = await self._made.inspect()
            except aiodocker.DockerError as exc:
                if exc.status in (404, 409):  # unknown; its container is not running
                    return None
                raise
        code = found["ExitCode"]
        return ExecState(bool(found["Running"]), None if code is None else int(code))

    async def ended(self) -> ExecState | None:
        """Wait until it does not run any more, without a bound: the caller has one."""
        poll_s = _FIRST_POLL_S
        while True:
            state = await self.state()
            if state is None or not state.running:
                return state
            await asyncio.sleep(poll_s)
            poll_s = min(2 * poll_s, _MAX_POLL_S)
