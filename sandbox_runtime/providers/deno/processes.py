"""A command in a sandbox and everything it starts: output with back-pressure, exit, and a verified kill.

Two ways to kill: the command's own runner (inside/run.py) is told to; another script, also as root, kills what carries the
command's mark. A connection that breaks kills commands that are bound, through their runner; free ones go on.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace

from typing_extensions import override

from sandbox_runtime.command import KILLED, MARK_NAME, Command, Detachment, succeeds_within
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.host import UID
from sandbox_runtime.providers.deno.client import map_errors
from sandbox_runtime.providers.deno.connection import ROOT_PYTHON, Remote, run_script
from sandbox_runtime.providers.deno.machine import WORK
from sandbox_runtime.providers.deno.rpc import (
    ConnectionLost,
    RemoteError,
    RpcConnection,
    UnexpectedAnswer,
)
from sandbox_runtime.providers.inside.output import ACK, WINDOW
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
_WINDOWS = 8
"""How much output may be on its way: this many windows, and one more for each that its reader has taken."""

_KILL, _MORE = b"K", b"W"
_ASK_S, _MARKED_S = 2.5, 2.0
"""How long each way to kill may take: together less than the contract's 5 s."""
_EXIT_TIMEOUT_S = 10.0
_ERROR_BYTES = 2000


def encode(command: Command, limits: SandboxLimits) -> bytes:
    """Returns the request for a command, as inside/run.py reads it."""
    return encode_command(
        command,
        work=WORK,
        user=UID,
        window=_WINDOWS * WINDOW,
        limits={
            "DATA": limits.memory_bytes,
            "NPROC": limits.max_processes,
            "FSIZE": limits.max_file_bytes,
            "NOFILE": limits.max_open_files,
        },
    )


async def start_process(
    connection: RpcConnection,
    command: Command,
    *,
    limits: SandboxLimits,
    mark: str,
    is_closed: Callable[[], bool],
) -> "RemoteProcess":
    """Starts a command; it really runs when this returns.

    `is_closed` tells whether the sandbox was destroyed by us: then a lost command was killed, and is no error.

    Raises:
        SandboxError: UNAVAILABLE when it cannot be started, with the reason.
    """
    marked = replace(command, env={**command.env, MARK_NAME: mark})
    async with map_errors("cannot start a command", timeout_s=START_TIMEOUT_S):
        remote = await Remote.start(connection, [*ROOT_PYTHON, RUN_SOURCE, "pipes"], stdin=True)
        process = RemoteProcess(remote, mark=mark, is_closed=is_closed)
        try:
            await remote.write(encode(marked, limits))
            await process.until_started()
        except BaseException:
            with suppress(SandboxError):
                await process.kill()
            raise
    return process


class RemoteProcess(OrderedProcess):
    def __init__(self, remote: Remote, *, mark: str, is_closed: Callable[[], bool]) -> None:
        self._remote = remote
        self._mark = mark
        self._is_closed = is_closed
        self._taken = False
        self._first = b""
        self._exit_code: int | None = None
        self._killed = False
        self._detachment = Detachment()
        self._unacknowledged = 0

    @property
    @override
    def ended(self) -> bool:
        return self._exit_code is not None

    async def until_started(self) -> None:
        """Reads the runner's word that it runs; what comes instead of it is the reason.

        Raises:
            RemoteError, ConnectionLost, UnexpectedAnswer.
        """
        data = await self._remote.stdout.read()
        if data.startswith(ACK):
            self._first = data.removeprefix(ACK)
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
        if self._first and not self._detachment.is_set:
            yield ExecOutput(stream=OutputStream.STDOUT, data=self._first)
            await self._acknowledge(len(self._first))
        while not self.ended and not self._detachment.is_set:
            try:
                output = await self._detachment.wait_for(self._remote.output.read)
            except (ConnectionLost, UnexpectedAnswer) as exc:
                if self._is_over():
                    break
                raise await self._lost(exc) from exc
            if output is None:
                break
            yield output
            await self._acknowledge(len(output.data))
        code = await self._detachment.wait_for(self._collect)
        if code is not None:
            yield ExecExited(exit_code=code)

    async def _acknowledge(self, size: int) -> None:
        """Lets as much output come as was read."""
        self._unacknowledged += size
        windows, self._unacknowledged = divmod(self._unacknowledged, WINDOW)
        if windows:
            with suppress(ConnectionLost):
                await self._remote.write(_MORE * windows)

    async def _collect(self) -> int:
        """Returns the exit code, after the end of output."""
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
        """Whether we have ended it: then a lost connection is no error."""
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
            if await succeeds_within(timeout_s, way):
                return
        raise SandboxError(
            SandboxErrorCode.UNAVAILABLE,
            "a command may still live: it could not be reached to be killed",
        )

    @override
    async def detach(self) -> None:
        self._detachment.set()
        self._remote.drop_output()  # its stdin stays: that is how its runner is told to kill it

    async def _ask(self) -> None:
        with suppress(ConnectionLost):
            await self._remote.write(_KILL)
        with map_errors.unbounded("cannot ask a command to end"):
            code = await self._remote.wait(timeout_s=_ASK_S)
        await self._end(code)

    async def _kill_marked(self) -> None:
        """Kills all that carries its mark; returns when nothing of that is left."""
        await run_script(
            self._remote.connection, KILL_SOURCE, str(UID), f"{MARK_NAME}={self._mark}"
        )
        await self._end(KILLED)

    @override
    async def order(self, data: bytes) -> None:
        with suppress(ConnectionLost):
            await self._remote.write(data)
