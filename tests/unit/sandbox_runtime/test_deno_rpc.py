"""A connection whose other side does not speak the protocol, over a real socket."""

import asyncio

import pytest
import websockets

from sandbox_runtime.providers.deno.rpc import ConnectionLost, RpcConnection
from sandbox_runtime.task_group import open_task_group


@pytest.mark.parametrize(
    "frame",
    [
        "<html>",
        "{}",
        "[1]",
        '"id"',
        '{"id": []}',
        '{"method": "$sandbox.stream.enqueue", "params": {"streamId": 1}}',
        '{"method": "$sandbox.stream.error", "params": "no"}',
        "[" * 100_000,
    ],
    ids=lambda frame: str(frame[:40]),
)
async def test_a_broken_frame_loses_the_connection(frame: str) -> None:
    """Whoever waits for an answer is told so at once, and nothing else breaks."""

    async def serve(connection: websockets.ServerConnection) -> None:
        await connection.recv()
        await connection.send(frame)
        await connection.wait_closed()

    async with (
        asyncio.timeout(10),
        websockets.serve(serve, "127.0.0.1", 0) as server,
        websockets.connect(f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}") as client,
        open_task_group() as group,
    ):
        connection = RpcConnection(client)
        group.create_task(connection.run())
        with pytest.raises(ConnectionLost, match="not an answer of Deno"):
            await connection.call("envGet", {"key": "HOME"})
        assert not connection.is_open
