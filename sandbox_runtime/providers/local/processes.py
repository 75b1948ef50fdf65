"""A child process of ours and everything it starts: output with back-pressure, exit, and a verified kill.

Built on file descriptors and the loop's readers, without tasks and without an await between fork and bookkeeping: a
cancellation can never leave a child that nobody knows.
"""

import asyncio
import errno
import fcntl
import json
import os
import signal
import struct
import subprocess
import termios
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from typing_extensions import override

from sandbox_runtime.command import MARK_NAME
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.provider import Process, Terminal
from sandbox_runtime.providers.inside.kill import kill_processes
from sandbox_runtime.types import (
    ExecEvent,
    ExecExited,
    ExecOutput,
    OutputStream,
    TerminalSize,
)

KILL_TIMEOUT_S = 5.0
START_GRACE_S = 1.0
"""How long a kill waits to learn the pid of a namespace that is just being made."""
MAX_QUEUED_BYTES = 256 * 1024
"""Read ahead of the consumer at the most; past that the pipes stay unread and the command blocks."""
READ_BYTES = 64 * 1024
NICENESS = 10
"""About a tenth of the service's share of a busy processor: 32 agents starting at once must not silence the service."""

MemoryFile = Callable[[bytes], int]
"""Puts bytes into an anonymous file that the child inherits; gives its descriptor."""

