"""A command in a machine and everything it starts: output with back-pressure, exit, and a verified kill.

The service keeps what a command says and tells it from the beginning on each connection. What is read here are the frames
of inside/run.py, so a connection that broke off, or carries nothing, is made anew, and frames that were seen are skipped.
"""

import asyncio
import base64
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

import anyio
import httpx2
import vercel.sandbox as sdk
from typing_extensions import override

from sandbox_runtime.command import KILLED, Command, Detachment
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.host import UID
from sandbox_runtime.providers.inside.output import WINDOW
from sandbox_runtime.providers.inside_scripts import OrderedProcess, encode_command
from sandbox_runtime.providers.vercel.client import ask, is_status, map_errors
from sandbox_runtime.providers.vercel.machine import WORK
from sandbox_runtime.types import ExecEvent, ExecExited, ExecOutput, OutputStream, SandboxLimits

MEMORY_BYTES_PER_VCPU = 2 * 1024**3
"""Source: Vercel documentation, Sandbox pricing, read 2026-11."""
START_TIMEOUT_S = 90.0
_RUNNER = ("-I", "-S", "/run/sandbox-runtime/run.py", "lines")
_KILL, _MORE = b"K", b"W"
_WINDOWS = 48
"""How many windows of output a command may be ahead of its reader, who tells it in halves: each time is a request."""
_ASK_S, _SIGNAL_S = 2.5, 2.0
"""How long each way to kill may take: together less than the contract's 5 s."""
_MISSED_BEATS, _LOST_BEATS = 3.0, 9.0
"""After how many a connection that carries nothing is made anew, and without any frame in all of them the command is lost."""
_RECONNECT_S = 0.5
"""Doubled each time, up to a beat."""
_EXIT_TIMEOUT_S = 10.0
_EXTRA_LIMIT_S = 60.0
"""Behind its time a command is killed inside, whoever has forgotten it."""
_HAS_ENDED = frozenset({400, 404, 409})
"""How the service may refuse to signal what has ended: waiting for it tells."""
_GONE = SandboxErrorCode.UNAVAILABLE
_T = TypeVar("_T")
_STREAMS = {"o": OutputStream.STDOUT, "e": OutputStream.STDERR}


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Where commands of one sandbox run."""

    session: sdk.SandboxRuntimeSession
    limits: SandboxLimits
    beat_s: float
    is_closed: Callable[[], bool]
    """Whether the sandbox was destroyed by us: then a lost command was killed, and is no error."""


def encode(command: Command, host: Host) -> bytes:
    """Returns the request for a command, as inside/run.py reads it."""
    limits = {
        "FSIZE": host.limits.max_file_bytes,
        "NOFILE": host.limits.max_open_files,
        "NPROC": host.limits.max_processes,
    }
    if host.limits.memory_bytes < (host.session.vcpus or 1) * MEMORY_BYTES_PER_VCPU:
        # Below the machine's own. Not the address space: what today's runtimes reserve of it is far more than they use.
        limits["DATA"] = host.limits.memory_bytes
    kept, timeout_s = command.max_output_bytes, command.timeout_s
    return encode_command(
        replace(
            command, bound=False
        ),  # the end of stdin means nothing: the service ends it when it likes
        work=WORK,
        user=UID,
        limits=limits,
        window=_WINDOWS * WINDOW if kept is None else 0,
        keep=None if kept is None else kept + 1,
        limit_s=None if timeout_s is None else timeout_s + _EXTRA_LIMIT_S,
        beat_s=host.beat_s,
    )


async def start_process(host: Host, command: Command) -> "MachineProcess":
    """Starts a command; it really runs when this returns. Raises: SandboxError: UNAVAILABLE when it cannot be started."""
    doing = "cannot run a command"
    # Without an answer, or cancelled here, one may have been started: it waits for its request, in vain and not for long.
    started = await ask(
        lambda: host.session.create_process(
            "python3",
            list(_RUNNER),
            cwd="/",
            sudo=True,
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ),
        doing,
        otherwise=_GONE,
        missing=_GONE,
    )
    process = MachineProcess(host, started, has_window=command.max_output_bytes is None)
    try:
        async with map_errors(doing, timeout_s=START_TIMEOUT_S, otherwise=_GONE, missing=_GONE):
            await process.request(encode(command, host))
    except BaseException:
        with suppress(SandboxError):
            await process.kill()
        raise
    return process


def was_cancelled(error: BaseException) -> bool:
    """Whether an error came while a cancellation was handled, whose place it has taken."""
    context = error.__context__
    while context is not None and not isinstance(context, asyncio.CancelledError):
        context = context.__context__
    return context is not None


class MachineProcess(OrderedProcess):
    def __init__(self, host: Host, process: sdk.Process, *, has_window: bool) -> None:
        self._host = host
        self._process = process
        self._reader = process.stdout
        self._has_window = has_window
        self._unacknowledged = 0
        self._lines = 0
        self._taken = False
        self._exit_code: int | None = None
        self._killed = False
        self._is_requested = False
        self._is_reading = False
        self._detachment = Detachment()

    @property
    @override
    def ended(self) -> bool:
        return self._exit_code is not None

    async def send(self, data: bytes) -> None:
        """Sends something to the runner. Raises: SandboxError: UNAVAILABLE when it takes nothing any more."""
        assert self._process.stdin is not None  # noqa: S101 - it was started with one
        try:
            await self._process.stdin.send(data)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as exc:
            raise SandboxError(_GONE, "a command takes no more input") from exc

    @override
    async def order(self, data: bytes) -> None:
        with suppress(SandboxError):
            async with map_errors("cannot tell a command anything"):
                await self.send(data)

    async def request(self, data: bytes) -> None:
        """Sends the request, and waits for the runner's word that it has it."""
        await self.send(data)
        self._is_requested = True
        line = await self._line()
        if line != "!":
            raise SandboxError(_GONE, f"a command did not start: {line[:100]!r}", retryable=True)

    @override
    async def events(self) -> AsyncIterator[ExecEvent]:
        if self._taken:
            raise RuntimeError("events may be iterated once")
        self._taken = True
        while (line := await self._detachment.wait_for(self._line)) and line[0] != "x":
            if line[0] in _STREAMS:
                data = base64.b64decode(line[1:])
                yield ExecOutput(stream=_STREAMS[line[0]], data=data)
                await self._acknowledge(len(data))
        code = int(line[1:]) if line else await self._detachment.wait_for(self._collect)
        if code is not None:
            await self._end(code)
            yield ExecExited(exit_code=code)

    async def _acknowledge(self, size: int) -> None:
        """Lets as much output come as was read."""
        self._unacknowledged += size
        windows = self._unacknowledged // WINDOW
        if self._has_window and windows >= _WINDOWS // 2:
            self._unacknowledged -= windows * WINDOW
            await self.order(_MORE * windows)  # lost, the log says what has become of it

    async def _line(self) -> str:
        """Returns the next frame; empty at the end."""
        self._is_reading = True
        try:
            return await self._until_line()
        except BaseException:
            await self._leave()
            raise
        finally:
            self._is_reading = False

    async def _until_line(self) -> str:
        clock, beat_s = asyncio.get_running_loop().time, self._host.beat_s
        lost_at, pause_s = clock() + beat_s * _LOST_BEATS, _RECONNECT_S
        while True:
            try:
                with map_errors.unbounded(
                    "the output of a command was lost", otherwise=_GONE, missing=_GONE
                ):
                    line = await self._next()
            except SandboxError as exc:
                if self._killed or self._host.is_closed():
                    return ""
                if not exc.retryable or clock() >= lost_at:
                    raise
                await self._leave()
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, beat_s)
                continue
            if line != ".":
                return line
            lost_at, pause_s = clock() + beat_s * _LOST_BEATS, _RECONNECT_S

    async def _next(self) -> str:
        reader = self._reader or await self._reconnect()
        line = await self._bounded(reader.readline())
        if line.endswith("\n"):
            self._lines += 1
        elif (await self._bounded(self._process.refresh())).returncode is None:
            raise httpx2.RemoteProtocolError("the output ended before the command")
        return line.rstrip("\n")

    async def _reconnect(self) -> sdk.TextReader:
        """Reads from the beginning again, up to where we were."""
        found = await self._bounded(self._host.session.get_process(self._process.id))
        assert found.stdout is not None  # noqa: S101 - of one that was looked up there is
        self._reader = found.stdout
        for _ in range(self._lines):
            await self._bounded(found.stdout.readline())
        return found.stdout

    async def _bounded(self, answer: Awaitable[_T]) -> _T:
        """Waits for an answer of the service, which a live command would have made by then."""
        async with asyncio.timeout(self._host.beat_s * _MISSED_BEATS):
            try:
                return await answer
            except RuntimeError as exc:
                # Cancelled while it waits for its lock, the SDK's reader gives up that lock without having it.
                if was_cancelled(exc):
                    raise asyncio.CancelledError from exc
                raise

    async def _leave(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            with suppress(sdk.SandboxError, httpx2.HTTPError):
                await reader.aclose()

    async def _collect(self) -> int:
        """Returns the exit code, after an end of output that did not tell it."""
        try:
            async with map_errors(
                "the end of a command was lost",
                timeout_s=_EXIT_TIMEOUT_S,
                otherwise=_GONE,
                missing=_GONE,
            ):
                return await self._process.wait()
        except SandboxError:
            if self._killed or self._host.is_closed():
                return KILLED
            raise

    async def _end(self, code: int) -> None:
        if self._exit_code is None:
            self._exit_code = code
        await self._leave()

    @override
    async def kill(self) -> None:
        if self.ended:
            return
        self._killed = True
        failure: SandboxError | None = None
        for timeout_s, way in ((_ASK_S, self._ask), (_SIGNAL_S, self._signal)):
            try:
                async with map_errors(
                    "cannot kill a command", timeout_s=timeout_s, otherwise=_GONE, missing=_GONE
                ):
                    await way()
                    self._exit_code = await self._process.wait()
            except SandboxError as exc:
                failure = exc
                if is_status(exc, httpx2.codes.NOT_FOUND, httpx2.codes.GONE):
                    self._exit_code = KILLED  # the machine is off, and all in it is dead
            if self._exit_code is not None:
                if not self._is_reading:
                    await self._leave()
                return
        if failure is not None and not self._host.is_closed():
            raise failure

    @override
    async def detach(self) -> None:
        self._detachment.set()
        if not self._is_reading:  # else whoever reads it does
            await self._leave()

    async def _ask(self) -> None:
        if not self._is_requested:
            raise SandboxError(_GONE, "a command has only a part of its request")
        await self.send(_KILL)

    async def _signal(self) -> None:
        try:
            await self._process.terminate()
        except sdk.SandboxApiError as exc:
            if exc.status_code not in _HAS_ENDED:
                raise
