"""The operator's file of MCP servers."""

import json
from pathlib import Path

import pytest

from app.brokerage.mcp_servers import read_mcp_servers

ENVIRONMENT = {"WIKI_TOKEN": "canary-wiki", "HOST": "wiki.example"}


def _read(tmp_path: Path, servers: object) -> object:
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}))
    return read_mcp_servers(path, ENVIRONMENT)


def test_what_is_outside_stays_outside(tmp_path: Path) -> None:
    """A sandbox is given commands as they are, and of servers with a URL only their name behind the relay."""
    path = tmp_path / "mcp.json"
    wiki = {
        "type": "http",
        "url": "https://${HOST}/mcp",
        "headers": {"Authorization": "Bearer ${WIKI_TOKEN}", "X-Team": "${TEAM:-none}"},
    }
    files = {"command": "python3", "args": ["/environment/files.py"]}
    path.write_text(json.dumps({"mcpServers": {"wiki": wiki, "files": files}}))
    servers = read_mcp_servers(path, ENVIRONMENT)
    assert servers.outside["wiki"].url == "https://wiki.example/mcp"
    assert servers.outside["wiki"].headers == {
        "Authorization": "Bearer canary-wiki",
        "X-Team": "none",
    }
    assert {"Bearer canary-wiki", "canary-wiki"} <= set(servers.secrets)
    given = servers.for_sandbox().decode()
    assert "canary" not in given
    assert "wiki.example" not in given
    assert json.loads(given)["mcpServers"]["files"] == files
    assert "canary" not in repr(servers)


@pytest.mark.parametrize(
    ("servers", "reason"),
    [
        ({"a": {}}, "mcpServers.a: it has neither a command nor a url"),
        ({"a b": {"command": "x"}}, "mcpServers.a b: a name has letters"),
        (
            {"a": {"type": "sse", "url": "http://x/sse"}},
            "mcpServers.a.type: http or stdio, not 'sse'",
        ),
        ({"a": {"type": "http"}}, "mcpServers.a.url: Field required"),
        ({"a": {"url": "file:///etc"}}, "mcpServers.a.url: URL scheme should be"),
        (
            {"a": {"url": "http://x", "headers": {"K": "${NONE}"}}},
            "mcpServers.a.headers.K: the environment has no NONE",
        ),
        ({"a": {"url": "http://x", "oauth": {}}}, "mcpServers.a.oauth: Extra inputs"),
        ({"a": 1}, "mcp.json: Input should be an object"),
        ([], "mcp.json: Input should be an object"),
    ],
)
def test_bad_files_name_the_place(servers: object, reason: str, tmp_path: Path) -> None:
    """What is wrong, and where in the file."""
    with pytest.raises(ValueError) as failure:  # noqa: PT011 - its text is compared
        _read(tmp_path, servers)
    assert reason in str(failure.value)


def test_no_json(tmp_path: Path) -> None:
    """Neither a traceback nor the file's content."""
    path = tmp_path / "mcp.json"
    path.write_text("secret = 1")
    with pytest.raises(ValueError, match="Invalid JSON") as failure:
        read_mcp_servers(path, ENVIRONMENT)
    assert "secret" not in str(failure.value)
