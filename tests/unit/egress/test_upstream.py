"""What a host sends faster than the client takes it."""

import asyncio
import socket

import pytest

from app.egress.pipe import PIPE_BYTES
from app.egress.proxy import dial

pytestmark = pytest.mark.timeout(60)

MIB = 1024 * 1024
DATA = b"".join(number.to_bytes(4, "big") * (MIB // 4) for number in range(48))
PIECE_BYTES = 64 * 1024


async def test_a_client_that_reads_nothing_holds_the_host_up() -> None:
    """Little is held for it; when it reads, it gets all in order, and the end."""
    received: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(DATA)
        writer.write_eof()
        await reader.read()
        writer.close()

    near, far = socket.socketpair()
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        upstream = await dial(*server.sockets[0].getsockname())
        _, client = await asyncio.open_connection(sock=near)
        reader, other = await asyncio.open_connection(sock=far, limit=PIECE_BYTES)
        await upstream.lead_to(client, received.append)
        async with asyncio.timeout(20):
            while sum(received) <= PIECE_BYTES:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        assert sum(received) < PIPE_BYTES + 2 * MIB
        got = await reader.read()
        await upstream.until_ended()
        upstream.write_eof()
        for writer in (client, other):
            writer.close()
            await writer.wait_closed()
        upstream.abort()
    assert got == DATA
