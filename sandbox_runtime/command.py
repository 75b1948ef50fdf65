"""Commands of sandboxes: output that is bounded, files by way of commands, and what sandboxes share whose commands are processes."""

import asyncio
import errno
import os
import posixpath
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from typing_extensions import override

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.lifecycle import shielded
from sandbox_runtime.provider import Process, Sandbox
from sandbox_runtime.task_group import open_task_group
from sandbox_runtime.types import (
    DEFAULT_MAX_OUTPUT_BYTES,
    ExecEvent,
    ExecExited,
    ExecOutput,
    ExecResult,
    OutputStream,
    SandboxId,
    SandboxPaths,
    TerminalSize,
)

_T = TypeVar("_T")

TRUNCATION_MARK = b"\n[output truncated]\n"
"""Ends a stream of which only the beginning was kept."""


class BoundedBuffer:
    """Keeps the first `max_bytes` of what is fed; the rest is counted, not kept."""

    def __init__(self, max_bytes: int) -> None:
        if max_bytes < 0:
            raise ValueError(f"max_bytes must not be negative: {max_bytes}")
        self._max_bytes = max_bytes
        self._kept = bytearray()
        self._seen = 0

    def feed(self, data: bytes) -> None:
        self._seen += len(data)
        room = self._max_bytes - len(self._kept)
        if room > 0:
            self._kept += data[:room]

    @property
    def truncated(self) -> bool:
        return self._seen > self._max_bytes

    def value(self) -> bytes:
        """Returns what was kept, with the mark behind it if something was dropped."""
        return bytes(self._kept) + (TRUNCATION_MARK if self.truncated else b"")


NOT_EXECUTABLE = 126
"""Exit code of a shell for a command that exists and cannot be run. Source: POSIX, Shell Command Language, 2.8.2."""
KILLED = 128 + 9
"""Of one that died by SIGKILL."""
START_ERROR_BYTES = 2000
MARK_NAME = "SANDBOX_RUNTIME_MARK"
"""Variable in the environment of what is started in a sandbox, by which it is found where its runner or namespace is gone."""


async def succeeds_within(timeout_s: float, way: Callable[[], Awaitable[None]]) -> bool:
    """Returns whether one of several ways to reach an end was neither too slow nor a failure."""
    try:
        async with asyncio.timeout(timeout_s):
            await way()
    except (TimeoutError, SandboxError):
        return False
    return True


class Detachment:
    """Lets whoever reads a process be called back from it."""

    def __init__(self) -> None:
        self._block: asyncio.Timeout | None = None
        self.is_set = False

    def set(self) -> None:
        self.is_set = True
        if self._block is not None and not self._block.expired():
            self._block.reschedule(asyncio.get_running_loop().time())

    async def wait_for(self, read: Callable[[], Awaitable[_T]]) -> _T | None:
        """Returns what one read gives; None when it was called back, before or meanwhile: the read is cancelled then."""
        if self.is_set:
            return None
        self._block = asyncio.timeout(None)
        try:
            async with self._block:
                return await read()
        except TimeoutError:
            if not self.is_set:
                raise
            return None
        finally:
            self._block = None


class EndedProcess(Process):
    """A command that is over: it could not be started, or its output was scripted."""

    def __init__(self, events: Sequence[ExecEvent]) -> None:
        self._events = events

    @property
    def ended(self) -> bool:
        return True

    @override
    async def events(self) -> AsyncIterator[ExecEvent]:
        for event in self._events:
            yield event

    @override
    async def kill(self) -> None:
        pass

    @override
    async def detach(self) -> None:
        self._events = ()


def result_events(result: ExecResult) -> tuple[ExecEvent, ...]:
    """Returns a result as the events a spawned process would have given."""
    streams = ((OutputStream.STDOUT, result.stdout), (OutputStream.STDERR, result.stderr))
    outputs = tuple(ExecOutput(stream=stream, data=data) for stream, data in streams if data)
    return (*outputs, ExecExited(exit_code=result.exit_code))


def validate_command(argv: Sequence[str], *, env: Mapping[str, str], cwd: str | None) -> None:
    """Raises: ValueError: what no system could start."""
    if not argv:
        raise ValueError("argv must not be empty")
    for text in (*argv, *env, *env.values(), cwd or ""):
        if "\0" in text:
            raise ValueError("NUL in a command, its environment or its directory")
    for name in env:
        if not name or "=" in name:
            raise ValueError(f"not a name of an environment variable: {name!r}")


