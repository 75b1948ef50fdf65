"""The MCP servers of the anthropic agent: connected to beside each other before the turn, by the protocol's own SDK, which is loaded only where there are any.

What is said here of the SDK was seen with mcp 2.3.0, 2026-11.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from agent_scripts.agents.anthropic.inside.tools import cut_middle

START_S = 10.0
"""For a server to list its tools; the turn waits for it."""
_CALL_S = 330.0
"""For an answer: the broker's own limit of a call, and some."""
_CONNECT_S = 5.0
_END_S = 2.0
"""For all servers to be left; what is not by then ends with the process."""
_MAX_PAGES = 20
"""Of a server's list of tools."""
_MAX_NAME_CHARS = 128
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")
"""Source: Anthropic Messages API, tool names, read 2026-11."""
_IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_MAX_IMAGE_CHARS = 5_000_000
"""In base64. Source: Anthropic Messages API, images, read 2026-11."""
_MAX_REASON_CHARS = 200


class McpTools:
    """The tools of all servers that could be reached, by the names that the model knows."""

    def __init__(self, output_bytes: int) -> None:
        self.definitions: list[dict[str, Any]] = []
        self._output_bytes = output_bytes
        self._calls: dict[str, tuple[Any, str]] = {}

    def add(self, server: str, client: object, listed: Sequence[Any]) -> None:
        """Adds a server's tools; one that is called as another is left out."""
        for tool in listed:
            name = _NOT_IN_NAMES.sub("_", f"mcp__{server}__{tool.name}")[:_MAX_NAME_CHARS]
            if name in self._calls:
                continue
            self._calls[name] = client, tool.name
            self.definitions.append(
                {
                    "name": name,
                    "description": tool.description or "",
                    "input_schema": tool.input_schema,
                }
            )

    def knows(self, name: str) -> bool:
        return name in self._calls

    async def call(self, name: str, arguments: object) -> tuple[str | list[dict[str, Any]], bool]:
        """Returns what a tool gave back, as a result's content, and whether it is an error. Never raises."""
        client, tool = self._calls[name]
        try:
            result = await client.call_tool(tool, arguments, read_timeout_seconds=_CALL_S)
        except Exception as exc:  # noqa: BLE001 - whatever is wrong with a server is told to the model
            return f"the MCP server did not answer: {_reason(exc)}", True
        return self._content(result.content), bool(result.is_error)

    def _content(self, blocks: Sequence[Any]) -> str | list[dict[str, Any]]:
        texts, images = [], []
        for block in blocks:
            if block.type == "text":
                texts.append(block.text)
            elif block.type == "image" and _is_shown(block):
                source = {"type": "base64", "media_type": block.mime_type, "data": block.data}
                images.append({"type": "image", "source": source})
            else:
                texts.append(json.dumps(block.model_dump(mode="json", exclude_none=True)))
        text = cut_middle("\n".join(texts).encode("utf-8", "replace"), self._output_bytes)
        if not images:
            return text
        return [*([{"type": "text", "text": text}] if text.strip() else []), *images]


@asynccontextmanager
async def open_servers(
    servers: Sequence[dict[str, Any]],
    *,
    token: str,
    work: str,
    output_bytes: int,
    on_broken: Callable[[str, str], None],
    start_s: float = START_S,
) -> AsyncIterator[McpTools]:
    """Connects to servers, each with `url` or `command`; tells the name of each that cannot be used, and why."""
    found = McpTools(output_bytes)
    if not servers:
        yield found
        return
    loop = asyncio.get_running_loop()
    connecting = [(server, loop.create_future()) for server in servers]
    # Each in a task of its own, which closes what it has opened: the SDK's task groups cannot be left from another one. In no
    # task group, which would wrap what ends the turn.
    holding = [
        asyncio.create_task(_hold(server, opened, token=token, work=work, start_s=start_s))
        for server, opened in connecting
    ]
    try:
        for server, opened in connecting:
            client, listed, reason = await opened
            if client is None:
                on_broken(server["name"], reason)
            else:
                found.add(server["name"], client, listed)
        yield found
    finally:
        for task in holding:
            task.cancel()
        await asyncio.wait(holding, timeout=_END_S)


async def _hold(
    server: dict[str, Any], opened: asyncio.Future[Any], *, token: str, work: str, start_s: float
) -> None:
    """Keeps a server open until it is cancelled; `opened` is told its client and tools, or why there are none."""
    try:
        import mcp  # noqa: PLC0415 - a second, where there are servers

        headers = {"Authorization": f"Bearer {token}"}
        limits = httpx2.Timeout(_CALL_S, connect=_CONNECT_S)
        async with (
            httpx2.AsyncClient(headers=headers, timeout=limits, trust_env=False) as http,
            asyncio.timeout(start_s) as starting,
            mcp.Client(_transport(mcp, server, http=http, work=work)) as client,
        ):
            listed = await _list_tools(client)
            starting.reschedule(None)
            opened.set_result((client, listed, ""))
            await asyncio.Event().wait()
    except Exception as exc:  # noqa: BLE001 - a server that is sick must not end the turn
        if not opened.done():
            opened.set_result((None, (), _reason(exc)))


def _transport(mcp: Any, server: dict[str, Any], *, http: httpx2.AsyncClient, work: str) -> Any:  # noqa: ANN401 - the SDK's module and its transports
    if "url" in server:
        from mcp.client.streamable_http import streamable_http_client  # noqa: PLC0415 - as above

        return streamable_http_client(server["url"], http_client=http)
    return mcp.StdioServerParameters(
        command=server["command"], args=server["args"], env=server["env"] or None, cwd=work
    )


async def _list_tools(client: Any) -> list[Any]:  # noqa: ANN401 - the SDK's client
    tools: list[Any] = []
    cursor = None
    for _ in range(_MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if not cursor:
            break
    return tools


def _is_shown(block: Any) -> bool:  # noqa: ANN401 - the SDK's block
    return block.mime_type in _IMAGE_TYPES and len(block.data) <= _MAX_IMAGE_CHARS


def _reason(exc: BaseException) -> str:
    """Returns what went wrong in a line; of several things the first."""
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    if isinstance(exc, TimeoutError):
        return "it did not answer in time"
    words = " ".join(str(exc).split())
    return (f"{type(exc).__name__}: {words}" if words else type(exc).__name__)[:_MAX_REASON_CHARS]
