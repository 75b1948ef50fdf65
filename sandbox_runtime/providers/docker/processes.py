"""A command in a container and everything it starts: output with back-pressure, a terminal, exit, and a verified kill.

Three ways to kill, each for when the one before did not help: the command's own runner (inside/run.py) is told to; all
processes with the command's mark are killed by another exec; PID 1 (inside/init.py) kills everything in the sandbox.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass

from typing_extensions import override

from sandbox_runtime.command import KILLED, MARK_NAME, Command, Detachment, succeeds_within
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.host import UID
from sandbox_runtime.providers.docker.client import ENGINE_TIMEOUT_S, Engine, ExecStream
from sandbox_runtime.providers.docker.containers import PYTHON, USER, WORK
from sandbox_runtime.providers.inside.output import ACK
from sandbox_runtime.providers.inside_scripts import (
    KILL_SOURCE,
    RUN_SOURCE,
    OrderedProcess,
    encode_command,
)
from sandbox_runtime.types import (
    ExecEvent,
    ExecExited,
    ExecOutput,
    OutputStream,
    SandboxLimits,
)

START_TIMEOUT_S = 60.0

_KILL = b"K"
_WRITE_S, _ASK_S, _MARKED_S, _ALL_S = 0.2, 2.0, 1.5, 1.0
"""How long each way to kill may take: together less than the contract's 5 s."""
_EXIT_TIMEOUT_S = 10.0
_ALL_POLL_S = 0.02
_GONE_S, _GONE_POLL_S = 1.0, 0.05
_ERROR_BYTES = 2000
_OVERTAKING_BYTES = 1024 * 1024
"""Far more than pipes hold."""
_KILL_ALL_SIGNAL = "SIGUSR1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Where commands of one sandbox run."""

    engine: Engine
    container_id: str
    limits: SandboxLimits
    is_closed: Callable[[], bool]
    """Whether the sandbox was destroyed by us: then a lost command was killed, and is no error."""


def encode(command: Command, limits: SandboxLimits) -> bytes:
    """Returns the request for a command, as inside/run.py reads it."""
    return encode_command(
        command,
        work=WORK,
        limits={"FSIZE": limits.max_file_bytes, "NOFILE": limits.max_open_files},
    )


async def start_process(host: Host, command: Command, *, mark: str) -> "ContainerProcess":
    """Starts a command; it really runs when this returns.

    Raises:
        SandboxError: UNAVAILABLE when it cannot be started, with the engine's reason.
    """
    framing = "inherited" if command.terminal is None else "pipes"
    stream = await host.engine.exec(
        host.container_id, [*PYTHON, RUN_SOURCE, framing], user=USER, env={MARK_NAME: mark}
    )
    process = ContainerProcess(host, stream, mark=mark)
    try:
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await stream.write(encode(command, host.limits))
                await process.until_started()
        except TimeoutError as exc:
            raise SandboxError(
                SandboxErrorCode.UNAVAILABLE, "a command did not start", retryable=True
            ) from exc
    except BaseException:
        with suppress(SandboxError):
            await process.kill()
        raise
    return process


