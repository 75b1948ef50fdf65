"""The operator's file of MCP servers."""

import json
from pathlib import Path

import pytest

from agent_scripts.cli_agent import RELAY, RUN_TOKEN
from app.settings.mcp import McpServers, OAuthSettings, read_mcp_servers

ENVIRONMENT = {"WIKI_TOKEN": "canary-wiki", "HOST": "wiki.example"}

CLIENT = {
    "token_url": "https://${HOST}/token",
    "client_id": "orion",
    "client_secret": "${WIKI_TOKEN}",
    "scope": "read write",
}


URL = "https://crm.example/mcp"


def _read(tmp_path: Path, servers: object) -> McpServers:
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
    given = servers.for_sandbox(relay=RELAY, token=RUN_TOKEN).decode()
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
            "mcpServers.a.headers.K: there is no NONE, neither in the environment nor in .env",
        ),
        (
            {"a": {"url": "http://x", "headers": {"A B": "x"}}},
            'mcpServers.a.headers."A B": no header can have this name',
        ),
        (
            {"a": {"url": "http://x", "headers": {"": "x"}}},
            'mcpServers.a.headers."": no header can have this name',
        ),
        (
            {"a": {"command": "x", "url": "http://x"}},
            "mcpServers.a: either a command or a url, not both",
        ),
        ({"a": {"url": "http://x", "auth": {}}}, "mcpServers.a.auth: Extra inputs"),
        ({"a": {"url": "http://x", "oauth": {}}}, "mcpServers.a.oauth.token_url: Field required"),
        ({"a": {"url": "http://x", "oauth": {**CLIENT, "token_url": "x"}}}, "a.oauth.token_url: "),
        (
            {"a": {"url": "http://x", "oauth": {**CLIENT, "client_secret": "${NONE}"}}},
            "mcpServers.a.oauth.client_secret: there is no NONE, neither in the environment nor in .env",
        ),
        (
            {"a": {"url": "http://x", "headers": {"authorization": "x"}, "oauth": CLIENT}},
            "mcpServers.a: either oauth or the header Authorization, not both",
        ),
        (
            {"a": {"url": "http://x", "oauth": {**CLIENT, "client_secret": ""}}},
            "client_secret is missing, or else device_authorization_url or authorization_url",
        ),
        (
            {
                "a": {
                    "url": "http://x",
                    "oauth": {
                        **CLIENT,
                        "device_authorization_url": URL,
                        "authorization_url": URL,
                    },
                }
            },
            "either device_authorization_url or authorization_url, not both",
        ),
        (
            {"a": {"url": "http://x", "oauth": {**CLIENT, "redirect_url": URL}}},
            "redirect_url is for authorization_url, which is missing",
        ),
        (
            {"a": {"url": "http://x", "oauth": {**CLIENT, "authorization_url": "x"}}},
            "a.oauth.authorization_url: ",
        ),
        (
            {"GitHub": {"url": "http://x", "oauth": {**CLIENT, "device_authorization_url": URL}}},
            "mcpServers.GitHub: people write `/orion link GitHub` for another one, too",
        ),
        (
            {"a": {"url": "http://x", "oauth": {**CLIENT, "device_authorization_url": "x"}}},
            "a.oauth.device_authorization_url: ",
        ),
        ({"orion": {"command": "x"}}, "mcpServers.orion: orion is the name of Orion's own"),
        ({"a": {"command": 5}}, "mcpServers.a.command: Input should be a valid string"),
        ({"a": {"command": ""}}, "mcpServers.a.command: String should have at least 1"),
        ({"a": {"command": "x", "args": "--y"}}, "mcpServers.a.args: Input should be a valid list"),
        ({"a": {}, "b c": {}}, "a: it has neither a command nor a url; mcpServers.b c: a name has"),
        ({"a": 1, "b": 2}, "mcp.json: mcpServers.a: Input should be an object; mcpServers.b: "),
        ([], "mcp.json: mcpServers: Input should be an object"),
    ],
)
def test_bad_files_name_the_place(servers: object, reason: str, tmp_path: Path) -> None:
    """What is wrong, and where in the file."""
    with pytest.raises(ValueError) as failure:  # noqa: PT011 - its text is compared
        _read(tmp_path, servers)
    assert reason in str(failure.value)


