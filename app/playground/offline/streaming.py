"""How fast a stream goes out, and where it breaks off."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from app.playground.offline.answers import Answer, Shape

SSE = "text/event-stream"
_DELTA_CHARS = 40
_WORD_CHARS = 6
_MAX_NORMAL_S = 6.0
"""However long an answer is: nobody wants to wait for a demonstration."""
_STALL_S = 3600.0

Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPace:
    """How fast the model writes. All zero = at once, for benchmarks."""

    word_s: float = 0.02
    slow_word_s: float = 0.5
    """With `!slow`; `!slow 5` spreads its words over 5 s instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Text or a tool call in a stream, as bytes; the time is spent between its pieces."""

    start: bytes = b""
    pieces: Sequence[bytes]
    end: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A whole stream in one protocol's words."""

    opening: bytes = b""
    """What comes before the model has written anything."""
    blocks: Sequence[Block]
    closing: bytes


class CutResponse(StreamingResponse):
    """Never sends the end of its body, so the server drops the connection in the middle of the stream."""

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for chunk in self.body_iterator:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})


async def send_stream(
    stream: Stream, answer: Answer, pace: ModelPace, sleep: Sleep = asyncio.sleep
) -> AsyncIterator[bytes]:
    """At the pace, and broken, as the answer's shape wants it."""
    yield stream.opening
    if answer.shape is Shape.STALLED:
        await sleep(_STALL_S)
    for block in stream.blocks:
        yield block.start
        pause_s = _pause_s(answer, pace, len(block.pieces))
        for number, piece in enumerate(block.pieces):
            if answer.shape is Shape.CUT and number >= len(block.pieces) / 2:
                return
            yield piece
            if pause_s:
                await sleep(pause_s)
        yield block.end
    yield stream.closing


def split_text(text: str, shape: Shape) -> Sequence[str]:
    """The pieces in which a text is written."""
    if shape is Shape.SLOW:
        return re.findall(r"\S+\s*", text)
    return [text[start : start + _DELTA_CHARS] for start in range(0, len(text), _DELTA_CHARS)]


def split_input(text: str) -> Sequence[str]:
    """The pieces of a tool call's input, the first one empty, as some APIs send it."""
    half = len(text) // 2
    return ["", text[:half], text[half:]]


def data_event(fields: object, *, end: bytes = b"\n\n") -> bytes:
    """A server-sent event without a name."""
    return b"data: " + json.dumps(fields).encode() + end


def named_event(kind: str, **fields: object) -> bytes:
    """A server-sent event whose name is also its type."""
    return f"event: {kind}\n".encode() + data_event({"type": kind, **fields})


def _pause_s(answer: Answer, pace: ModelPace, pieces: int) -> float:
    if answer.shape is not Shape.SLOW:
        return min(pace.word_s * _DELTA_CHARS / _WORD_CHARS, _MAX_NORMAL_S / max(1, pieces))
    return pace.slow_word_s if answer.number is None else answer.number / max(1, pieces)
