"""How the body of a sandbox's request is read: bounded in bytes, in time, and in what it costs to understand it."""

import asyncio
from contextlib import AsyncExitStack

from fastapi import Request

from app.brokerage.admission import LiveGrant
from app.brokerage.requests import Refused, invalid, too_many

MAX_REQUEST_BYTES = 32 * 1024 * 1024
"""Source: Anthropic API, request size limit of the Messages endpoint, read 2026-11."""
MAX_HELD_BYTES = 64 * 1024 * 1024
"""Of the bodies of one run's requests in flight: two of the largest."""
READ_TIMEOUT_S = 60.0
"""For a whole body; a sandbox elsewhere needs 5 Mbit/s for the largest."""
MAX_VALUES = 200_000
"""In a body, about. A million of `[]` holds up all other runs for most of a second; a long conversation has some ten thousand."""
_STRUCTURE = (b"[", b"{", b",", b":")


async def read_body(
    request: Request,
    live: LiveGrant,
    held: AsyncExitStack,
    *,
    max_bytes: int = MAX_REQUEST_BYTES,
) -> bytes | Refused:
    """The body, which counts as held by the run until `held` is closed.

    Raises:
        ClientDisconnect: it did not come to its end.
    """
    too_large = Refused(
        status=413,
        kind="request_too_large",
        message=f"the request is larger than {max_bytes} bytes",
    )
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > max_bytes:
        return too_large
    body = bytearray()
    held.callback(lambda: live.give_back(len(body)))
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            async for chunk in request.stream():
                body += chunk
                live.held_bytes += len(chunk)
                if len(body) > max_bytes:
                    return too_large
                if live.held_bytes > MAX_HELD_BYTES:
                    return too_many(
                        f"the run has requests of more than {MAX_HELD_BYTES} bytes in flight"
                    )
    except TimeoutError:
        message = f"the request did not come to its end within {READ_TIMEOUT_S:.0f} s"
        return Refused(status=408, kind="timeout_error", message=message)
    return bytes(body)


async def read_json_body(
    request: Request, live: LiveGrant, held: AsyncExitStack
) -> bytes | Refused:
    """The same, of JSON that can be parsed without holding up everybody else."""
    body = await read_body(request, live, held)
    if not isinstance(body, Refused) and has_too_many_values(body):
        return invalid(f"the request has more than {MAX_VALUES} values")
    return body


def has_too_many_values(body: bytes) -> bool:
    """Whether JSON has so many values that parsing it takes long; its strings may hold whatever they like."""
    if _structure(body) <= MAX_VALUES:
        return False
    # Without what is escaped in them, strings are between each second pair of quotes.
    parts = body.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"', 2 * MAX_VALUES)
    return len(parts) > 2 * MAX_VALUES or _structure(b"".join(parts[::2])) > MAX_VALUES


def _structure(text: bytes) -> int:
    return sum(map(text.count, _STRUCTURE))