async def collect_result(process: Process, *, max_output_bytes: int) -> ExecResult:
    """Reads a process to its end."""
    buffers = {stream: BoundedBuffer(max_output_bytes) for stream in OutputStream}
    exit_code = -1
    try:
        async for event in process.events():
            match event:
                case ExecOutput():
                    buffers[event.stream].feed(event.data)
                case ExecExited():
                    exit_code = event.exit_code
    except SandboxError as exc:
        said = buffers[OutputStream.STDERR].value() + buffers[OutputStream.STDOUT].value()
        reason = said.decode("utf-8", "replace").strip()[:START_ERROR_BYTES]
        told = f"{exc}: {reason}" if reason else str(exc)
        raise SandboxError(exc.code, told, retryable=exc.retryable) from exc
    stdout, stderr = buffers[OutputStream.STDOUT], buffers[OutputStream.STDERR]
    return ExecResult(
        exit_code=exit_code,
        stdout=stdout.value(),
        stderr=stderr.value(),
        stdout_truncated=stdout.truncated,
        stderr_truncated=stderr.truncated,
    )


FILE_TIMEOUT_S = 120.0
DEFAULT_MAX_FILE_BYTES = 100 * 1024 * 1024

_MISSING, _DIRECTORY, _FORBIDDEN, _NOT_A_DIRECTORY = 80, 81, 82, 83
"""Exit codes of the scripts below; free of any meaning of their own in sh and the coreutils."""

_EXPLAIN = f"""
explain() {{
    [ -d "$1" ] && exit {_DIRECTORY}
    [ -e "$1" ] && exit {_FORBIDDEN}
    p=$1
    while [ ! -e "$p" ] && [ "$p" != / ]; do p=$(dirname -- "$p"); done
    [ -d "$p" ] || exit {_NOT_A_DIRECTORY}
    [ -x "$p" ] || exit {_FORBIDDEN}
}}
"""

# Only regular files: a FIFO planted at the path would block the reader.
_READ = f"""{_EXPLAIN}
if [ -f "$1" ] && [ -r "$1" ]; then exec head -c "$2" -- "$1"; fi
explain "$1"
exit {_MISSING}
"""

# Written beside the target, then renamed: readers see the old file or the new one, never half of it.
_WRITE = f"""{_EXPLAIN}
[ -d "$1" ] && exit {_DIRECTORY}
d=$(dirname -- "$1"; echo .); d=${{d%?.}}
mkdir -p -- "$d" 2>/dev/null || {{ explain "$d/."; exit {_FORBIDDEN}; }}
t=$(mktemp -- "$d/.tmp.XXXXXXXX" 2>/dev/null) || exit {_FORBIDDEN}
cat > "$t" && chmod -- "$2" "$t" && mv -fT -- "$t" "$1" || {{ code=$?; rm -f -- "$t"; exit "$code"; }}
"""

# One process for all files: a start of an agent writes eight, and an exec is a dozen processes. Without json, whose import
# takes longer than the rest.
_WRITE_ALL = """
import os, sys
source = sys.stdin.buffer
fields = source.read(int(source.readline())).split(b"\\0")
for path, size in zip(fields[::2], fields[1::2]):
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        temporary = b"%s.tmp.%d" % (path, os.getpid())
        with open(temporary, "wb") as file:
            file.write(source.read(int(size)))
        os.replace(temporary, path)
    except OSError as exc:
        number = 20 if exc.errno == 17 else exc.errno  # makedirs says EEXIST of what is ENOTDIR
        sys.stdout.buffer.write(b"%d\\0%s" % (number, path))
        sys.exit(1)
"""


class Exec(Protocol):
    """The part of `Sandbox.exec` that is needed here."""

    async def __call__(
        self, argv: Sequence[str], *, timeout_s: float, stdin: bytes = b"", max_output_bytes: int
    ) -> ExecResult: ...


async def write_file(run: Exec, path: str, data: bytes, *, work: str, executable: bool) -> None:
    """Does what `Sandbox.write_file` promises, over `run`."""
    target = _absolute(path, work)
    if target.endswith("/"):
        raise _error(errno.EISDIR, "write", path)
    argv = ["/bin/sh", "-c", _WRITE, "write", target, "755" if executable else "644"]
    result = await run(argv, timeout_s=FILE_TIMEOUT_S, stdin=data, max_output_bytes=4096)
    _check(result, "write", path)


