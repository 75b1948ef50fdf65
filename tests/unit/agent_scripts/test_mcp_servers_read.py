"""The operator's MCP servers, as adapters read them; `for_sandbox` of the service is what writes them."""

import json

import pytest

from agent_scripts.cli_agent import RELAY, RUN_TOKEN, InsideServer, RelayedServer, read_servers
from app.settings.mcp import McpServers, OutsideServer


def test_what_the_service_writes_is_read() -> None:
    """Both kinds; the headers of one outside are the broker's alone."""
    written = McpServers(
        inside={"a": {"command": "python3", "args": ["s.py", 1], "env": {"N": "1"}}},
        outside={"b": OutsideServer(url="http://b", headers={"Authorization": "secret"})},
    ).for_sandbox(relay=RELAY, token=RUN_TOKEN)
    assert read_servers(written) == (
        InsideServer(name="a", command="python3", args=["s.py", "1"], env={"N": "1"}),
        RelayedServer(name="b", path="/broker/mcp/b"),
    )


def test_none() -> None:
    """Without a file there is no server."""
    assert read_servers(b"") == ()


def test_a_server_elsewhere_is_refused() -> None:
    """The sandbox reaches none but the relay's."""
    config = json.dumps({"mcpServers": {"x": {"url": "http://elsewhere"}}}).encode()
    with pytest.raises(ValueError, match="MCP server x"):
        read_servers(config)
