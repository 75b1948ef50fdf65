"""Byte streams that come over a sandbox's socket, each with its bound."""

import asyncio
from collections import deque
from collections.abc import Mapping

from sandbox_runtime.providers.deno.errors import ConnectionLost, UnexpectedAnswer
from sandbox_runtime.types import ExecOutput, OutputStream

MAX_STREAM_BYTES = 8 * 1024 * 1024
"""What may wait in one stream. Ours are held back inside (inside/run.py), far below this; the protocol itself has no way to."""


class InboundStream:
    """One reader. Filled by the socket, maybe before anybody knows what it belongs to."""

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._waiting = 0
        self._ended = False
        self._error: Exception | None = None
        self._changed = asyncio.Event()

    @property
    def is_over(self) -> bool:
        return self._ended or self._error is not None

    def feed(self, data: bytes) -> None:
        if self._ended or self._error is not None:
            return
        self._waiting += len(data)
        if self._waiting > MAX_STREAM_BYTES:
            self.fail(UnexpectedAnswer(f"more than {MAX_STREAM_BYTES} bytes at once"))
            return
        self._pieces.append(data)
        self._changed.set()

    def end(self) -> None:
        self._ended = True
        self._changed.set()

    def fail(self, error: Exception) -> None:
        """What came before is still read. After the end, nothing."""
        if not self._ended and self._error is None:
            self._error = error
            self._changed.set()

    async def read(self) -> bytes:
        """What came since; empty at the end. Waits without a bound: the caller has one.

        Raises:
            ConnectionLost, UnexpectedAnswer: in place of an end.
        """
        while (data := self._take()) is None:
            self._changed.clear()
            await self._changed.wait()
        return data

    def _take(self) -> bytes | None:
        """None when nothing came since."""
        if not self._pieces:
            if self._ended:
                return b""
            if self._error is not None:
                raise self._error
            return None
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._waiting = 0
        return data


class MergedStreams:
    """Several by name, read as one."""

    def __init__(self, streams: Mapping[OutputStream, InboundStream]) -> None:
        self._streams = dict(streams)
        self._changed = asyncio.Event()
        for stream in streams.values():
            stream._changed = self._changed  # noqa: SLF001  # its own module

    async def read(self) -> ExecOutput | None:
        """What came next; None when all are at their end. Waits without a bound: the caller has one.

        Raises:
            ConnectionLost, UnexpectedAnswer: in place of an end.
        """
        while self._streams:
            for name, stream in list(self._streams.items()):
                data = stream._take()  # noqa: SLF001  # same
                if data:
                    return ExecOutput(stream=name, data=data)
                if data is not None:
                    del self._streams[name]
            if self._streams:
                self._changed.clear()
                await self._changed.wait()
        return None


class InboundStreams:
    """Of one connection. The other side numbers them, and may fill one before it says whose it is."""

    def __init__(self) -> None:
        self._streams: dict[int, InboundStream] = {}
        self._dropped: set[int] = set()
        self._lost: ConnectionLost | None = None

    def take(self, number: int) -> InboundStream:
        """The stream of that number, whatever of it has come already. Whoever takes it drops it."""
        stream = self._streams.setdefault(number, InboundStream())
        if self._lost is not None:
            stream.fail(self._lost)
        return stream

    def drop(self, number: int) -> None:
        """Nobody reads it any more."""
        stream = self._streams.pop(number, None)
        if stream is not None and not stream.is_over:
            self._dropped.add(number)
            stream.end()

    def feed(self, number: int, data: bytes) -> None:
        if number not in self._dropped:
            self._streams.setdefault(number, InboundStream()).feed(data)

    def end(self, number: int, error: Exception | None = None) -> None:
        if number in self._dropped:
            self._dropped.discard(number)
            return
        stream = self._streams.setdefault(number, InboundStream())
        if error is None:
            stream.end()
        else:
            stream.fail(error)

    def lose(self, error: ConnectionLost) -> None:
        """The connection broke: none of them goes on."""
        self._lost = error
        for stream in self._streams.values():
            stream.fail(error)
