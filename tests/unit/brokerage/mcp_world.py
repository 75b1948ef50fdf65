"""The way to MCP servers for tests: real ones, one that says nothing and one that compresses, with the broker before them."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
from fastapi import APIRouter, FastAPI, Request, Response
from mcp.server.mcpserver import MCPServer
from starlette.types import ASGIApp, Receive, Scope, Send

from app.brokerage.mcp import (
    START_TIMEOUT_S,
    McpBroker,
    McpServer,
)
from app.brokerage.registry import GrantRegistry
from app.runs.testing import (
    ModelCall,
    ModelGrant,
    RunId,
    SystemClock,
)
from app.web.hosting import serve
from tests.plain_http import NO_TLS

CANARY = "canary-of-the-operator"


class Watched:
    """Lets in who has the operator's key, and keeps what it saw."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.headers: list[dict[str, str]] = []
        self.pairs: list[tuple[str, str]] = []
        """Of the last one."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = {name.decode(): value.decode() for name, value in scope["headers"]}
            self.headers.append(headers)
            self.pairs = [(name.decode(), value.decode()) for name, value in scope["headers"]]
            assert headers.get("authorization") == f"Bearer {CANARY}"
        await self.app(scope, receive, send)


@dataclass(kw_only=True)
class Silence:
    """A server that takes requests and says nothing."""

    url: str
    came: asyncio.Event = field(default_factory=asyncio.Event)
    went: asyncio.Event = field(default_factory=asyncio.Event)


@asynccontextmanager
async def open_silence() -> AsyncIterator[Silence]:
    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        silence.came.set()
        with suppress(OSError):
            await reader.read()
        silence.went.set()
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    silence = Silence(url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    async with server:
        yield silence


@dataclass(kw_only=True)
class World:
    registry: GrantRegistry
    url: str
    """Of the broker."""
    watched: Watched
    log: list[str]
    """What happened outside, in order."""
    silent: Silence
    calls: list[ModelCall] = field(default_factory=list)
    is_record_sick: bool = False

    async def on_effect(self) -> None:
        if self.is_record_sick:
            raise OSError("the disk is full")
        self.log.append("noted")

    @property
    def grant(self) -> ModelGrant:
        expires_at = datetime.now(UTC) + timedelta(minutes=5)
        return ModelGrant(run_id=RunId("run_1"), models=("m",), expires_at=expires_at)

    async def post(
        self,
        name: str,
        token: str,
        *,
        headers: Mapping[str, str | bytes] | None = None,
        **message: Any,
    ) -> httpx.Response:
        own = {"authorization": f"Bearer {token}", "accept": "application/json"}
        pairs = [(name.encode(), value.encode()) for name, value in own.items()]
        pairs += [
            (name.encode(), value if isinstance(value, bytes) else value.encode())
            for name, value in (headers or {}).items()
        ]
        async with httpx.AsyncClient(verify=NO_TLS, trust_env=False) as http:
            return await http.post(
                f"{self.url}/broker/mcp/{name}",
                json={"jsonrpc": "2.0", "id": 1, **message},
                headers=pairs,
            )


@asynccontextmanager
async def open_world(*, start_timeout_s: float = START_TIMEOUT_S) -> AsyncIterator[World]:
    log: list[str] = []
    server = MCPServer("notes")

    @server.tool()
    def note(text: str) -> str:
        """Keep a note."""
        log.append(f"note {text}")
        return f"kept {text}"

    watched = Watched(server.streamable_http_app())
    async with (
        serve(watched) as server_url,
        serve(_packed()) as packed_url,
        open_silence() as silent,
        httpx.AsyncClient(verify=NO_TLS, trust_env=False) as http,
    ):
        registry = GrantRegistry(signing_key=b"k" * 32, clock=SystemClock())
        headers = {"Authorization": f"Bearer {CANARY}"}
        broker = McpBroker(
            registry=registry,
            servers={
                "notes": McpServer(url=f"{server_url}/mcp", headers=headers),
                "gone": McpServer(url="http://127.0.0.1:9/mcp", headers=headers),
                "tenant": McpServer(
                    url=f"{server_url}/mcp", headers=headers | {"Mcp-Tenant": "the operator's"}
                ),
                "silent": McpServer(url=f"{silent.url}/mcp", headers=headers),
                "packed": McpServer(url=f"{packed_url}/mcp", headers=headers),
            },
            http=http,
            start_timeout_s=start_timeout_s,
        )
        async with serve(_app(broker.router())) as url:
            yield World(registry=registry, url=url, watched=watched, log=log, silent=silent)


def _packed() -> FastAPI:
    """A server that tells what it was sent, and compresses that, whatever it is asked."""
    app = FastAPI()

    @app.post("/mcp")
    async def answer(request: Request) -> Response:
        seen = [request.headers["content-type"], (await request.body()).decode()]
        said = json.dumps({"result": seen}).encode()
        return Response(gzip.compress(said), headers={"content-encoding": "gzip"})

    return app


def _app(router: APIRouter) -> FastAPI:
    app = FastAPI(openapi_url=None)
    app.include_router(router)
    return app
