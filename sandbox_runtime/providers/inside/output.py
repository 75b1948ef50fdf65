"""How a command's output leaves its sandbox, one framing for each transport, and its terminal. Part of run.py, as plain as that.

`inherited`: the command has our own stdout and stderr, after one byte that says that the request was read; their reader
holds it back. `pipes`: the same bytes by way of pipes of ours, because nothing outside holds them back: no more than was
allowed. `lines`: lines of text on stdout, for a transport that carries nothing else, keeps them, and looks dead while it is
silent: `!` when the request was read, `o` or `e` and a piece of output in base64, `.` when nothing was said for a while,
and last `x` and the exit code.
"""

from __future__ import annotations

import binascii
import os
import select
import struct

from sandbox_runtime.providers.inside.command import Request

_TIOCSCTTY, _TIOCSWINSZ = 0x540E, 0x5414  # Source: Linux, include/uapi/asm-generic/ioctls.h.
_RESIZE, _TYPED = 9, 5
"""Bytes of an order to resize, and of one to type before what is typed."""


def split_orders(data: bytes) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Returns whole orders, each a letter and what comes with it, and the beginning of the next one.

    R and eight digits: the terminal's new rows and columns. I, four digits and as many bytes: what is typed. Others: a letter.
    """
    orders = []
    while data:
        kind, begin, end = data[:1], 1, 1
        if kind == b"R":
            end = _RESIZE
        elif kind == b"I":
            begin = _TYPED
            end = _TYPED + (int(data[1:_TYPED]) if len(data) >= _TYPED else 0)
        if len(data) < end:
            break
        orders.append((kind, data[begin:end]))
        data = data[end:]
    return orders, data


class ControllingTerminal:
    """A terminal of which the command has the other end. `size`: four digits of rows, four of columns."""

    def __init__(self, size: str) -> None:
        self.reader, self.command_end = os.openpty()
        os.set_blocking(self.reader, False)
        self.writer = os.dup(self.reader)
        self._typed = b""
        self._resize(size)

    @property
    def is_behind(self) -> bool:
        """Whether something typed waits for the command to take what came before it: `write` when `writer` allows."""
        return bool(self._typed)

    def obey(self, kind: bytes, data: bytes) -> None:
        """Follows an order; what is none of a terminal's is left alone."""
        if kind == b"R":
            self._resize(data.decode())
        elif kind == b"I":
            self._typed += data
            self.write()

    def write(self) -> None:
        """Writes as much of what was typed as there is room for."""
        try:
            self._typed = self._typed[os.write(self.writer, self._typed) :]
        except BlockingIOError:
            pass
        except OSError:
            self._typed = b""  # nobody has it open any more

    def control(self) -> None:
        """Gives the terminal to this process, the command's, which leads a session: Ctrl-C reaches it then."""
        import fcntl  # noqa: PLC0415  # only for terminals

        fcntl.ioctl(self.command_end, _TIOCSCTTY, 0)

    def _resize(self, size: str) -> None:
        import fcntl  # noqa: PLC0415  # only for terminals

        window = struct.pack("HHHH", int(size[:4]), int(size[4:]), 0, 0)
        try:
            fcntl.ioctl(self.reader, _TIOCSWINSZ, window)
        except OSError:
            pass


ACK = b"\x06"
WINDOW = 65536
"""How many bytes more an order `W` allows."""
_PIECE_BYTES = 32768
_UNBOUNDED = 1 << 62


class Output:
    """Passes output from the command's pipes, or its terminal, to our own stdout and stderr, as far as somebody reads them."""

    def __init__(
        self, framing: str, request: Request, terminal: ControllingTerminal | None
    ) -> None:
        """Says that the request was read."""
        self._is_lines = framing == "lines"
        self._sinks = (1, 1) if self._is_lines else (1, 2)
        self._waiting = dict.fromkeys(self._sinks, b"")
        self._sources: dict[int, int] = {}
        """To 0 for stdout, 1 for stderr."""
        self._credit = request.window or _UNBOUNDED
        self._keep = [_UNBOUNDED if request.keep is None else request.keep] * 2
        self._is_heard = True
        if framing == "inherited":
            self.given = (1, 1 if request.is_merged else 2)
        elif terminal is not None:
            self._sources[terminal.reader] = 0
            self.given = (terminal.command_end, terminal.command_end)
        else:
            out = self._pipe(0)
            self.given = (out, out if request.is_merged else self._pipe(1))
        """What the command gets as its stdout and stderr."""
        os.write(1, b"!\n" if self._is_lines else ACK)
        if framing != "inherited":
            for fd in self._waiting:
                os.set_blocking(fd, False)

    def _pipe(self, stream: int) -> int:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        self._sources[reader] = stream
        return writer

    @property
    def is_done(self) -> bool:
        """Whether all of it is on its way, or nobody listens."""
        return not self._is_heard or not (self._sources or any(self._waiting.values()))

    def wanted(self) -> dict[int, int]:
        """Returns what can be done next: file descriptor to events of a poll."""
        wanted = {}
        for source, stream in self._sources.items():
            if not self._waiting[self._sinks[stream]] and (self._credit > 0 or not self._is_heard):
                wanted[source] = select.POLLIN
        for sink, data in self._waiting.items():
            if data:
                wanted[sink] = select.POLLOUT
        return wanted

    def take(self, fd: int) -> None:
        """Goes on with one that can be read, or written."""
        if fd not in self._sources:
            self._flush(fd)
            return
        size = min(self._credit, _PIECE_BYTES) if self._is_heard else _PIECE_BYTES
        try:
            data = os.read(fd, max(1, size))
        except BlockingIOError:
            return
        except OSError:
            data = b""  # a terminal that nobody has open any more
        if data:
            self._pass(self._sources[fd], data)
        else:
            os.close(fd)
            del self._sources[fd]

    def _pass(self, stream: int, data: bytes) -> None:
        """Passes a piece on, but for what is past its bound: nobody would keep that."""
        data = data[: self._keep[stream]]
        if data and self._is_heard:
            self._keep[stream] -= len(data)
            self._credit -= len(data)
            if self._is_lines:
                data = (b"o", b"e")[stream] + binascii.b2a_base64(data)
            self._send(self._sinks[stream], data)

    def _send(self, sink: int, data: bytes) -> None:
        self._waiting[sink] += data
        self._flush(sink)

    def _flush(self, sink: int) -> None:
        try:
            self._waiting[sink] = self._waiting[sink][os.write(sink, self._waiting[sink]) :]
        except BlockingIOError:
            pass
        except OSError:
            self._drop()

    def allow(self) -> None:
        """Takes note of an order `W`."""
        self._credit += WINDOW

    def leave(self) -> None:
        """Takes note that nobody listens any more. To lines somebody may listen again: they are kept."""
        if not self._is_lines:
            self._drop()

    def _drop(self) -> None:
        self._is_heard = False
        self._waiting = dict.fromkeys(self._waiting, b"")

    def beat(self) -> None:
        """Shows that the command lives."""
        if self._is_lines and not self._waiting[1]:
            self._send(1, b".\n")

    def close(self, code: int) -> None:
        """Tells how the command ended, where that has to be told."""
        if not self._is_lines:
            return
        os.set_blocking(1, True)
        data = self._waiting[1] + b"x%d\n" % code
        try:
            while data:
                data = data[os.write(1, data) :]
        except OSError:
            pass  # nobody is there; then the exit code alone tells
