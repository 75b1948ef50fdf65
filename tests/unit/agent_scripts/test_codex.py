"""The codex adapter: its command."""

import json
import tomllib
from dataclasses import replace
from typing import Any

import pytest

from agent_scripts.adapter import AgentCommand, AgentPaths, AgentSession, AgentTurn, TurnMessage
from agent_scripts.agents.codex.adapter import CodexAdapter

_PATHS = AgentPaths(work="/work", home="/home/agent", run="/orion/r 1", environment="/env")
_THREAD = "01a205ad-54f2-7743-93f7-5bc5aee237f3"
_SERVERS = json.dumps(
    {
        "mcpServers": {
            "inside": {"command": "python3", "args": ["-c", 'print("é")'], "env": {"A": "b"}},
            "outside": {
                "type": "http",
                "url": "${ORION_RELAY}/broker/mcp/outside",
                "headers": {"Authorization": "Bearer {run_token}"},
            },
        }
    }
).encode()


def _command(*texts: str, **changes: Any) -> AgentCommand:
    messages = [
        TurnMessage(role="assistant" if index % 2 else "user", text=text)
        for index, text in enumerate(texts or ("hello",))
    ]
    turn = AgentTurn(
        messages=messages,
        system_prompt="Be brief.",
        model="gpt-x",
        max_output_tokens=100,
        max_turns=5,
        run_token="the-token",
        model_url="{relay}/broker/openai",
        paths=_PATHS,
    )
    return CodexAdapter().command(replace(turn, **changes))


def _file(command: AgentCommand, path: str) -> bytes:
    (data,) = (file.data for file in command.files if file.path == path)
    return data


def _request(command: AgentCommand) -> dict[str, Any]:
    request: dict[str, Any] = json.loads(_file(command, f"{_PATHS.run}/request.json"))
    return request


def _config(command: AgentCommand) -> dict[str, Any]:
    return tomllib.loads(_file(command, "/home/agent/.codex/config.toml").decode())


@pytest.mark.parametrize("text", ["-x --help", "$(id) `id` '\"", "a\nb\n", "x" * 200_000, "ünï"])
def test_user_text_travels_in_a_file(text: str) -> None:
    """The message is there alone, whatever it holds."""
    command = _command(text)
    assert _request(command)["text"] == text
    assert not any(text in part for part in command.argv)


def test_the_token_is_in_a_variable_that_tools_do_not_inherit() -> None:
    """Neither argv nor a file, which a snapshot would keep, holds it."""
    command = _command(mcp_config=_SERVERS)
    assert not any("the-token" in part for part in command.argv)
    assert not any(b"the-token" in file.data for file in command.files)
    holders = [name for name, value in command.env.items() if "the-token" in value]
    assert holders == ["ORION_RUN_TOKEN"]
    config = _config(command)
    assert config["model_providers"]["orion"]["env_key"] == "ORION_RUN_TOKEN"
    assert "ORION_*" in config["shell_environment_policy"]["exclude"]


def test_the_relays_address_is_put_into_its_settings() -> None:
    """In the sandbox, where its port is known."""
    command = _command(mcp_config=_SERVERS)
    naming = [file.path for file in command.files if file.names_relay]
    assert naming == ["/home/agent/.codex/config.toml"]
    provider = _config(command)["model_providers"]["orion"]
    assert provider["base_url"] == "{relay}/broker/openai/v1"


def test_mcp_servers_in_its_own_words() -> None:
    """A command with its environment; a relayed one with the run's token as bearer."""
    servers = _config(_command(mcp_config=_SERVERS))["mcp_servers"]
    assert servers["inside"]["args"] == ["-c", 'print("é")']
    assert servers["inside"]["env"] == {"A": "b"}
    assert servers["outside"] == {
        "url": "{relay}/broker/mcp/outside",
        "bearer_token_env_var": "ORION_RUN_TOKEN",
        "startup_timeout_sec": 10,
    }


def test_nothing_of_the_work_tree_configures_it() -> None:
    """The work tree is not trusted, and neither hooks, plugins nor rules are read."""
    command = _command()
    config = _config(command)
    assert config["projects"] == {"/work": {"trust_level": "untrusted"}}
    off = {name for name, is_on in config["features"].items() if not is_on}
    assert {"hooks", "plugins", "apps"} <= off
    assert config["web_search"] == "disabled"
    assert _request(command)["rules"] == "/home/agent/.codex/rules"


def test_the_system_prompt_is_for_the_developer() -> None:
    """It keeps the vendor's own instructions; an empty one is left out."""
    odd = 'a "b"\n\\c\t\x7f\ud800é'
    assert _config(_command(system_prompt=odd))["developer_instructions"] == 'a "b"\n\\c\t\x7f?é'
    assert "developer_instructions" not in _config(_command(system_prompt=" "))


def test_sessions() -> None:
    """A new one is the CLI's own; a known one is resumed; whatever it is told, it does not know."""
    new = _request(_command("a", "b", "c", session=AgentSession(id=_THREAD, resume=False)))
    assert new["resume"] is None
    assert "a\n" in new["text"]
    known = _request(_command("c", session=AgentSession(id=_THREAD, resume=True)))
    assert (known["resume"], known["text"]) == (_THREAD, "c")
    assert _request(_command(session=AgentSession(id=None, resume=True)))["resume"] == ""


@pytest.mark.parametrize(
    "session_id", ["--last", "", f"{_THREAD}\n", _THREAD.upper(), "../x", "a" * 36]
)
def test_an_id_that_none_has_reaches_no_command_line(session_id: str) -> None:
    """It is refused before anything is made of it."""
    with pytest.raises(ValueError, match="not a thread of Codex"):
        _command(session=AgentSession(id=session_id, resume=True))
