"""The commands of the adapters gemini, copilot and cursor."""

import json
from dataclasses import replace
from typing import Any

import pytest

from agent_scripts.adapter import AgentCommand, AgentPaths, AgentSession, AgentTurn, TurnMessage
from agent_scripts.registry import create_adapter

_PATHS = AgentPaths(work="/work", home="/home/agent", run="/orion/r1", environment="/env")
_SESSION = "5e551000-0000-4000-8000-000000000001"
_TAKING_IDS = ("copilot", "gemini")
_ALL = (*_TAKING_IDS, "cursor")
_RELAYED = {"type": "http", "url": "${ORION_RELAY}/broker/mcp/b", "headers": {}}
_MCP = json.dumps(
    {"mcpServers": {"a": {"command": "x", "args": ["y"], "env": {"K": "v"}}, "b": _RELAYED}}
).encode()


def _command(agent: str, *texts: str, **changes: Any) -> AgentCommand:
    messages = [
        TurnMessage(role="assistant" if index % 2 else "user", text=text)
        for index, text in enumerate(texts or ("hello",))
    ]
    turn = AgentTurn(
        messages=messages,
        system_prompt="Be brief.",
        model="model-x",
        max_output_tokens=100,
        max_turns=5,
        run_token="the-token",
        vendor_key="the-real-key",
        model_url="{relay}/broker/p",
        paths=_PATHS,
    )
    return create_adapter(agent).command(replace(turn, **changes))


def _file(command: AgentCommand, name: str) -> bytes:
    (data,) = (file.data for file in command.files if file.path.endswith(f"/{name}"))
    return data


@pytest.mark.parametrize("agent", _TAKING_IDS)
def test_a_session_begins_with_the_history_and_goes_on_without(agent: str) -> None:
    """What it is given, it does not know; the prompt is on stdin."""
    new = _command(
        agent, "first", "reply", "second", session=AgentSession(id=_SESSION, resume=False)
    )
    assert new.argv[new.argv.index("--session-id") + 1] == _SESSION
    assert new.stdin_path == f"{_PATHS.run}/prompt.txt"
    assert b"first" in _file(new, "prompt.txt")
    old = _command(agent, "second", session=AgentSession(id=_SESSION, resume=True))
    assert "--session-id" not in old.argv
    assert _SESSION in " ".join(old.argv)
    assert _file(old, "prompt.txt") == b"\nsecond"


@pytest.mark.parametrize(
    ("agent", "continued"),
    [("copilot", "--continue"), ("cursor", "--continue"), ("gemini", "--resume latest")],
)
def test_without_an_id_the_newest_session_is_resumed(agent: str, continued: str) -> None:
    """By the agent's own word for it."""
    command = _command(agent, session=AgentSession(id=None, resume=True))
    assert f" {continued} " in f"{' '.join(command.argv)} "


@pytest.mark.parametrize("agent", _ALL)
def test_the_operators_arguments_come_behind_all_others(agent: str) -> None:
    """Of options; a prompt on the command line stays last."""
    command = _command(agent, extra_arguments=("--effort", "high"))
    at = command.argv.index("--effort")
    assert command.argv[at + 1] == "high"
    assert command.argv[at + 2 :] in ((), ("--", "Be brief.\n\nhello"))


@pytest.mark.parametrize("agent", _TAKING_IDS)
def test_requests_go_to_the_relay(agent: str) -> None:
    """By the variable that the CLI reads; `{relay}` is replaced in the sandbox."""
    env = _command(agent).env
    name = {"gemini": "GOOGLE_GEMINI_BASE_URL", "copilot": "COPILOT_PROVIDER_BASE_URL"}[agent]
    assert env[name] == "{relay}/broker/p"


def test_gemini_leaves_the_work_trees_settings_alone() -> None:
    """Each of these was seen to be needed: see the live test."""
    settings = json.loads(_file(_command("gemini"), "settings.json"))
    assert settings["security"]["auth"] == {"selectedType": "gemini-api-key", "useExternal": True}
    assert settings["security"]["environmentVariableRedaction"]["blocked"] == ["GEMINI_API_KEY"]
    assert settings["advanced"]["ignoreLocalEnv"] is True
    assert settings["hooksConfig"]["enabled"] is False
    assert settings["model"]["maxSessionTurns"] == 5


def test_instructions_are_the_operators() -> None:
    """A blank system prompt leaves no file behind that would be read."""
    assert _file(_command("gemini"), "ORION.md") == b"Be brief."
    blank = json.loads(_file(_command("gemini", system_prompt=" "), "settings.json"))
    assert "ORION.md" not in blank["context"]["fileName"]
    assert _file(_command("copilot"), "orion.instructions.md").endswith(b"Be brief.")
    assert "COPILOT_CUSTOM_INSTRUCTIONS_DIRS" not in _command("copilot", system_prompt=" ").env


def test_mcp_servers_in_each_ones_form() -> None:
    """Those inside as they are, those behind the relay by the agent's own way to write a variable."""
    gemini = json.loads(_file(_command("gemini", mcp_config=_MCP), "settings.json"))["mcpServers"]
    how = {"command": "x", "args": ["y"], "env": {"K": "v"}}
    assert gemini["a"] == {**how, "trust": True, "timeout": 60_000}
    assert gemini["b"]["httpUrl"] == "$ORION_RELAY/broker/mcp/b"
    assert gemini["b"]["headers"] == {"Authorization": "Bearer $GEMINI_API_KEY"}
    copilot = json.loads(_file(_command("copilot", mcp_config=_MCP), "mcp.json"))["mcpServers"]
    assert copilot["a"]["type"] == "local"
    assert copilot["b"]["url"] == "{relay}/broker/mcp/b"
    assert copilot["b"]["headers"] == {"Authorization": "Bearer the-token"}
    assert copilot["a"]["tools"] == copilot["b"]["tools"] == ["*"]
    cursor = json.loads(_file(_command("cursor", mcp_config=_MCP), "mcp.json"))["mcpServers"]
    assert cursor["b"]["url"] == "${env:ORION_RELAY}/broker/mcp/b"


def test_copilots_token_is_behind_a_command() -> None:
    """What the agent runs inherits its environment."""
    env = _command("copilot").env
    assert env["COPILOT_PROVIDER_API_KEY_COMMAND"] == f"cat {_PATHS.run}/token"
    assert "the-token" not in env.values()
    assert env["COPILOT_PROVIDER_MAX_OUTPUT_TOKENS"] == "100"
    assert "COPILOT_ALLOW_ALL" not in env


def test_cursor_needs_its_key_and_takes_no_longer_message_than_an_argument() -> None:
    """Neither starts it in vain."""
    assert _command("cursor").env["CURSOR_API_KEY"] == "the-real-key"
    with pytest.raises(ValueError, match="no key"):
        _command("cursor", vendor_key="")
    with pytest.raises(ValueError, match="at most"):
        _command("cursor", "x" * 130_000)
    prompt = _command("cursor", "x" * 130_000, "reply", "now").argv[-1]
    assert "you answered ---\nreply\n" in prompt
    assert "xx" not in prompt
    assert _command("cursor", "--help").argv[-2] == "--"