class ContainerProcess(OrderedProcess):
    def __init__(self, host: Host, stream: ExecStream, *, mark: str) -> None:
        self._host = host
        self._stream = stream
        self._mark = mark
        self._taken = False
        self._first: list[ExecOutput] = []
        self._exit_code: int | None = None
        self._killed = False
        self._detachment = Detachment()

    @property
    @override
    def ended(self) -> bool:
        return self._exit_code is not None

    @override
    async def order(self, data: bytes) -> None:
        await self._stream.write(data)

    async def until_started(self) -> None:
        """Reads the runner's word that it runs; what comes instead of it is the engine's reason.

        The two streams are pipes of their own: what a quick command writes to stderr may overtake that word.
        """
        said = b""
        while len(said) < _OVERTAKING_BYTES and (output := await self._stream.read()) is not None:
            if output.stream is OutputStream.STDOUT and output.data.startswith(ACK):
                rest = output.data.removeprefix(ACK)
                self._first += [ExecOutput(stream=output.stream, data=rest)] if rest else []
                return
            said += output.data
            self._first.append(output)
        reason = said[:_ERROR_BYTES].decode("utf-8", "replace").strip() or "its container ended"
        raise SandboxError(
            SandboxErrorCode.UNAVAILABLE, f"cannot start a command: {reason}", retryable=True
        )

    @override
    async def events(self) -> AsyncIterator[ExecEvent]:
        if self._taken:
            raise RuntimeError("events may be iterated once")
        self._taken = True
        while self._first and not self._detachment.is_set:
            yield self._first.pop(0)
        while (output := await self._detachment.wait_for(self._stream.read)) is not None:
            yield output
        code = await self._detachment.wait_for(self._collect)
        if code is not None:
            yield ExecExited(exit_code=code)

    async def _collect(self) -> int:
        """Returns the exit code, after the end of output."""
        if self._exit_code is not None:
            return self._exit_code
        try:
            async with asyncio.timeout(_EXIT_TIMEOUT_S):
                state = await self._stream.ended()
        except TimeoutError as exc:
            raise SandboxError(
                SandboxErrorCode.UNAVAILABLE, "the connection to a running command was lost"
            ) from exc
        code = state.exit_code if state is not None else None
        if code is None:
            code = self._lost()
        if code == KILLED and not self._killed and not self._host.is_closed():
            await self._check_killed()
        await self._end(code)
        return code

    async def _check_killed(self) -> None:
        """Looks after a command whose end says SIGKILL: its runner may have been what was killed, and then something of it may live; or the whole container ended."""
        if await succeeds_within(_MARKED_S, self._kill_marked):
            return
        if await succeeds_within(_GONE_S, self._until_container_ended):
            self._lost()

    async def _until_container_ended(self) -> None:
        """The engine tells the end of a command before that of its container."""
        while True:
            state = await self._host.engine.find(self._host.container_id)
            if state is None or not state.running:
                return
            await asyncio.sleep(_GONE_POLL_S)

    def _lost(self) -> int:
        if self._killed or self._host.is_closed():
            return KILLED
        raise SandboxError(SandboxErrorCode.UNAVAILABLE, "the sandbox ended under a command")

    async def _end(self, code: int) -> None:
        if self._exit_code is None:
            self._exit_code = code
        await self._stream.close()

    @override
    async def kill(self) -> None:
        if self.ended:
            return
        self._killed = True
        with suppress(TimeoutError):
            async with asyncio.timeout(_WRITE_S):
                await self._stream.write(_KILL)
        # Unread output would hold up the engine's own account of the end.
        await self._stream.close()
        for way, timeout_s in (
            (self._asked, _ASK_S),
            (self._kill_marked, _MARKED_S),
            (self._kill_all, _ALL_S),
        ):
            if await succeeds_within(timeout_s, way):
                return
        raise SandboxError(
            SandboxErrorCode.UNAVAILABLE, "a command still lives after all that was done to kill it"
        )

    @override
    async def detach(self) -> None:
        self._detachment.set()
        await self._stream.close()

    async def _asked(self) -> None:
        state = await self._stream.ended()
        code = state.exit_code if state is not None else None
        await self._end(KILLED if code is None else code)

    async def _kill_marked(self) -> None:
        """Returns when nothing with the mark is left."""
        await run_script(self._host, KILL_SOURCE, str(UID), f"{MARK_NAME}={self._mark}")
        if self._killed:
            await self._asked()

    async def _kill_all(self) -> None:
        await kill_all(self._host)
        await self._end(KILLED)


async def run_script(
    host: Host, source: str, *arguments: str, timeout_s: float = ENGINE_TIMEOUT_S
) -> bytes:
    """Runs a script of ours in the container, to its end; returns the end of what it said.

    Raises:
        SandboxError: UNAVAILABLE when it failed, or has not ended in time.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await _run_script(host, source, *arguments)
    except TimeoutError as exc:
        raise SandboxError(
            SandboxErrorCode.UNAVAILABLE, f"a script inside did not end within {timeout_s:g} s"
        ) from exc


async def _run_script(host: Host, source: str, *arguments: str) -> bytes:
    stream = await host.engine.exec(
        host.container_id, [*PYTHON, source, *arguments], user=USER, env={}
    )
    try:
        said = b""
        while (output := await stream.read()) is not None:
            said = (said + output.data)[-_ERROR_BYTES:]
        state = await stream.ended()
    finally:
        await stream.close()
    if state is None or state.exit_code != 0:
        reason = said[:_ERROR_BYTES].decode("utf-8", "replace").strip() or "its container ended"
        raise SandboxError(SandboxErrorCode.UNAVAILABLE, f"a script failed inside: {reason}")
    return said


async def kill_all(host: Host) -> None:
    """Kills everything in the sandbox but PID 1; returns when it alone is left, without a bound: the caller has one."""
    while True:
        await host.engine.signal(host.container_id, _KILL_ALL_SIGNAL)
        if await host.engine.count_processes(host.container_id) <= 1:
            return
        await asyncio.sleep(_ALL_POLL_S)
