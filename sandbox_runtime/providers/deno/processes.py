"""A command in a sandbox and everything it starts: output with back-pressure, exit, and a verified kill.

Two ways to kill: the command's own runner (inside/run.py) is told to; another script, also as root, kills what carries the
command's mark. A connection that breaks kills commands that are bound, through their runner; free ones go on.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from typing_extensions import override

from sandbox_runtime.command_sandbox import Command
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.processes import KILLED
from sandbox_runtime.providers.deno.errors import (
    ConnectionLost,
    RemoteError,
    UnexpectedAnswer,
    asking,
)
from sandbox_runtime.providers.deno.inside.pump import WINDOW
from sandbox_runtime.providers.deno.inside_scripts import KILL_SOURCE, RUN_SOURCE
from sandbox_runtime.providers.deno.paths import ROOT_PYTHON, WORK
from sandbox_runtime.providers.deno.remote import Remote, run_script
from sandbox_runtime.providers.deno.rpc import RpcConnection
from sandbox_runtime.providers.inside_scripts import encode_command
from sandbox_runtime.providers.process_terminal import OrderedProcess, digits
from sandbox_runtime.sandbox_user import UID
from sandbox_runtime.types import (
    ExecEvent,
    ExecExited,
    ExecOutput,
    OutputStream,
    SandboxLimits,
)

START_TIMEOUT_S = 60.0
MARK_NAME = "SANDBOX_RUNTIME_MARK"
"""Variable in the environment of what a command starts, by which it is found where its runner cannot be told."""
FOREVER_S = 2 * 3600.0
"""Of waiting for a command's end: longer than any sandbox lives."""

