"""An MCP server outside of sandboxes, for tests: it keeps notes, for whoever has its key."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from mcp.server.mcpserver import MCPServer
from starlette.types import ASGIApp, Receive, Scope, Send

from app.web.hosting import serve

CANARY = "canary-of-the-notes-4711"
"""Its key."""


def _guarded(app: ASGIApp) -> ASGIApp:
    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            assert (b"authorization", f"Bearer {CANARY}".encode()) in scope["headers"]
        await app(scope, receive, send)

    return guard


@asynccontextmanager
async def open_notes() -> AsyncIterator[tuple[str, list[str]]]:
    """A server with a slow tool; its address, and what was noted."""
    notes: list[str] = []
    server = MCPServer("notes", log_level="WARNING")

    @server.tool()
    async def note(text: str, seconds: float = 0) -> str:
        """Keep a note."""
        notes.append(text)
        await asyncio.sleep(seconds)
        return f"kept {text}"

    async with serve(_guarded(server.streamable_http_app())) as url:
        yield f"{url}/mcp", notes


@asynccontextmanager
async def open_silence() -> AsyncIterator[str]:
    """Where a server takes requests and says nothing."""

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            await reader.read()
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