@pytest.mark.parametrize("flow", ["device_authorization_url", "authorization_url"])
def test_people_have_accounts_of_their_own(flow: str, tmp_path: Path) -> None:
    """Where there is a flow for them; its client may do without a secret."""
    public = {"token_url": URL, "client_id": "orion", flow: URL}
    servers = _read(
        tmp_path,
        {"wiki": {"url": URL, "oauth": CLIENT}, "crm": {"url": URL, "oauth": public}},
    )
    assert list(servers.of_persons) == ["crm"]


def test_a_client_with_its_secret_by_reference(tmp_path: Path) -> None:
    """It stays outside, and is masked."""
    servers = _read(tmp_path, {"wiki": {"url": "https://${HOST}/mcp", "oauth": CLIENT}})
    assert servers.outside["wiki"].oauth == OAuthSettings(
        token_url="https://wiki.example/token",
        client_id="orion",
        client_secret="canary-wiki",
        scope="read write",
    )
    assert servers.secrets == ("canary-wiki", "wiki.example")
    assert (
        "canary" not in repr(servers) + servers.for_sandbox(relay=RELAY, token=RUN_TOKEN).decode()
    )


@pytest.mark.parametrize("value", ["secret\ny", "secret\x00", "secret\x7f", "secret ", "secrét"])
@pytest.mark.parametrize("is_named", [False, True])
def test_a_value_that_no_header_can_carry(value: str, *, is_named: bool, tmp_path: Path) -> None:
    """Is refused with its place, without being told; also what stands for a name."""
    path = tmp_path / "mcp.json"
    headers = {"K": "${NAME}" if is_named else value}
    path.write_text(json.dumps({"mcpServers": {"a": {"url": "http://x", "headers": headers}}}))
    with pytest.raises(ValueError, match=r"mcpServers\.a.headers\.K: it has a control") as failure:
        read_mcp_servers(path, {"NAME": value})
    assert "secr" not in str(failure.value)


def test_two_of_one_name(tmp_path: Path) -> None:
    """One of them would be lost without a word."""
    path = tmp_path / "mcp.json"
    path.write_text(
        '{"mcpServers": {"a": {"command": "x"}, "b": {"command": "y"}, "a": {"command": "z"}}}'
    )
    with pytest.raises(ValueError, match=r"mcp\.json: mcpServers\.a: there are two of this name$"):
        read_mcp_servers(path, ENVIRONMENT)


@pytest.mark.parametrize("first", ["5", "[1]", '{"b": {"command": "y"}}'])
def test_two_lists_of_servers(first: str, tmp_path: Path) -> None:
    """Neither is the first one lost, nor is there a traceback, whatever it is."""
    path = tmp_path / "mcp.json"
    path.write_text(f'{{"mcpServers": {first}, "mcpServers": {{"a": {{"command": "x"}}}}}}')
    with pytest.raises(ValueError, match=r"mcp\.json: mcpServers: there are two of this name$"):
        read_mcp_servers(path, ENVIRONMENT)


def test_no_json(tmp_path: Path) -> None:
    """Neither a traceback nor the file's content."""
    path = tmp_path / "mcp.json"
    path.write_text("secret = 1")
    with pytest.raises(ValueError, match="Invalid JSON") as failure:
        read_mcp_servers(path, ENVIRONMENT)
    assert "secret" not in str(failure.value)


def test_what_a_name_stands_for_is_masked_wherever_it_stands(tmp_path: Path) -> None:
    """In a URL, and in the middle of a header; a default is in the file for all to read."""
    wiki = {
        "url": "https://wiki.example/${URL_KEY}/mcp?key=${URL_KEY}&lang=${LANGUAGE:-english}",
        "headers": {"X-Key": "k ${WIKI_TOKEN}-tail"},
        "oauth": {**CLIENT, "token_url": "https://wiki.example/token?key=${TOKEN_KEY}"},
    }
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"wiki": wiki}}))
    values = {"URL_KEY": "canary-url", "TOKEN_KEY": "canary-token", "WIKI_TOKEN": "canary-wiki"}
    servers = read_mcp_servers(path, values)
    assert set(values.values()) <= set(servers.secrets)
    assert "english" not in servers.secrets
