"""Servers of this process."""

import asyncio
import socket

import pytest
from fastapi import FastAPI

from app.web.hosting import serve
from tests.sockets import accepted_side


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_answers_wait_for_no_acknowledgement(host: str) -> None:
    """Head and body of an answer are sent one after the other; TCP must not hold back the second."""
    async with serve(FastAPI(), host=host) as url:
        reader, writer = await asyncio.open_connection(host, int(url.rpartition(":")[2]))
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 404")
        with accepted_side(writer.get_extra_info("sockname")) as accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        writer.close()


async def _pour(writer: asyncio.StreamWriter) -> None:
    for _ in range(64):
        writer.write(b"x" * 65536)
        await writer.drain()
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("begun", [b"GET / HTTP/1.1\r\nX: ", b"GET /", b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: "])  # fmt: skip
async def test_a_head_without_end(begun: bytes) -> None:
    """It is cut off, and so are trailers; nobody waits for the rest."""
    async with asyncio.timeout(20), serve(FastAPI()) as url:
        _, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(begun)
        with pytest.raises(ConnectionError):
            await _pour(writer)
        writer.close()
