"""A command of a local sandbox on a pseudo-terminal of the host, so that a person can work in it."""

import asyncio
import errno
import fcntl
import os
import struct
import termios
from collections.abc import Callable
from contextlib import suppress

from typing_extensions import override

from sandbox_runtime.provider import Terminal
from sandbox_runtime.providers.local.processes import HostCommand, HostProcess, start_process
from sandbox_runtime.types import TerminalSize

# Bubblewrap begins a session without a terminal: the command gets this one as its own, so that Ctrl-C reaches it. It is not
# the person's: what is pushed into its input (TIOCSTI) stays in the sandbox. Source: setsid(1), util-linux.
WITH_TERMINAL = ("setsid", "--ctty", "--wait")
END_S = 2.0
"""How long a command that has let go of its terminal may take to end."""
READ_BYTES = 64 * 1024


def open_terminal(command: HostCommand, *, size: TerminalSize) -> "LocalTerminal":
    """Start it, its arguments after `WITH_TERMINAL`. Must be called on the running event loop.

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
        """Until the terminal can be read or written, or is closed."""
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
