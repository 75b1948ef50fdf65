"""Passes on what a socket gets to another one within the kernel, without a copy in this process."""

import asyncio
import fcntl
import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Final

PIPE_BYTES: Final = 1024 * 1024
"""At once; what a user may give a pipe without rights. Source: Linux, pipe(7), pipe-max-size, read 2026-11."""


class SocketPipe:
    """Moves bytes from one socket to another on the loop, held up by what the target takes."""

    def __init__(
        self,
        source_fd: int,
        target_fd: int,
        *,
        count: Callable[[int], None],
        on_end: Callable[[OSError | None], None],
    ) -> None:
        """Both sockets stay their owners', who read and write nothing meanwhile.

        `count`: told of the bytes that came; an OSError of its ends it. `on_end`: called once, with what broke it, None at the source's end.

        Raises:
            OSError: too many files are open.
        """
        self._loop = asyncio.get_running_loop()
        with ExitStack() as opened:
            # The loop knows both by transports: under other numbers it lets somebody else wait for them.
            self._source = _opened(opened, os.dup(source_fd))
            self._target = _opened(opened, os.dup(target_fd))
            self._out, self._into = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            opened.pop_all()
        with suppress(OSError):  # many are open
            fcntl.fcntl(self._into, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._held_bytes = 0
        self._count, self._on_end = count, on_end
        self._is_open = True
        self._loop.add_reader(self._source, self._read)

    def close(self) -> None:
        """Ends it without a word."""
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._source)
            self._loop.remove_writer(self._target)
            for one in (self._source, self._target, self._out, self._into):
                os.close(one)

    def _read(self) -> None:
        try:
            size = os.splice(self._source, self._into, PIPE_BYTES, flags=os.SPLICE_F_NONBLOCK)
            if size:
                self._held_bytes = size
                self._count(size)
                self._write()
        except BlockingIOError:
            pass
        except OSError as exc:
            self._end(exc)
        else:
            if not size:
                self._end(None)

    def _write(self) -> None:
        """Raises: OSError: the target is gone."""
        try:
            while self._held_bytes:
                self._held_bytes -= os.splice(
                    self._out, self._target, self._held_bytes, flags=os.SPLICE_F_NONBLOCK
                )
        except BlockingIOError:
            self._loop.remove_reader(self._source)
            self._loop.add_writer(self._target, self._resume)

    def _resume(self) -> None:
        try:
            self._write()
        except OSError as exc:
            self._end(exc)
            return
        if not self._held_bytes:
            self._loop.remove_writer(self._target)
            self._loop.add_reader(self._source, self._read)

    def _end(self, error: OSError | None) -> None:
        if self._is_open:
            self.close()
            self._on_end(error)


def _opened(stack: ExitStack, fd: int) -> int:
    stack.callback(os.close, fd)
    return fd