StatusFile = Callable[[], int]
"""Gives a descriptor for the JSON status of one bubblewrap, which closes it: each needs its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCommand:
    """Says how to start a child on the host."""

    argv: Callable[[MemoryFile, StatusFile], list[str]] = field(repr=False)
    """Builds the arguments."""
    env: Mapping[str, str] = field(repr=False)
    cwd: str
    namespaces: int
    """How many bubblewraps, one in the other, run the command and tell on the status descriptor how that went."""
    output_uid: int | None = None
    """Who shall own the output pipes, so that /dev/stdout and /dev/stderr can be opened inside."""
    mark: str | None = None
    """A string in the environment of all descendants, by which they are found where no namespace holds them."""


def start_process(
    command: HostCommand, *, stdin: bytes, merge_output: bool, terminal_fd: int | None = None
) -> "HostProcess":
    """Starts a child; with `terminal_fd`, which the caller closes, on that terminal, `merge_output` set. Must be called on the running event loop.

    Raises:
        OSError: E2BIG when the arguments are too long, and whatever else starting a process may raise.
    """
    theirs: list[int] = []
    ours: list[int] = []

    def memory(data: bytes) -> int:
        fd = os.memfd_create("sandbox-input", os.MFD_CLOEXEC)
        theirs.append(fd)
        with os.fdopen(os.dup(fd), "wb") as file:
            file.write(data)
        os.lseek(fd, 0, os.SEEK_SET)
        return fd

    def pipe() -> int:
        read_end, write_end = os.pipe()
        ours.append(read_end)
        theirs.append(write_end)
        os.set_blocking(read_end, False)
        if command.output_uid is not None:
            os.fchown(write_end, command.output_uid, command.output_uid)
        return write_end

    def duplicate(fd: int | None) -> int:
        if fd is None:
            raise AssertionError("only bubblewrap reports its status")
        theirs.append(os.dup(fd))
        return theirs[-1]

    try:
        source = memory(stdin) if stdin else subprocess.DEVNULL
        stdout = pipe() if terminal_fd is None else terminal_fd
        stderr = subprocess.STDOUT if merge_output else pipe()
        status_end = pipe() if command.namespaces else None
        argv = command.argv(memory, lambda: duplicate(status_end))
        inherited = tuple(fd for fd in theirs if fd not in (stdout, stderr, status_end))
        child = subprocess.Popen(
            argv,
            stdin=source if terminal_fd is None else terminal_fd,
            stdout=stdout,
            stderr=stderr,
            env=dict(command.env),
            cwd=command.cwd,
            pass_fds=inherited,
            start_new_session=True,
        )
        if command.namespaces or command.mark:
            lower_priority(child.pid)
    except BaseException:
        for fd in ours:
            os.close(fd)
        raise
    finally:
        for fd in theirs:
            os.close(fd)
    status_fd = ours.pop() if command.namespaces else None
    outputs = dict(zip(ours, (OutputStream.STDOUT, OutputStream.STDERR), strict=False))
    return HostProcess(child, command=command, outputs=outputs, status_fd=status_fd)


class HostProcess(Process):
    def __init__(
        self,
        child: subprocess.Popen[bytes],
        *,
        command: HostCommand,
        outputs: Mapping[int, OutputStream],
        status_fd: int | None,
    ) -> None:
        self._child = child
        self._command = command
        self._loop = asyncio.get_running_loop()
        self._init = NamespaceInit(command.namespaces) if status_fd is not None else None
        self._queue: deque[ExecOutput] = deque()
        self._queued_bytes = 0
        self._paused = False
        self._outputs = dict(outputs)
        self._changed = asyncio.Event()
        self._taken = False
        self._killed = False
        self._detached = False
        self._killable = asyncio.Event()
        self._watched: set[int] = set()
        self._pidfd = os.pidfd_open(child.pid)
        self._watch(self._pidfd, self._on_exit)
        if status_fd is not None:
            self._watch(status_fd, lambda: self._on_status(status_fd))
        self._resume()

    @property
    def ended(self) -> bool:
        """Whether everything it started is dead and all output was read (or given up by `kill`)."""
        return not self._watched and not self._outputs

    @property
    def start_failed(self) -> bool:
        """Whether, after the end, the command itself never ran, because bubblewrap could not make its sandbox."""
        return (
            self._init is not None
            and self._init.exit_code is None
            and not self._killed
            and not (self._init.seen and self._child.returncode < 0)
        )

    @property
    def exit_code(self) -> int:
        """Returns 0..255, after the end."""
        if self._init is not None and self._init.exit_code is not None:
            return self._init.exit_code
        if self._init is not None and self._killed:
            # Bubblewrap's own status, where it outlived the namespace that it was still making.
            return 128 + signal.SIGKILL
        code = self._child.returncode
        return 128 - code if code < 0 else code

    @override
    async def events(self) -> AsyncIterator[ExecEvent]:
        if self._taken:
            raise RuntimeError("events may be iterated once")
        self._taken = True
        while not self._detached:
            while self._queue:
                event = self._queue.popleft()
                self._queued_bytes -= len(event.data)
                if self._paused and self._queued_bytes <= MAX_QUEUED_BYTES // 2:
                    self._resume()
                yield event
            if self.ended:
                break
            await self._changed.wait()
            self._changed.clear()
        if self._detached:
            return
        if self.start_failed:
            raise SandboxError(
                SandboxErrorCode.UNAVAILABLE, "bubblewrap could not start the command"
            )
        yield ExecExited(exit_code=self.exit_code)

    async def until_ended(self) -> None:
        """Returns when everything it started is dead; for one on a terminal, whose output nobody reads here."""
        while not self.ended:
            await self._changed.wait()
            self._changed.clear()

    @override
    async def kill(self) -> None:
        if self.ended:
            return
        self._killed = True
        try:
            await self._until_killable()
        finally:
            self._signal_tree()
        try:
            async with asyncio.timeout(KILL_TIMEOUT_S):
                while self._watched:
                    await asyncio.sleep(0.002)
                    self._signal_tree()
        except TimeoutError as exc:
            raise SandboxError(
                SandboxErrorCode.UNAVAILABLE,
                f"process {self._child.pid} still lives {KILL_TIMEOUT_S:g} s after SIGKILL",
            ) from exc
        finally:
            for fd in list(self._outputs):
                self._close_output(fd)

    @override
    async def detach(self) -> None:
        self._detached = True
        self._queue.clear()
        if self._paused:
            self._resume()
        self._changed.set()

    async def _until_killable(self) -> None:
        """Bubblewrap killed in the middle of its own start could leave a namespace that has not asked to die with it."""
        if self._init is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(START_GRACE_S):
                await self._killable.wait()

    def _signal_tree(self) -> None:
        if self._init is not None:
            self._init.kill()
        if self._child.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
        if self._command.mark is not None:
            kill_processes(self._command.mark.encode())

    def _watch(self, fd: int, callback: Callable[[], object]) -> None:
        self._watched.add(fd)
        self._loop.add_reader(fd, callback)

    def _forget(self, fd: int) -> None:
        self._watched.discard(fd)
        self._loop.remove_reader(fd)
        os.close(fd)
        self._changed.set()

    def _on_exit(self) -> None:
        self._child.poll()
        self._killable.set()
        # What a command leaves behind ends with it, in a namespace and without.
        if self._init is not None:
            self._init.kill()
        if self._command.mark is not None and kill_processes(self._command.mark.encode()):
            self._loop.call_later(0.002, self._on_exit)
            self._loop.remove_reader(self._pidfd)
            return
        self._forget(self._pidfd)

    def _on_init_exit(self, pidfd: int) -> None:
        if self._init is not None:
            self._init.pidfd = None
        self._forget(pidfd)

    def _on_status(self, fd: int) -> None:
        data = _read(fd)
        if data is None:
            return
        if not data:
            self._forget(fd)
        elif self._init is not None:
            self._init.feed(data)
            self._killable.set()
            pidfd = self._init.pidfd
            if pidfd is not None and pidfd not in self._watched:
                self._watch(pidfd, lambda: self._on_init_exit(pidfd))

    def _on_output(self, fd: int) -> None:
        data = _read(fd)
        if data is None:
            return
        if not data:
            self._close_output(fd)
            return
        if self._detached:
            return  # read on, so that it does not stop at a full pipe
        self._queue.append(ExecOutput(stream=self._outputs[fd], data=data))
        self._queued_bytes += len(data)
        if self._queued_bytes > MAX_QUEUED_BYTES:
            self._paused = True
            for output in self._outputs:
                self._loop.remove_reader(output)
        self._changed.set()

    def _resume(self) -> None:
        self._paused = False
        for fd in self._outputs:
            self._loop.add_reader(fd, self._on_output, fd)

    def _close_output(self, fd: int) -> None:
        del self._outputs[fd]
        self._loop.remove_reader(fd)
        os.close(fd)
        self._changed.set()


def _read(fd: int) -> bytes | None:
    """Returns what is there; b"" at the end; None when there is nothing yet."""
    try:
        return os.read(fd, READ_BYTES)
    except OSError as exc:
        if exc.errno in (errno.EAGAIN, errno.EINTR):
            return None
        raise


# Bubblewrap begins a session without a terminal: the command gets this one as its own, so that Ctrl-C reaches it. It is not
# the person's: what is pushed into its input (TIOCSTI) stays in the sandbox. Source: setsid(1), util-linux.
WITH_TERMINAL = ("setsid", "--ctty", "--wait")
END_S = 2.0
"""How long a command that has let go of its terminal may take to end."""


def open_terminal(command: HostCommand, *, size: TerminalSize) -> "LocalTerminal":
    """Starts a child on a terminal, its arguments after `WITH_TERMINAL`. Must be called on the running event loop.

    Raises:
        OSError: whatever starting a process may raise.
    """
    ours, theirs = os.openpty()
    try:
        _set_size(ours, size)
        os.set_blocking(ours, False)
        if command.output_uid is not None:
            os.fchown(theirs, command.output_uid, command.output_uid)
        process = start_process(command, stdin=b"", merge_output=True, terminal_fd=theirs)
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    return LocalTerminal(ours, process)


class LocalTerminal(Terminal):
    """A started command and the host's end of its terminal."""

    def __init__(self, fd: int, process: HostProcess) -> None:
        self._fd = fd
        self.process = process
        self._closed = False
        self._waits: set[asyncio.Future[None]] = set()
        self._loop = asyncio.get_running_loop()

    @override
    async def read(self) -> bytes:
        while not self._closed:
            try:
                return os.read(self._fd, READ_BYTES)
            except BlockingIOError:
                await self._ready(self._loop.add_reader, self._loop.remove_reader)
            except OSError as exc:
                # The other end is closed everywhere. Source: pty(7) of Linux, EIO.
                if exc.errno != errno.EIO:
                    raise
                return b""
        return b""

    @override
    async def write(self, data: bytes) -> None:
        while data and not self._closed:
            try:
                data = data[os.write(self._fd, data) :]
            except BlockingIOError:
                await self._ready(self._loop.add_writer, self._loop.remove_writer)
            except OSError:
                return

    @override
    async def resize(self, size: TerminalSize) -> None:
        if not self._closed:
            with suppress(OSError):
                _set_size(self._fd, size)

    @override
    async def close(self) -> int:
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(END_S if self._has_let_go() else 0):
                    await self.process.until_ended()
        finally:
            if not self._closed:
                self._closed = True
                self._loop.remove_reader(self._fd)
                self._loop.remove_writer(self._fd)
                os.close(self._fd)
                for ready in self._waits:
                    _resolve(ready)
            await self.process.kill()
        return self.process.exit_code

    async def _ready(self, watch: Callable[..., object], forget: Callable[[int], object]) -> None:
        """Waits until the terminal can be read or written, or is closed."""
        ready = self._loop.create_future()
        self._waits.add(ready)
        watch(self._fd, _resolve, ready)
        try:
            await ready
        finally:
            self._waits.discard(ready)
            if not self._closed:
                forget(self._fd)

    def _has_let_go(self) -> bool:
        try:
            return not self._closed and os.read(self._fd, READ_BYTES) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True