async def write_files(run: Exec, files: Mapping[str, bytes], *, work: str) -> None:
    """Does what `Sandbox.write_files` promises, over `run`. Raises: ValueError: NUL in a path."""
    if nul := next((path for path in files if "\0" in path), None):
        raise ValueError(f"NUL in a path: {nul!r}")
    targets = [os.fsencode(_absolute(path, work)) for path in files]
    sizes = [b"%d" % len(data) for data in files.values()]
    header = b"\0".join(part for pair in zip(targets, sizes, strict=True) for part in pair)
    result = await run(
        ["python3", "-I", "-S", "-c", _WRITE_ALL],
        timeout_s=FILE_TIMEOUT_S,
        stdin=b"".join([b"%d\n" % len(header), header, *files.values()]),
        max_output_bytes=4096,
    )
    if result.exit_code != 0 and result.stdout:
        number, _, written = result.stdout.partition(b"\0")
        raise _error(int(number), "write", dict(zip(targets, files, strict=True))[written])
    _check(result, "write", next(iter(files), ""))


async def read_file(run: Exec, path: str, *, work: str, max_bytes: int) -> bytes:
    """Does what `Sandbox.read_file` promises, over `run`."""
    argv = ["/bin/sh", "-c", _READ, "read", _absolute(path, work), str(max_bytes + 1)]
    result = await run(argv, timeout_s=FILE_TIMEOUT_S, max_output_bytes=max_bytes + 1)
    _check(result, "read", path)
    if len(result.stdout) > max_bytes:
        raise SandboxError(
            SandboxErrorCode.FILE_TOO_LARGE, f"{path} is larger than {max_bytes} bytes"
        )
    return result.stdout


def _absolute(path: str, work: str) -> str:
    return posixpath.join(work, path)


_ERRORS = {
    _MISSING: errno.ENOENT,
    _DIRECTORY: errno.EISDIR,
    _FORBIDDEN: errno.EACCES,
    _NOT_A_DIRECTORY: errno.ENOTDIR,
}

_REASONS = {
    errno.ENOENT: "there is no such file",
    errno.EISDIR: "a directory is there",
    errno.EACCES: "the sandbox's user may not, or it is no regular file",
    errno.EPERM: "the sandbox's user may not",
    errno.EROFS: "nothing can be written there",
    errno.ENOTDIR: "a file stands where a directory of its path would be",
}


def _error(number: int, doing: str, path: str) -> OSError:
    """Returns the builtin of that errno, which says what was done, to which path, and what is in the way."""
    reason = _REASONS.get(number) or os.strerror(number)
    return OSError(number, f"cannot {doing} a file in the sandbox: {reason}", path)


