"""Socket Mode: the app connects to us, and each event goes to one of its sockets until that acknowledges it.

Source: docs.slack.dev, "Using Socket Mode" (frames, acknowledgement, up to ten connections, refresh), read 2026-11.
"""

import asyncio
import json
import uuid
from dataclasses import dataclass, field

from starlette.websockets import WebSocket, WebSocketDisconnect

from app.playground.delivery_log import Attempt
from app.playground.slack_types import APP_ID, JsonObject

SOCKETS_MAX = 10
SEND_TIMEOUT_S = 5.0
POLICY_VIOLATION = 1008


@dataclass(slots=True, kw_only=True, eq=False)
class Socket:
    websocket: WebSocket
    pending: dict[str, asyncio.Future[JsonObject]] = field(default_factory=dict)

    async def send(self, frame: JsonObject) -> None:
        async with asyncio.timeout(SEND_TIMEOUT_S):
            await self.websocket.send_text(json.dumps(frame))


class SocketHub:
    def __init__(self) -> None:
        self.tickets: set[str] = set()
        """Addresses given out and not yet used."""
        self.is_enabled = False
        """True from the first connection on: then nothing goes over HTTP, also while no socket is open."""
        self._sockets: list[Socket] = []
        self._any_open = asyncio.Event()
        self._turn = 0

    @property
    def count(self) -> int:
        return len(self._sockets)

    async def endpoint(self, websocket: WebSocket) -> None:
        ticket = websocket.query_params.get("ticket", "")
        await websocket.accept()
        if ticket not in self.tickets:
            await websocket.close(POLICY_VIOLATION, "invalid ticket")
            return
        self.tickets.discard(ticket)
        socket = Socket(websocket=websocket)
        if len(self._sockets) >= SOCKETS_MAX:
            await socket.send({"type": "disconnect", "reason": "too_many_websockets"})
            await websocket.close()
            return
        self._sockets.append(socket)
        self._any_open.set()
        self.is_enabled = True
        try:
            await socket.send(self._hello())
            await self._listen(socket)
        except (WebSocketDisconnect, TimeoutError):
            pass
        finally:
            self._drop(socket)

    async def send(
        self,
        kind: str,
        payload: JsonObject,
        *,
        deadline_s: float,
        attempt: int = 0,
        reason: str = "",
    ) -> Attempt:
        """To the next socket in turn; waits for one to be open and for its acknowledgement."""
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        envelope_id = str(uuid.uuid4())
        frame: JsonObject = {
            "type": kind,
            "envelope_id": envelope_id,
            "payload": payload,
            "accepts_response_payload": kind == "interactive",
        }
        if kind == "events_api":
            frame |= {"retry_attempt": attempt, "retry_reason": reason}
        failure, answer = "", JsonObject()
        try:
            async with asyncio.timeout(deadline_s):
                socket = await self._next_socket()
                answer = await self._exchange(socket, frame)
        except TimeoutError:
            failure = "timeout"
        except (WebSocketDisconnect, RuntimeError, ConnectionError):
            # RuntimeError: Starlette's word for a socket that closed under a send.
            failure = "connection_failed"
        latency_ms = round((loop.time() - started_s) * 1000)
        return Attempt(
            via="socket",
            status=None if failure else 200,
            reason=failure,
            latency_ms=latency_ms,
            answer=answer,
        )

    async def disconnect(self, reason: str) -> int:
        """Tell every socket to reconnect; on `refresh_requested` and `link_disabled` we close it as well."""
        sockets = list(self._sockets)
        for socket in sockets:
            await socket.send({"type": "disconnect", "reason": reason})
            if reason != "warning":
                self._drop(socket)
                await socket.websocket.close()
        return len(sockets)

    async def _next_socket(self) -> Socket:
        await self._any_open.wait()
        self._turn += 1
        return self._sockets[self._turn % len(self._sockets)]

    async def _exchange(self, socket: Socket, frame: JsonObject) -> JsonObject:
        acked: asyncio.Future[JsonObject] = asyncio.get_running_loop().create_future()
        socket.pending[frame["envelope_id"]] = acked
        try:
            await socket.send(frame)
            return await acked
        finally:
            socket.pending.pop(frame["envelope_id"], None)

    async def _listen(self, socket: Socket) -> None:
        while True:
            frame = json.loads(await socket.websocket.receive_text())
            acked = socket.pending.get(frame.get("envelope_id", ""))
            if acked is not None and not acked.done():
                payload = frame.get("payload")
                acked.set_result(payload if isinstance(payload, dict) else {})

    def _drop(self, socket: Socket) -> None:
        if socket in self._sockets:
            self._sockets.remove(socket)
        if not self._sockets:
            self._any_open.clear()
        for acked in socket.pending.values():
            if not acked.done():
                acked.set_exception(ConnectionError("the socket closed"))

    def _hello(self) -> JsonObject:
        return {
            "type": "hello",
            "num_connections": len(self._sockets),
            "connection_info": {"app_id": APP_ID},
            "debug_info": {"host": "playground", "approximate_connection_time": 18060},
        }
