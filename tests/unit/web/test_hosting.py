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
