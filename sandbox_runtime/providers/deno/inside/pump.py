"""Output on its way out, as far as the reader has room for it. Part of run.py, as plain."""

from __future__ import annotations

import os
import select

WINDOW = 65536
_FIRST_WINDOWS = 8
"""How much may be on its way: this many windows of bytes, and one more for each that the reader has taken."""
_PIECE = 32768


class Pump:
    """From the command's pipes, or its terminal, to our own stdout and stderr, as far as there is credit."""

    def __init__(self, routes: dict[int, int], poller: select.poll) -> None:
        self.credit = WINDOW * _FIRST_WINDOWS
        self.routes = routes
        self._waiting = dict.fromkeys(routes.values(), b"")
        self.poller = poller
        self._watched: dict[int, int] = {}
        self.is_heard = True

    def watch(self) -> None:
        """Ask for what can be done next."""
        wanted = {}
        for source, sink in self.routes.items():
            if not self._waiting[sink] and (self.credit > 0 or not self.is_heard):
                wanted[source] = select.POLLIN
        for sink, data in self._waiting.items():
            if data:
                wanted[sink] = select.POLLOUT
        for fd in self._watched.keys() - wanted.keys():
            self.poller.unregister(fd)
        for fd, events in wanted.items():
            self.poller.register(fd, events)
        self._watched = wanted

    def take(self, fd: int) -> None:
        """It can be read, or written."""
        if fd in self.routes:
            try:
                data = os.read(fd, max(1, min(self.credit, _PIECE)) if self.is_heard else _PIECE)
            except BlockingIOError:
                return
            except OSError:
                data = b""  # a terminal that nobody has open any more
            if not data:
                del self.routes[fd]
            elif self.is_heard:
                self.credit -= len(data)
                self._waiting[self.routes[fd]] = data
                self._write(self.routes[fd])
        elif fd in self._waiting:
            self._write(fd)

    def _write(self, sink: int) -> None:
        try:
            self._waiting[sink] = self._waiting[sink][os.write(sink, self._waiting[sink]) :]
        except BlockingIOError:
            pass
        except OSError:
            self.drop()

    def drop(self) -> None:
        """Nobody listens any more."""
        self.is_heard = False
        self._waiting = dict.fromkeys(self._waiting, b"")

    @property
    def is_done(self) -> bool:
        return not self.routes and not any(self._waiting.values())
