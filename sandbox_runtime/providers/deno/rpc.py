"""One WebSocket to a sandbox: JSON-RPC 2.0 calls with a deadline, and byte streams both ways, each with its bound.

It stands in for the SDK's own socket (deno_sandbox/rpc.py, stream.py, transport.py) and goes, with most of connection.py,
as soon as a release of deno-sandbox above 0.16.0, the newest in 2026-11, mends all of these:
* `call` turns the names in its parameters into camel case at every depth: a command's variable MY_VAR arrives as MYVar.
* `_listener` drops a piece of a stream that nobody has asked for yet: what a quick command says comes together with the
  reply to its `spawn`, is lost, and with it maybe the end, so that `read` waits for ever.
* `_listener` ends without a word when the connection is closed in good order: calls that wait then wait for ever, as do
  all when it breaks without being closed, because no call has a deadline.
* Frames above 1 MiB end the connection (the limit of the websockets library is kept), and nothing bounds what waits unread.
The first is what `test_why_the_socket_is_our_own` watches.

Source: deno-sandbox 0.16.0 (rpc.py, stream.py) and @deno/sandbox 0.13.2 (schema.js, stream.js, transport.js): text frames,
camelCase, results as {"ok": ...} or {"error": {...}}, streams as notifications with base64.
"""

import asyncio
import base64
import binascii
import json
import logging
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import websockets
from websockets.asyncio.client import ClientConnection
from websockets.protocol import State

from sandbox_runtime.types import ExecOutput, OutputStream

_log = logging.getLogger(__name__)

MAX_STREAM_BYTES = 8 * 1024 * 1024
"""What may wait in one stream. Ours are held back inside (inside/run.py), far below this; the protocol itself has no way to."""
CALL_TIMEOUT_S = 20.0
CHUNK_BYTES = 256 * 1024
"""Of an outgoing piece: a frame stays below 1 MiB, where WebSocket libraries end connections."""
MAX_FRAME_BYTES = 4 * 1024 * 1024
_CLOSE_TIMEOUT_S = 5.0
_PASSING = frozenset({3, -32000, -32603})
"""Errors of the other side's own. Source: @deno/sandbox 0.13.2, proto.js."""
_PONG = "pong"
"""The other side's answer to the text `ping` of the JavaScript SDK; no message."""


class ConnectionLost(Exception):  # noqa: N818  # it names an event
    """The connection to a sandbox broke, or nothing came over it any more."""


class UnexpectedAnswer(Exception):  # noqa: N818  # same
    """The other side said what the protocol does not know."""


class RemoteError(Exception):
    """A call was refused: by the service inside the sandbox, or for its form."""

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class InboundStream:
    """A stream for one reader, filled by the socket, maybe before anybody knows what it belongs to."""

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._waiting = 0
        self._ended = False
        self._error: Exception | None = None
        self._changed = asyncio.Event()

    @property
    def is_over(self) -> bool:
        return self._ended or self._error is not None

    def feed(self, data: bytes) -> None:
        if self._ended or self._error is not None:
            return
        self._waiting += len(data)
        if self._waiting > MAX_STREAM_BYTES:
            self.fail(UnexpectedAnswer(f"more than {MAX_STREAM_BYTES} bytes at once"))
            return
        self._pieces.append(data)
        self._changed.set()

    def end(self) -> None:
        self._ended = True
        self._changed.set()

    def fail(self, error: Exception) -> None:
        """Ends it with an error, after what came before; nothing after its end."""
        if not self._ended and self._error is None:
            self._error = error
            self._changed.set()

    async def read(self) -> bytes:
        """Returns what came since; empty at the end. Waits without a bound: the caller has one.

        Raises:
            ConnectionLost, UnexpectedAnswer: in place of an end.
        """
        while (data := self._take()) is None:
            self._changed.clear()
            await self._changed.wait()
        return data

    def _take(self) -> bytes | None:
        """Returns what came since; None when nothing did."""
        if not self._pieces:
            if self._ended:
                return b""
            if self._error is not None:
                raise self._error
            return None
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._waiting = 0
        return data


