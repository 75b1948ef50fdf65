"""Slack's end of Socket Mode, over a real websocket."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import WSMsgType, web


class SocketServer:
    """Hands out one-use URLs, keeps the sockets, and may refuse or fall silent."""

    def __init__(self) -> None:
        self.url = ""
        self.sockets: list[web.WebSocketResponse] = []
        self.acknowledged: list[str] = []
        self.refusal = ""
        self.nonsense = False
        """Whether a proxy in front of it answers, in plain text."""
        self.answers_pings = True

    async def open(self, _: web.Request) -> web.Response:
        if self.nonsense:
            return web.Response(status=503, text="upstream connect error or disconnect")
        if self.refusal:
            return web.json_response({"ok": False, "error": self.refusal})
        return web.json_response(
            {"ok": True, "url": self.url.replace("http", "ws").replace("/api/", "/link")}
        )

    async def link(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(autoping=False)
        await socket.prepare(request)
        self.sockets.append(socket)
        await socket.send_json({"type": "hello"})
        async for message in socket:
            if message.type is WSMsgType.PING and self.answers_pings:
                await socket.pong(message.data)
            elif message.type is WSMsgType.TEXT:
                self.acknowledged.append(message.json()["envelope_id"])
        return socket

    async def send(self, envelope_id: str, payload: dict[str, Any]) -> None:
        envelope = {
            "type": "events_api",
            "envelope_id": envelope_id,
            "payload": payload,
            "accepts_response_payload": False,
        }
        await self.sockets[-1].send_json(envelope)


@asynccontextmanager
async def open_socket_server() -> AsyncIterator[SocketServer]:
    slack = SocketServer()
    application = web.Application()
    application.router.add_post("/api/apps.connections.open", slack.open)
    application.router.add_get("/link", slack.link)
    runner = web.AppRunner(application, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    slack.url = f"http://127.0.0.1:{runner.addresses[0][1]}/api/"
    try:
        yield slack
    finally:
        await runner.cleanup()
