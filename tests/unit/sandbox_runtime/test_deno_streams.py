"""Streams that come early, late, broken or without an end."""

import pytest

from sandbox_runtime.providers.deno.rpc import (
    MAX_STREAM_BYTES,
    ConnectionLost,
    InboundStreams,
    MergedStreams,
    UnexpectedAnswer,
)
from sandbox_runtime.types import ExecOutput, OutputStream


async def test_early_output() -> None:
    """What comes before anybody knows whose it is, its end too, is not lost."""
    streams = InboundStreams()
    streams.feed(7, b"one")
    streams.feed(7, b"two")
    streams.end(7)
    stream = streams.take(7)
    assert [await stream.read(), await stream.read()] == [b"onetwo", b""]


async def test_lost_connection() -> None:
    """What came is read, then the loss, also of streams that are taken only then."""
    streams = InboundStreams()
    streams.feed(1, b"one")
    streams.lose(ConnectionLost("cut"))
    for number, wanted in ((1, [b"one"]), (2, [])):
        stream = streams.take(number)
        for data in wanted:
            assert await stream.read() == data
        with pytest.raises(ConnectionLost, match="cut"):
            await stream.read()


async def test_bound() -> None:
    """More than the bound at once is not kept."""
    streams = InboundStreams()
    stream = streams.take(1)
    streams.feed(1, bytes(MAX_STREAM_BYTES))
    streams.feed(1, b"x")
    streams.feed(1, b"x")
    assert len(await stream.read()) == MAX_STREAM_BYTES
    with pytest.raises(UnexpectedAnswer, match="at once"):
        await stream.read()


async def test_dropped_stream() -> None:
    """What comes for a stream that nobody reads any more goes nowhere, and its number is free after its end."""
    streams = InboundStreams()
    stream = streams.take(1)
    streams.drop(1)
    streams.feed(1, b"late")
    assert await stream.read() == b""
    streams.end(1)
    streams.feed(1, b"new")
    assert await streams.take(1).read() == b"new"


async def test_merged_streams() -> None:
    """Both are read as they come, until both have ended."""
    streams = InboundStreams()
    merged = MergedStreams(dict(zip(OutputStream, map(streams.take, (1, 2)), strict=True)))
    streams.feed(2, b"err")
    assert await merged.read() == ExecOutput(stream=OutputStream.STDERR, data=b"err")
    streams.end(2)
    streams.feed(1, b"out")
    assert await merged.read() == ExecOutput(stream=OutputStream.STDOUT, data=b"out")
    streams.end(1)
    assert await merged.read() is None