def _resolve(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _set_size(fd: int, size: TerminalSize) -> None:
    """Source: ioctl_tty(2), TIOCSWINSZ."""
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", size.rows, size.columns, 0, 0))


def lower_priority(session: int) -> None:
    """Lowers the priority of a session that was just started, where the kernel groups processes by session.

    There `nice` counts within a session only. Source: sched(7), autogroup.
    """
    with suppress(OSError):
        Path(f"/proc/{session}/autogroup").write_text(str(NICENESS), encoding="ascii")


def mark_of(sandbox_id: str) -> str:
    """Returns what the environments of a sandbox's processes hold; a command's own mark goes on from there."""
    return f"{MARK_NAME}={sandbox_id}"


class NamespaceInit:
    """The init process of the outermost bubblewrap, as it reports. Killing it kills everything in its namespace.

    Source: bwrap(1) 0.8.0, --json-status-fd: first `{"child-pid": …, "pid-namespace": …}`, at the end `{"exit-code": n}`,
    which is written only if the command was started. Of nested ones the outer begins first and ends last.
    """

    def __init__(self, levels: int) -> None:
        self._levels = levels
        self._exit_codes: list[int] = []
        self.seen = False
        self.pidfd: int | None = None
        """Readable when the namespace is dead. Whoever watches it closes it and sets None."""
        self._unread = b""

    def feed(self, data: bytes) -> None:
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            status = json.loads(line)
            if "exit-code" in status:
                self._exit_codes.append(int(status["exit-code"]))
            if "child-pid" in status and not self.seen:
                self.seen = True
                self.pidfd = _open_init(int(status["child-pid"]), int(status["pid-namespace"]))

    @property
    def exit_code(self) -> int | None:
        """Returns the command's; None as long as one of the bubblewraps has not told that it started what it should."""
        return self._exit_codes[0] if len(self._exit_codes) == self._levels else None

    def kill(self) -> None:
        if self.pidfd is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)


def _open_init(pid: int, namespace: int) -> int | None:
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    # The pid may be of someone else by now: ours is in the namespace that bubblewrap named.
    try:
        is_ours = Path(f"/proc/{pid}/ns/pid").stat().st_ino == namespace
    except PermissionError:
        is_ours = True
    except (FileNotFoundError, ProcessLookupError):
        is_ours = False
    if is_ours:
        return fd
    os.close(fd)
    return None
