"""The opencode adapter: its command."""

import json
from dataclasses import replace
from typing import Any

import pytest

from agent_scripts.adapter import AgentCommand, AgentPaths, AgentSession, AgentTurn, TurnMessage
from agent_scripts.agents.opencode.adapter import OpenCodeAdapter

_PATHS = AgentPaths(work="/work", home="/home/agent", run="/orion/r 1", environment="/env")
_SESSION = "ses_dfa505f7cffe0GDrU7eA5GvKmk"
_SERVERS = json.dumps(
    {
        "mcpServers": {
            "inside": {"command": "python3", "args": ["s.py"], "env": {"A": "b"}},
            "outside": {"url": "${ORION_RELAY}/broker/mcp/outside"},
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
    return OpenCodeAdapter().command(replace(turn, **changes))


def _file(command: AgentCommand, name: str) -> bytes:
    (data,) = (file.data for file in command.files if file.path == f"{_PATHS.run}/{name}")
    return data


def _config(command: AgentCommand) -> Any:
    return json.loads(_file(command, "opencode.json"))


@pytest.mark.parametrize(
    "text", ["-x --help", '"quoted" \\', "$(id) `id`", "a\nb\n", "x" * 200_000]
)
def test_user_text_travels_on_stdin(text: str) -> None:
    """The message is in its file alone, whatever it holds."""
    command = _command(text)
    assert command.stdin_path == f"{_PATHS.run}/prompt.txt"
    assert _file(command, "prompt.txt").decode() == text
    assert not any(text in part for part in command.argv)


def test_the_token_is_in_its_file_alone() -> None:
    """Neither argv nor the environment, which every command of the agent inherits, holds it."""
    command = _command(mcp_config=_SERVERS)
    assert not any("the-token" in part for part in (*command.argv, *command.env.values()))
    assert [file.path for file in command.files if b"the-token" in file.data] == [
        f"{_PATHS.run}/token"
    ]
    options = _config(command)["provider"]["openai"]["options"]
    assert options["apiKey"] == f"{{file:{_PATHS.run}/token}}"
    assert options["baseURL"] == "{env:ORION_OPENAI_URL}"
    assert command.env["ORION_OPENAI_URL"] == "{relay}/broker/openai/v1"


def test_everything_lies_outside_of_work_and_home() -> None:
    """A snapshot keeps neither the configuration nor the token."""
    assert all(file.path.startswith(f"{_PATHS.run}/") for file in _command().files)


def test_every_model_is_the_runs_own() -> None:
    """Also the small one; for no more output than the run may have."""
    config = _config(_command())
    assert {config["model"], config["small_model"]} == {"openai/gpt-x"}
    assert config["provider"]["openai"]["models"]["gpt-x"]["limit"]["output"] == 100
    assert config["enabled_providers"] == ["openai"]


def test_nobody_is_asked_and_nothing_is_fetched() -> None:
    """All tools but those that reach the network are allowed."""
    assert _config(_command())["permission"] == {
        "*": "allow",
        "webfetch": "deny",
        "websearch": "deny",
        "question": "deny",
    }


def test_nothing_of_work_tree_or_home_configures_it() -> None:
    """Its settings directory and the home that it reads settings from are of this start."""
    command = _command()
    assert command.env["OPENCODE_DISABLE_PROJECT_CONFIG"] == "1"
    assert command.env["XDG_CONFIG_HOME"].startswith(_PATHS.run)
    assert command.env["OPENCODE_TEST_HOME"].startswith(_PATHS.run)
    assert command.env["HOME"] == _PATHS.home
    assert "--pure" in command.argv


def test_mcp_servers_in_its_own_words() -> None:
    """A command with its environment; a relayed one with the run's token as bearer."""
    assert _config(_command(mcp_config=_SERVERS))["mcp"] == {
        "inside": {
            "type": "local",
            "command": ["python3", "s.py"],
            "environment": {"A": "b"},
            "enabled": True,
            "timeout": 10_000,
        },
        "outside": {
            "type": "remote",
            "url": "{env:ORION_RELAY}/broker/mcp/outside",
            "headers": {"Authorization": f"Bearer {{file:{_PATHS.run}/token}}"},
            "oauth": False,
            "enabled": True,
            "timeout": 10_000,
        },
    }


def test_what_it_warns_of_is_printed() -> None:
    """It is where a server that did not start is told."""
    argv = _command().argv
    assert "--print-logs" in argv
    assert argv[argv.index("--log-level") + 1] == "WARN"


def test_sessions() -> None:
    """A new one is the CLI's own; a known one is resumed; whatever it is told, it does not know."""
    new = _command("a", "b", "c", session=AgentSession(id=_SESSION, resume=False))
    assert _SESSION not in new.argv
    assert b"a\n" in _file(new, "prompt.txt")
    known = _command("c", session=AgentSession(id=_SESSION, resume=True))
    assert tuple(known.argv[-2:]) == ("--session", _SESSION)
    assert _file(known, "prompt.txt") == b"c"
    newest = _command(session=AgentSession(id=None, resume=True))
    assert newest.argv[-1] == "--continue"


@pytest.mark.parametrize("session_id", ["--continue", "", f"{_SESSION}\n", "ses_", "ses_../x" * 3])
def test_an_id_that_none_has_reaches_no_command_line(session_id: str) -> None:
    """It is refused before anything is made of it."""
    with pytest.raises(ValueError, match="not a session of OpenCode"):
        _command(session=AgentSession(id=session_id, resume=True))
