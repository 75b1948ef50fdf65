"""One WebSocket to a sandbox: JSON-RPC 2.0 calls with a deadline, and byte streams both ways.

Not the SDK's own client: that one (0.16.0) loses output that comes together with the reply to a spawn, changes the names of
environment variables, waits for ever when the connection breaks, and has no bound on what it buffers.

Source: deno-sandbox 0.16.0 (rpc.py, stream.py) and @deno/sandbox 0.13.2 (schema.js, stream.js, transport.js): text frames,
camelCase, results as {"ok": ...} or {"error": {...}}, streams as notifications with base64.
"""

import asyncio
import base64
import binascii
import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import websockets
from websockets.asyncio.client import ClientConnection
from websockets.protocol import State

from sandbox_runtime.providers.deno.errors import ConnectionLost, RemoteError, UnexpectedAnswer
from sandbox_runtime.providers.deno.streams import InboundStream, InboundStreams

CALL_TIMEOUT_S = 20.0
CHUNK_BYTES = 256 * 1024
"""Of an outgoing piece: a frame stays below 1 MiB, where WebSocket libraries end connections."""
MAX_FRAME_BYTES = 4 * 1024 * 1024
_CLOSE_TIMEOUT_S = 5.0
_PASSING = frozenset({3, -32000, -32603})
"""Errors of the other side's own. Source: @deno/sandbox 0.13.2, proto.js."""
_PONG = "pong"
"""The other side's answer to the text `ping` of the JavaScript SDK; no message."""

_log = logging.getLogger(__name__)


class RpcConnection:
    """Made by `connecting`. Its owner runs `run` in a task until it ends, and calls `close`."""

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
        """Take in what comes until the connection ends; raises nothing."""
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
        """Disconnect. What waits fails. Idempotent, <= 5 s."""
        self._lose("closed")
        with suppress(websockets.WebSocketException, OSError, TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._connection.close()

    async def call(
        self, method: str, params: Mapping[str, object], *, timeout_s: float = CALL_TIMEOUT_S
    ) -> object:
        """The result, of whatever form.

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
        """Of the environment that every process inside gets from the platform; empty without it. Raises as `call`."""
        return str(await self.call("envGet", {"key": name}) or "")

    def take_stream(self, number: int) -> InboundStream:
        """What comes under that number. Whoever takes it calls `drop_stream`."""
        return self._streams.take(number)

    def drop_stream(self, number: int) -> None:
        self._streams.drop(number)

    async def open_stream(self) -> int:
        """An outgoing stream: its number, for the call that shall read it."""
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
        except (ValueError, KeyError, TypeError) as exc:
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
    """Raises: RemoteError, UnexpectedAnswer."""
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