class MergedStreams:
    """Several streams by name, read as one."""

    def __init__(self, streams: Mapping[OutputStream, InboundStream]) -> None:
        self._streams = dict(streams)
        self._changed = asyncio.Event()
        for stream in streams.values():
            stream._changed = self._changed  # noqa: SLF001  # its own module

    async def read(self) -> ExecOutput | None:
        """Returns what came next; None when all are at their end. Waits without a bound: the caller has one.

        Raises:
            ConnectionLost, UnexpectedAnswer: in place of an end.
        """
        while self._streams:
            for name, stream in list(self._streams.items()):
                data = stream._take()  # noqa: SLF001  # same
                if data:
                    return ExecOutput(stream=name, data=data)
                if data is not None:
                    del self._streams[name]
            if self._streams:
                self._changed.clear()
                await self._changed.wait()
        return None


class InboundStreams:
    """The streams of one connection. The other side numbers them, and may fill one before it says whose it is."""

    def __init__(self) -> None:
        self._streams: dict[int, InboundStream] = {}
        self._dropped: set[int] = set()
        self._lost: ConnectionLost | None = None

    def take(self, number: int) -> InboundStream:
        """Returns the stream of that number, whatever of it has come already. Whoever takes it drops it."""
        stream = self._streams.setdefault(number, InboundStream())
        if self._lost is not None:
            stream.fail(self._lost)
        return stream

    def drop(self, number: int) -> None:
        """Forgets a stream that nobody reads any more."""
        stream = self._streams.pop(number, None)
        if stream is not None and not stream.is_over:
            self._dropped.add(number)
            stream.end()

    def feed(self, number: int, data: bytes) -> None:
        if number not in self._dropped:
            self._streams.setdefault(number, InboundStream()).feed(data)

    def end(self, number: int, error: Exception | None = None) -> None:
        if number in self._dropped:
            self._dropped.discard(number)
            return
        stream = self._streams.setdefault(number, InboundStream())
        if error is None:
            stream.end()
        else:
            stream.fail(error)

    def lose(self, error: ConnectionLost) -> None:
        """Fails them all: the connection broke."""
        self._lost = error
        for stream in self._streams.values():
            stream.fail(error)