def _check(result: ExecResult, doing: str, path: str) -> None:
    if result.exit_code == 0:
        return
    if result.exit_code in _ERRORS:
        raise _error(_ERRORS[result.exit_code], doing, path)
    if result.exit_code == KILLED:
        # By the kernel for want of memory, by the operator, or by what else runs inside.
        raise SandboxError(
            SandboxErrorCode.UNAVAILABLE, f"{path}: killed while it was read or written"
        )
    reason = result.error_text.strip()[-500:] or f"exit code {result.exit_code}"
    raise OSError(f"cannot {doing} {path} in the sandbox: {reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    argv: Sequence[str] = field(repr=False)
    env: Mapping[str, str] = field(repr=False)
    """The sandbox's, and the caller's own."""
    cwd: str | None = None
    """From the work directory on; None = that one."""
    stdin: bytes = field(default=b"", repr=False)
    merge_output: bool = False
    bound: bool = False
    """Dies when the service does, because nobody could collect it; otherwise it goes on."""
    timeout_s: float | None = None
    """How long somebody waits for it."""
    max_output_bytes: int | None = None
    """What is kept of each stream; None = all, at its reader's pace."""
    terminal: TerminalSize | None = None
    """Of one of its own; None = it has none."""

    def directory(self, work: str) -> str:
        """Returns where it runs, as seen inside."""
        return work if self.cwd is None else posixpath.join(work, self.cwd)


class StartedProcess(Process, Protocol):
    """A process that knows of its end."""

    @property
    def ended(self) -> bool: ...


class CommandSandbox(Sandbox):
    """A provider says how a command is started and how its sandbox ends, and keeps `_closed` true."""

    def __init__(
        self,
        sandbox_id: SandboxId,
        *,
        paths: SandboxPaths,
        env: Mapping[str, str],
        container_name: str = "",
    ) -> None:
        """`env` is what every command finds in its environment."""
        self.id = sandbox_id
        self.paths = paths
        self.container_name = container_name
        self._env = env
        self._processes: set[StartedProcess] = set()
        self._closed: str | None = None
        """Why nothing may run in it (any more)."""
        self._destroyed = False
        self._removed = False
        self._ending = asyncio.Lock()

    @abstractmethod
    async def _start(self, command: Command) -> StartedProcess:
        """Starts a command, which really runs when this returns. Raises: SandboxError: UNAVAILABLE."""
        ...

    @abstractmethod
    async def _remove(self) -> None:
        """Ends the sandbox, for `destroy`, whose cancellation waits for this, and sets `_removed` when nothing of it is left to be ended."""
        ...

    @override
    async def exec(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        merge_output: bool = False,
        max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
    ) -> ExecResult:
        command = Command(
            argv=argv,
            env={**self._env, **(env or {})},
            cwd=cwd,
            stdin=stdin,
            merge_output=merge_output,
            bound=True,
            timeout_s=timeout_s,
            max_output_bytes=max_output_bytes,
        )
        process = await self._run(command)
        try:
            async with asyncio.timeout(timeout_s):
                return await collect_result(process, max_output_bytes=max_output_bytes)
        except TimeoutError as exc:
            raise SandboxError(
                SandboxErrorCode.EXEC_TIMEOUT, f"{argv[0]} ran longer than {timeout_s:g} s"
            ) from exc
        finally:
            await process.kill()
            self._forget_ended()

    @override
    async def spawn(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
    ) -> Process:
        whole = {**self._env, **(env or {})}
        return await self._run(Command(argv=argv, env=whole, cwd=cwd, stdin=stdin))

    async def _run(self, command: Command) -> StartedProcess:
        self._admit(command)
        try:
            process = await self._start(command)
        except SandboxError:
            if not self._destroyed:
                raise
            # Destroyed while it started: killed, like those that had just got to run.
            return EndedProcess((ExecExited(exit_code=KILLED),))
        self._processes.add(process)
        if self._closed is not None:
            # Closed meanwhile: what closed it did not see this one.
            await process.kill()
            if not self._destroyed:
                self._require_open()
        return process

    def _admit(self, command: Command) -> None:
        validate_command(command.argv, env=command.env, cwd=command.cwd)
        self._require_open()
        self._forget_ended()

    @override
    async def write_file(self, path: str, data: bytes, *, executable: bool = False) -> None:
        await write_file(self.exec, path, data, work=self.paths.work, executable=executable)

    @override
    async def write_files(self, files: Mapping[str, bytes]) -> None:
        await write_files(self.exec, files, work=self.paths.work)

    @override
    async def read_file(self, path: str, *, max_bytes: int = DEFAULT_MAX_FILE_BYTES) -> bytes:
        return await read_file(self.exec, path, work=self.paths.work, max_bytes=max_bytes)

    @override
    async def destroy(self) -> None:
        self._destroyed = True
        self._closed = "is destroyed"
        await shielded(self._end())

    async def _end(self) -> None:
        async with self._ending:
            if not self._removed:
                await self._remove()

    @asynccontextmanager
    async def _saving(self, *, saved: str | None, failed: str | None = None) -> AsyncIterator[None]:
        """Lets nothing run while files are copied; `saved` and `failed` say what closes it afterwards, if anything."""
        self._require_open()
        self._closed = "is being saved"
        try:
            yield
        except BaseException:
            self._reopen(failed)
            raise
        self._reopen(saved)

    def _reopen(self, closed: str | None) -> None:
        self._closed = "is destroyed" if self._destroyed else closed

    def _require_open(self) -> None:
        if self._closed is not None:
            raise SandboxError(SandboxErrorCode.UNAVAILABLE, f"sandbox {self.id} {self._closed}")

    def _forget_ended(self) -> None:
        self._processes = {process for process in self._processes if not process.ended}

    async def _kill_all(self) -> None:
        """Kills what still runs; one that cannot be killed keeps none of the others from it."""
        failures: list[SandboxError] = []

        async def kill(process: StartedProcess) -> None:
            try:
                await process.kill()
            except SandboxError as exc:
                failures.append(exc)

        async with open_task_group() as group:
            for process in self._processes:
                group.create_task(kill(process))
        self._forget_ended()
        if failures:
            raise failures[0]

    async def _give_up_processes(self) -> None:
        """Tells whoever waits for a command that it is dead already."""
        for process in list(self._processes):
            await process.kill()
        self._forget_ended()
