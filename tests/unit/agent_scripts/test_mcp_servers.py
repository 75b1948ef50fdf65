"""The anthropic agent's way to MCP servers: real ones of the protocol's SDK, over HTTP and as processes, beside sick ones."""

import asyncio
import base64
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp.server.mcpserver import Image, MCPServer
from starlette.types import ASGIApp, Receive, Scope, Send

from agent_scripts.agents.anthropic.inside.mcp_servers import McpTools, open_servers
from app.web.hosting import serve
from tests.e2e.notes_server import open_silence

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)
BEARER = "the-runs-own"
OUTPUT_BYTES = 1_000
STDIO = """
import os
from mcp.server.mcpserver import MCPServer
server = MCPServer("inside")
@server.tool()
def where() -> str:
    return os.getcwd() + " " + os.environ["WORD"]
server.run("stdio")
"""


class Guarded:
    """Lets in who has the run's token."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            assert dict(scope["headers"])[b"authorization"] == f"Bearer {BEARER}".encode()
        await self.app(scope, receive, send)


def _server() -> MCPServer:
    server = MCPServer("outside")

    @server.tool()
    def note(text: str) -> str:
        """Keep a note."""
        return f"kept {text}"

    @server.tool(name="odd.name")
    def odd() -> str:
        return "x" * 5 * OUTPUT_BYTES

    @server.tool(structured_output=False)
    def picture() -> list[Any]:
        return ["a dot", Image(data=PIXEL, format="png")]

    @server.tool()
    def fail() -> str:
        raise ValueError("not today")

    return server


@asynccontextmanager
async def connected(
    work: Path, *servers: dict[str, Any], start_s: float = 30
) -> AsyncIterator[tuple[McpTools, dict[str, str]]]:
    broken: dict[str, str] = {}
    async with open_servers(
        servers,
        token=BEARER,
        work=str(work),
        output_bytes=OUTPUT_BYTES,
        on_broken=broken.__setitem__,
        start_s=start_s,
    ) as tools:
        yield tools, broken


@pytest.fixture
async def outside() -> AsyncIterator[dict[str, Any]]:
    async with serve(Guarded(_server().streamable_http_app())) as url:
        yield {"name": "outside", "url": f"{url}/mcp"}


def inside(word: str = "hello") -> dict[str, Any]:
    return {
        "name": "inside",
        "command": sys.executable,
        "args": ["-c", STDIO],
        "env": {"WORD": word},
    }


async def test_tools_of_both_kinds_are_used(outside: dict[str, Any], tmp_path: Path) -> None:
    """By names that the model's API takes; a process works in the working directory and sees what it is given."""
    async with connected(tmp_path, outside, inside()) as (tools, broken):
        assert broken == {}
        names = {one["name"]: one for one in tools.definitions}
        assert set(names) == {
            *("mcp__outside__note", "mcp__outside__odd_name", "mcp__outside__picture"),
            *("mcp__outside__fail", "mcp__inside__where"),
        }
        assert names["mcp__outside__note"]["description"] == "Keep a note."
        assert names["mcp__outside__note"]["input_schema"]["required"] == ["text"]
        assert await tools.call("mcp__outside__note", {"text": "a"}) == ("kept a", False)
        assert await tools.call("mcp__inside__where", {}) == (f"{tmp_path} hello", False)
        assert not tools.knows("shell")


async def test_what_comes_back(outside: dict[str, Any], tmp_path: Path) -> None:
    """Long text is cut in the middle, a picture is shown to the model, an error is told as one."""
    async with connected(tmp_path, outside) as (tools, _):
        text, is_error = await tools.call("mcp__outside__odd_name", {})
        assert isinstance(text, str)
        assert "bytes cut" in text
        assert len(text) < 2 * OUTPUT_BYTES
        assert not is_error
        content, _ = await tools.call("mcp__outside__picture", {})
        assert isinstance(content, list)
        assert content[0] == {"type": "text", "text": "a dot"}
        assert base64.b64decode(content[1]["source"]["data"]) == PIXEL
        told, is_error = await tools.call("mcp__outside__fail", {})
        assert "fail" in str(told)
        assert is_error
        told, is_error = await tools.call("mcp__outside__note", {"text": []})
        assert is_error


async def test_sick_servers_cost_neither_the_turn_nor_the_others(
    outside: dict[str, Any], tmp_path: Path
) -> None:
    """One that hangs, one that is not there, one that ends at once, one that refuses; each is told with a reason of one line."""
    async with open_silence() as silent:
        sick: list[dict[str, Any]] = [
            {"name": "silent", "url": silent},
            {"name": "nobody", "url": "http://127.0.0.1:9/mcp"},
            {"name": "absent", "command": "no-such-program", "args": [], "env": {}},
            {"name": "dead", "command": "/bin/false", "args": [], "env": {}},
        ]
        async with connected(tmp_path, *sick, outside, start_s=5) as (tools, broken):
            assert set(broken) == {"silent", "nobody", "absent", "dead"}
            assert all(reason and "\n" not in reason for reason in broken.values()), broken
            assert (await tools.call("mcp__outside__note", {"text": "a"}))[0] == "kept a"


async def test_a_server_that_goes_away_is_told_to_the_model(tmp_path: Path) -> None:
    async with AsyncExitStack() as holding:
        async with serve(Guarded(_server().streamable_http_app())) as url:
            server = {"name": "outside", "url": f"{url}/mcp"}
            tools, _ = await holding.enter_async_context(connected(tmp_path, server))
        async with asyncio.timeout(30):
            told, is_error = await tools.call("mcp__outside__note", {"text": "a"})
        assert "did not answer" in str(told)
        assert is_error


async def test_what_ends_the_turn_is_not_wrapped(outside: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(LookupError):
        async with connected(tmp_path, outside):
            raise LookupError


async def test_two_of_one_name_are_one(outside: dict[str, Any], tmp_path: Path) -> None:
    async with connected(tmp_path, outside, dict(outside)) as (tools, _):
        assert len(tools.definitions) == 4
