"""A command's terminal, and what is ordered while it runs. Part of two run.py: standard library only, up to Python 3.9."""

from __future__ import annotations

import os
import struct

_TIOCSCTTY, _TIOCSWINSZ = 0x540E, 0x5414  # Source: Linux, include/uapi/asm-generic/ioctls.h.
_RESIZE, _TYPED = 9, 5
"""Bytes of an order to resize, and of one to type before what is typed."""


def split_orders(data: bytes) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Whole orders, each a letter and what comes with it, and the beginning of the next one.

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
    """Ours to read and to type at; the command has the other end. `size`: four digits of rows, four of columns."""

    def __init__(self, size: str) -> None:
        self.reader, self.command_end = os.openpty()
        os.set_blocking(self.reader, False)
        self.writer = os.dup(self.reader)
        self._typed = b""
        self._resize(size)

    @property
    def is_behind(self) -> bool:
        """Something typed waits for the command to take what came before it: `write` when `writer` allows."""
        return bool(self._typed)

    def obey(self, kind: bytes, data: bytes) -> None:
        """An order; what is none of a terminal's is left alone."""
        if kind == b"R":
            self._resize(data.decode())
        elif kind == b"I":
            self._typed += data
            self.write()

    def write(self) -> None:
        """As much of what was typed as there is room for."""
        try:
            self._typed = self._typed[os.write(self.writer, self._typed) :]
        except BlockingIOError:
            pass
        except OSError:
            self._typed = b""  # nobody has it open any more

    def control(self) -> None:
        """In the command's process, which leads a session: it has this terminal, and Ctrl-C reaches it."""
        import fcntl  # noqa: PLC0415  # only for terminals

        fcntl.ioctl(self.command_end, _TIOCSCTTY, 0)

    def _resize(self, size: str) -> None:
        import fcntl  # noqa: PLC0415  # only for terminals

        window = struct.pack("HHHH", int(size[:4]), int(size[4:]), 0, 0)
        try:
            fcntl.ioctl(self.reader, _TIOCSWINSZ, window)
        except OSError:
            pass