_ACK = b"\x06"
_KILL, _MORE = b"K", b"W"
_ALL_S = 10.0
_ASK_S, _MARKED_S = 2.5, 2.0
"""How long each way to kill may take: together less than the contract's 5 s."""
_EXIT_TIMEOUT_S = 10.0
_ERROR_BYTES = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What commands of one sandbox run with."""

    limits: SandboxLimits
    is_closed: Callable[[], bool]
    """Whether the sandbox was destroyed by us: then a lost command was killed, and is no error."""


def encode(command: Command, limits: SandboxLimits) -> bytes:
    """As inside/run.py reads it."""
    return encode_command(
        command,
        "" if command.terminal is None else digits(command.terminal),
        str(UID),
        str(limits.memory_bytes),
        str(limits.max_processes),
        str(limits.max_file_bytes),
        str(limits.max_open_files),
        cwd=command.directory(WORK),
    )


async def start_process(
    host: Host, connection: RpcConnection, command: Command, *, mark: str
) -> "RemoteProcess":
    """Start it; it really runs when this returns.

    Raises:
        SandboxError: UNAVAILABLE when it cannot be started, with the reason.
    """
    marked = replace(command, env={**command.env, MARK_NAME: mark})
    async with asking("cannot start a command", timeout_s=START_TIMEOUT_S):
        remote = await Remote.start(connection, [*ROOT_PYTHON, RUN_SOURCE], stdin=True)
        process = RemoteProcess(remote, mark=mark, is_closed=host.is_closed)
        try:
            await remote.write(encode(marked, host.limits))
            await process.until_started()
        except BaseException:
            with suppress(SandboxError):
                await process.kill()
            raise
    return process


class RemoteProcess(OrderedProcess):
    """A started `Command`."""

    def __init__(self, remote: Remote, *, mark: str, is_closed: Callable[[], bool]) -> None:
        self._remote = remote
        self._mark = mark
        self._is_closed = is_closed
        self._taken = False
        self._first = b""
        self._exit_code: int | None = None
        self._killed = False
        self._unacknowledged = 0

    @property
    @override
    def ended(self) -> bool:
        return self._exit_code is not None

    async def until_started(self) -> None:
        """Read the runner's word that it runs; what comes instead of it is the reason.

        Raises:
            RemoteError, ConnectionLost, UnexpectedAnswer.
        """
        data = await self._remote.stdout.read()
        if data.startswith(_ACK):
            self._first = data.removeprefix(_ACK)
            return
        said = data
        while (output := await self._remote.output.read()) is not None and len(said) < _ERROR_BYTES:
            said += output.data
        raise RemoteError(
            said[:_ERROR_BYTES].decode("utf-8", "replace").strip() or "it ended at once"
        )

    @override
    async def events(self) -> AsyncIterator[ExecEvent]:
        if self._taken:
            raise RuntimeError("events may be iterated once")
        self._taken = True
        if self._first:
            yield ExecOutput(stream=OutputStream.STDOUT, data=self._first)
            await self._acknowledge(len(self._first))
        while not self.ended:
            try:
                output = await self._remote.output.read()
            except (ConnectionLost, UnexpectedAnswer) as exc:
                if self._is_over():
                    break
                raise await self._lost(exc) from exc
            if output is None:
                break
            yield output
            await self._acknowledge(len(output.data))
        yield ExecExited(exit_code=await self._collect())

    async def _acknowledge(self, size: int) -> None:
        """Let as much come as was read."""
        self._unacknowledged += size
        windows, self._unacknowledged = divmod(self._unacknowledged, WINDOW)
        if windows:
            with suppress(ConnectionLost):
                await self._remote.write(_MORE * windows)

    async def _collect(self) -> int:
        """The exit code, after the end of output."""
        if self._exit_code is None:
            try:
                await self._end(await self._remote.wait(timeout_s=_EXIT_TIMEOUT_S))
            except (ConnectionLost, RemoteError, UnexpectedAnswer, TimeoutError) as exc:
                if not self._is_over():
                    raise await self._lost(exc) from exc
                await self._end(KILLED)
        assert self._exit_code is not None  # noqa: S101  # set above
        return self._exit_code

    def _is_over(self) -> bool:
        """Ended by us: then a lost connection is no error."""
        return self.ended or self._killed or self._is_closed()

    async def _lost(self, cause: Exception) -> SandboxError:
        await self._remote.finish()
        text = f"the connection to a running command was lost: {cause}"
        return SandboxError(SandboxErrorCode.UNAVAILABLE, text)

    async def _end(self, code: int) -> None:
        if self._exit_code is None:
            self._exit_code = code
        await self._remote.finish()

    @override
    async def kill(self) -> None:
        if self.ended:
            return
        self._killed = True
        if self._is_closed():
            await self._end(KILLED)
            return
        for way, timeout_s in ((self._ask, _ASK_S), (self._kill_marked, _MARKED_S)):
            if await _within(timeout_s, way):
                return
        raise SandboxError(
            SandboxErrorCode.UNAVAILABLE,
            "a command may still live: it could not be reached to be killed",
        )

    async def _ask(self) -> None:
        with suppress(ConnectionLost):
            await self._remote.write(_KILL)
        await self._end(await self._remote.wait(timeout_s=_ASK_S))

    async def _kill_marked(self) -> None:
        """Returns when nothing with the mark is left."""
        await run_script(
            self._remote.connection, KILL_SOURCE, str(UID), f"{MARK_NAME}={self._mark}"
        )
        await self._end(KILLED)

    @override
    async def order(self, data: bytes) -> None:
        with suppress(ConnectionLost):
            await self._remote.write(data)


async def _within(timeout_s: float, way: Callable[[], Awaitable[None]]) -> bool:
    try:
        async with asyncio.timeout(timeout_s):
            await way()
    except (TimeoutError, SandboxError, ConnectionLost, RemoteError, UnexpectedAnswer):
        return False
    return True


async def kill_user(connection: RpcConnection) -> None:
    """Everything that commands have started; returns when nothing of it is left.

    Raises:
        SandboxError: UNAVAILABLE.
    """
    await run_script(connection, KILL_SOURCE, str(UID), timeout_s=_ALL_S)