class RpcConnection:
    """The calls and streams of one socket, made by `Connector`. Its owner runs `run` in a task until it ends, and calls `close`."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._streams = InboundStreams()
        self._last_id = 0
        self._last_stream = 0
        self._lost: ConnectionLost | None = None

    @property
    def is_open(self) -> bool:
        return self._lost is None and self._connection.state is State.OPEN

    async def run(self) -> None:
        """Takes in what comes until the connection ends; raises nothing."""
        reason = "closed"
        try:
            async for frame in self._connection:
                self._take(frame)
        except websockets.ConnectionClosed as exc:
            reason = str(exc)
        except UnexpectedAnswer as exc:
            reason = f"not an answer of Deno: {exc}"
        finally:
            self._lose(reason)
            with suppress(websockets.WebSocketException, OSError, TimeoutError):
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    await self._connection.close()

    async def close(self) -> None:
        """Disconnects; what waits fails. Idempotent, <= 5 s."""
        self._lose("closed")
        with suppress(websockets.WebSocketException, OSError, TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._connection.close()

    async def call(
        self, method: str, params: Mapping[str, object], *, timeout_s: float = CALL_TIMEOUT_S
    ) -> object:
        """Calls a method and returns its result, of whatever form.

        Raises:
            ConnectionLost: before the answer; whether it was done is not known.
            RemoteError: it was refused, or failed.
            TimeoutError: no answer in time.
        """
        self._last_id += 1
        number = self._last_id
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls[number] = answer
        try:
            async with asyncio.timeout(timeout_s):
                await self._send(
                    {"jsonrpc": "2.0", "id": number, "method": method, "params": dict(params)}
                )
                return _result(await answer)
        finally:
            self._calls.pop(number, None)
            if answer.done() and not answer.cancelled():
                answer.exception()  # taken note of, also when the send failed first

    async def variable(self, name: str) -> str:
        """Returns a variable that every process inside gets from the platform; empty without it. Raises as `call`."""
        return str(await self.call("envGet", {"key": name}) or "")

    def take_stream(self, number: int) -> InboundStream:
        """Returns the stream that comes under that number. Whoever takes it calls `drop_stream`."""
        return self._streams.take(number)

    def drop_stream(self, number: int) -> None:
        self._streams.drop(number)

    async def open_stream(self) -> int:
        """Opens an outgoing stream; returns its number, for the call that shall read it."""
        self._last_stream += 1
        number = self._last_stream
        await self._notify("start", {"streamId": number})
        return number

    async def write(self, number: int, data: bytes) -> None:
        """Raises: ConnectionLost."""
        view = memoryview(data)
        for start in range(0, len(view), CHUNK_BYTES):
            text = base64.b64encode(view[start : start + CHUNK_BYTES]).decode("ascii")
            await self._notify("enqueue", {"streamId": number, "data": text})

    async def end_stream(self, number: int) -> None:
        """Raises: ConnectionLost."""
        await self._notify("end", {"streamId": number})

    async def _notify(self, what: str, params: Mapping[str, object]) -> None:
        await self._send(
            {"jsonrpc": "2.0", "method": f"$sandbox.stream.{what}", "params": dict(params)}
        )

    async def _send(self, message: Mapping[str, object]) -> None:
        if self._lost is not None:
            raise ConnectionLost(str(self._lost))
        try:
            await self._connection.send(json.dumps(message))
        except websockets.ConnectionClosed as exc:
            raise ConnectionLost(str(exc)) from exc

    def _take(self, frame: str | bytes) -> None:
        if frame == _PONG:
            return
        try:
            message = json.loads(frame)
            if "id" in message:
                self._answer(message)
            else:
                self._stream(str(message["method"]), message["params"])
        except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as exc:
            raise UnexpectedAnswer(str(frame[:200])) from exc

    def _answer(self, message: Mapping[str, Any]) -> None:
        answer = self._calls.get(message["id"])
        if answer is not None and not answer.done():
            answer.set_result(message)

    def _stream(self, method: str, params: Mapping[str, Any]) -> None:
        number = int(params["streamId"]) if "streamId" in params else -1
        match method:
            case "$sandbox.stream.start":
                pass  # the first piece makes it
            case "$sandbox.stream.enqueue":
                try:
                    self._streams.feed(number, base64.b64decode(params["data"], validate=True))
                except binascii.Error as exc:
                    raise UnexpectedAnswer("a piece of a stream") from exc
            case "$sandbox.stream.end":
                self._streams.end(number)
            case "$sandbox.stream.error":
                self._streams.end(
                    number, ConnectionLost(f"its output broke: {params.get('error')}")
                )
            case _:
                _log.debug(
                    "message ignored", extra={"action": "sandbox.message_ignored", "method": method}
                )

    def _lose(self, reason: str) -> None:
        if self._lost is not None:
            return
        self._lost = ConnectionLost(reason)
        self._streams.lose(self._lost)
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(ConnectionLost(reason))


def _result(message: Mapping[str, Any]) -> object:
    """Returns the result in a reply. Raises: RemoteError, UnexpectedAnswer."""
    match message:
        case {"error": {"message": said, **rest}}:
            text = f"{said} {rest.get('data') or ''}".strip()
            raise RemoteError(text, retryable=rest.get("code") in _PASSING)
        case {"result": {"error": dict(error)}} if error is not None:
            name = error.get("constructorName") or error.get("constructor_name") or "Error"
            raise RemoteError(f"{name}: {error.get('message')}")
        case {"result": {"ok": found}}:
            return found
        case {"result": {**nothing}} if not nothing:
            return None
        case _:
            raise UnexpectedAnswer(str(message)[:200])
