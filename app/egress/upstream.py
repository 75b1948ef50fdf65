"""A connection to a host beyond the proxy: what it sends goes on to the client at once, without a stream reader between."""

import asyncio
from collections.abc import Callable

from typing_extensions import override

from app.egress.pipe import SocketPipe


class Upstream(asyncio.Protocol):
    """Reads nothing until it is led to a client."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._pipe: SocketPipe | None = None
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._may_write = asyncio.Event()
        self._may_write.set()

    async def lead_to(self, client: asyncio.StreamWriter, count: Callable[[int], None]) -> None:
        """Sends on from now on all that comes; `count` is told of the bytes, and an OSError of its ends the connection.

        Raises: OSError: the client is gone.
        """
        self._client = client
        client.transport.set_write_buffer_limits(high=0)
        await client.drain()
        sockets = [one.get_extra_info("socket") for one in (self._transport, client.transport)]
        source, target = (one.fileno() for one in sockets)
        self._pipe = SocketPipe(source, target, count=count, on_end=self._piped)

    async def write(self, data: bytes) -> None:
        """Sends to the host. Raises: OSError: it is gone."""
        if self._transport.is_closing():
            raise ConnectionResetError
        self._transport.write(data)
        await self._may_write.wait()

    def write_eof(self) -> None:
        """Says that nothing more will be sent; the host may go on."""
        self._transport.write_eof()

    async def until_ended(self) -> None:
        """Returns when the host has sent all that it will. Raises: OSError: the connection broke, or the client is gone."""
        await self._ended

    def abort(self) -> None:
        """Closes it at once."""
        self._transport.abort()
        if self._pipe is not None:
            self._pipe.close()

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - of a TCP connection
        self._transport = transport
        transport.pause_reading()

    @override
    def pause_writing(self) -> None:
        self._may_write.clear()

    @override
    def resume_writing(self) -> None:
        self._may_write.set()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._may_write.set()
        self._end(exc)

    def _piped(self, error: OSError | None) -> None:
        if error is not None:
            self._transport.abort()
        elif not self._client.transport.is_closing():
            self._client.write_eof()
        self._end(error)

    def _end(self, exc: Exception | None) -> None:
        if self._ended.done():
            return
        if exc is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(exc)
            self._ended.exception()  # whoever waits hears of it, if anybody does
