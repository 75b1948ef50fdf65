"""What each protocol of the offline model must be able to say."""

import asyncio
import json
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from app.playground.model.answers import Answer, Shape, ToolCall
from app.playground.model.question import Question, RequestError

_CHARS_PER_TOKEN = 4


class Stop(Enum):
    """Why the answer ends; each protocol has its own words."""

    DONE = auto()
    TOOL = auto()
    LENGTH = auto()
    REFUSED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Tokens. Plausible: about four characters each."""

    input_tokens: int
    """All of the input, the cached part included."""
    earlier_tokens: int
    """Of the input, what the request before this one held: all but the newest exchange."""
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    text: str = field(repr=False)
    tool: ToolCall | None
    stop: Stop
    counts: Counts


def finish_reply(question: Question, answer: Answer) -> Reply:
    """Cuts a reply where the request's limit is."""
    text, tool = answer.text, answer.tool
    stop = Stop.REFUSED if answer.shape is Shape.REFUSED else Stop.TOOL if tool else Stop.DONE
    written = text + (tool.written if tool else "")
    limit = question.max_output_tokens
    if limit is not None and len(written) > limit * _CHARS_PER_TOKEN:
        written = text = written[: limit * _CHARS_PER_TOKEN]
        tool, stop = None, Stop.LENGTH
    return Reply(text=text, tool=tool, stop=stop, counts=_counts(question, written))


def _counts(question: Question, written: str) -> Counts:
    sizes = [chars // _CHARS_PER_TOKEN + 1 for chars in question.message_chars]
    prompt = question.prompt_chars // _CHARS_PER_TOKEN
    return Counts(
        input_tokens=prompt + sum(sizes),
        earlier_tokens=prompt + sum(sizes[:-2]) if len(sizes) > 1 else 0,
        output_tokens=len(written) // _CHARS_PER_TOKEN + 1,
    )


SSE = "text/event-stream"
_DELTA_CHARS = 40
_WORD_CHARS = 6
_MAX_NORMAL_S = 6.0
"""However long an answer is: nobody wants to wait for a demonstration."""
_STALL_S = 3600.0

Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPace:
    """Says how fast the model writes. All zero = at once, for benchmarks."""

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
    """Sends it at the pace, and broken, as the answer's shape wants it."""
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


def plain_delay_s(answer: Answer, pace: ModelPace) -> float:
    """Returns how long an answer takes that is not streamed; only those take time that were asked to."""
    match answer.shape:
        case Shape.STALLED:
            return _STALL_S
        case Shape.SLOW:
            words = len(answer.text.split())
            return pace.slow_word_s * words if answer.number is None else answer.number
        case _:
            return 0


def split_text(text: str, shape: Shape) -> Sequence[str]:
    """Returns the pieces in which a text is written."""
    if shape is Shape.SLOW:
        return re.findall(r"\S+\s*", text)
    return [text[start : start + _DELTA_CHARS] for start in range(0, len(text), _DELTA_CHARS)]


def split_input(text: str) -> Sequence[str]:
    """Returns the pieces of a tool call's input, the first one empty, as some APIs send it."""
    half = len(text) // 2
    return ["", text[:half], text[half:]]


def data_event(fields: object, *, end: bytes = b"\n\n") -> bytes:
    """Returns a server-sent event without a name."""
    return b"data: " + json.dumps(fields).encode() + end


def named_event(kind: str, **fields: object) -> bytes:
    """Returns a server-sent event whose name is also its type."""
    return f"event: {kind}\n".encode() + data_event({"type": kind, **fields})


def _pause_s(answer: Answer, pace: ModelPace, pieces: int) -> float:
    if answer.shape is not Shape.SLOW:
        return min(pace.word_s * _DELTA_CHARS / _WORD_CHARS, _MAX_NORMAL_S / max(1, pieces))
    return pace.slow_word_s if answer.number is None else answer.number / max(1, pieces)


Refusal = tuple[int, str, str] | tuple[int, str, str, str | None]
"""The arguments of a RequestError."""


class OfflineProtocol(ABC):
    """One API for one request: bodies and headers in, bodies out."""

    request_id_header = ""
    """Of answers; empty = there is none."""
    stream_type = SSE
    garbage: bytes
    """What a gateway might send in the place of a stream."""
    failures: Mapping[Shape, Refusal]

    @abstractmethod
    def read(self, headers: Mapping[str, str], body: object) -> Question:
        """Returns the question in a request.

        Raises:
            RequestError: the API would refuse it.
        """

    def failure(self, shape: Shape) -> RequestError | None:
        """Returns how the API says this; None when it is no refusal."""
        return RequestError(*self.failures[shape]) if shape in self.failures else None

    @abstractmethod
    def error(self, problem: RequestError, request_id: str) -> dict[str, Any]:
        """Returns the body of a refusal."""

    @abstractmethod
    def plain(self, question: Question, reply: Reply) -> dict[str, Any]:
        """Returns the answer as one document."""

    @abstractmethod
    def stream(self, question: Question, reply: Reply, shape: Shape) -> Stream:
        """Returns the answer as server-sent events."""
