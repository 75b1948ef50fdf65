"""One model call against a server of its own: what the SDK loads and builds on its first call is there before it counts."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import anthropic

_TIMEOUT_S = 10
_USAGE = {"input_tokens": 1, "output_tokens": 1}
_MESSAGE: dict[str, Any] = {
    "id": "msg_rehearsal",
    "type": "message",
    "role": "assistant",
    "model": "rehearsal",
    "content": [],
    "stop_reason": None,
    "stop_sequence": None,
    "usage": _USAGE,
}
_EVENTS = (
    {"type": "message_start", "message": _MESSAGE},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}},
    {"type": "content_block_stop", "index": 0},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": _USAGE,
    },
    {"type": "message_stop"},
)
"""Source: Anthropic Messages API, "Streaming messages", read 2026-11."""


def rehearse() -> None:
    """Nothing but loopback is touched. That it fails is no reason not to work: the real call will say what is wrong."""
    with contextlib.suppress(anthropic.APIError, OSError, TimeoutError):
        asyncio.run(_rehearse())


async def _rehearse() -> None:
    async with asyncio.timeout(_TIMEOUT_S):
        server = await asyncio.start_server(_answer, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            async with (
                anthropic.AsyncAnthropic(
                    api_key="none", base_url=f"http://127.0.0.1:{port}", max_retries=0
                ) as client,
                client.messages.stream(
                    model="rehearsal", max_tokens=1, messages=[{"role": "user", "content": "a"}]
                ) as stream,
            ):
                await stream.get_final_message()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    body = "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in _EVENTS)
    writer.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n"
        + f"content-length: {len(body)}\r\n\r\n{body}".encode()
    )
    with contextlib.suppress(OSError):
        await writer.drain()
        writer.close()
        await writer.wait_closed()
