"""The operator's MCP servers as a turn has them, read for agents that want them in a form of their own. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

RUN_TOKEN = "{run_token}"  # noqa: S105 - stands for one
RELAY = "${ORION_RELAY}"
"""Begins the URL of every server that only the broker speaks to; each agent has its own way to write the variable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InsideServer:
    """Started by the agent, spoken to over its stdin and stdout."""

    name: str
    command: str
    args: Sequence[str]
    env: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayedServer:
    """Behind the relay, over HTTP."""

    name: str
    path: str
    """Behind the relay's base URL; begins with a slash."""


def read_servers(config: bytes) -> tuple[InsideServer | RelayedServer, ...]:
    """The servers of `AgentTurn.mcp_config`, in its order; none for an empty one.

    A relayed one wants the run token as its bearer. What of a server has another form than it must have is left out.

    Raises:
        ValueError: it is no JSON object with `mcpServers`, or one of them is neither a command nor behind the relay.
    """
    if not config:
        return ()
    servers = json.loads(config)["mcpServers"]
    return tuple(_read_server(name, server) for name, server in servers.items())


def broken_server_note(name: str, status: str) -> str:
    """A note of a turn, about a server that its agent went on without; `name` is cut to 80 characters."""
    return f"The MCP server `{name[:80]}` could not be used: {status}."


def _read_server(name: str, server: Mapping[str, Any]) -> InsideServer | RelayedServer:
    match server:
        case {"command": str(command)}:
            args, env = server.get("args"), server.get("env")
            return InsideServer(
                name=name,
                command=command,
                args=[str(part) for part in args] if isinstance(args, list) else [],
                env={key: str(value) for key, value in env.items()}
                if isinstance(env, dict)
                else {},
            )
        case {"url": str(url)} if url.startswith(f"{RELAY}/"):
            return RelayedServer(name=name, path=url.removeprefix(RELAY))
        case _:
            raise ValueError(f"MCP server {name}: neither a command nor behind the relay")
