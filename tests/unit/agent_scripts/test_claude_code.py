"""The claude adapter: its recipe and its command."""

import json
from dataclasses import replace
from typing import Any

import pytest

from agent_scripts.adapter import AgentCommand, AgentPaths, AgentSession, AgentTurn, TurnMessage
from agent_scripts.agents.claude.adapter import ClaudeCodeAdapter
from agent_scripts.registry import create_adapter
from agent_scripts.supervision import InteractiveAdapter, at_terminal

_PATHS = AgentPaths(work="/work", home="/home/agent", run="/orion/r 1", environment="/env")
_SESSION = "5e551000-0000-4000-8000-000000000001"


def _command(*texts: str, **changes: Any) -> AgentCommand:
    messages = [
        TurnMessage(role="assistant" if index % 2 else "user", text=text)
        for index, text in enumerate(texts or ("hello",))
    ]
    turn = AgentTurn(
        messages=messages,
        system_prompt="Be brief.",
        model="claude-x",
        max_output_tokens=100,
        max_turns=5,
        run_token="the-token",
        paths=_PATHS,
    )
    return ClaudeCodeAdapter().command(replace(turn, **changes))


def _file(command: AgentCommand, name: str) -> bytes:
    (data,) = (file.data for file in command.files if file.path == f"{_PATHS.run}/{name}")
    return data


def _said(command: AgentCommand) -> str:
    return str(json.loads(_file(command, "request.json"))["message"]["text"])


def test_recipe_is_pinned_by_hashes_and_named_by_its_content() -> None:
    """Node for the installation and the CLI itself come by hash; the name changes with the paths or any file."""
    recipe = ClaudeCodeAdapter().environment(_PATHS)
    files = {file.path.removeprefix("/env/"): file.data for file in recipe.files}
    assert b"--hash=sha256:" in files["requirements.lock"]
    lock = json.loads(files["package-lock.json"])["packages"]
    pinned = json.loads(files["package.json"])["dependencies"]["@anthropic-ai/claude-code"]
    assert lock["node_modules/@anthropic-ai/claude-code"]["version"] == pinned
    assert all("integrity" in package for name, package in lock.items() if name)
    assert any("--require-hashes" in command for command in recipe.commands)
    prefix, _, digest = recipe.name.partition("-")
    assert (prefix, len(digest)) == ("claude", 12)
    other = replace(_PATHS, environment="/elsewhere")
    assert ClaudeCodeAdapter().environment(other).name != recipe.name


def test_locks_name_no_index() -> None:
    """No package index is named in what is installed inside sandboxes."""
    for file in ClaudeCodeAdapter().environment(_PATHS).files:
        if file.path.endswith(("lock", "json")):
            assert b"://" not in file.data, file.path
            assert b"resolved" not in file.data, file.path


@pytest.mark.parametrize(
    "text",
    ["-x --help", "$(id) `id` '\"", "a\nb\n", "x" * 200_000, "/clear", "!ls", "ünïcode \u200b"],
)
def test_user_text_travels_on_stdin(text: str) -> None:
    """The message is in its file alone, whatever it holds, and never begins as a command of the CLI would."""
    command = _command(text)
    assert _said(command) == f"\n{text}"
    assert not any(text in part for part in command.argv)


def test_what_no_file_of_text_can_hold_is_gone() -> None:
    """NUL and lone surrogates do not reach the CLI."""
    assert _said(_command("a\0b\ud800c")) == "\nab\ufffdc"


def test_the_token_is_in_its_file_alone() -> None:
    """Neither argv nor the environment, which every command of the agent inherits, holds the run token."""
    command = _command()
    assert _file(command, "token") == b"the-token"
    assert not any("the-token" in part for part in (*command.argv, *command.env.values()))
    settings = json.loads(command.argv[command.argv.index("--settings") + 1])
    assert settings == {"apiKeyHelper": "cat '/orion/r 1/token'"}
    assert command.env["ANTHROPIC_BASE_URL"] == "{relay}/broker/anthropic"
    assert "the-token" not in repr(command)


def test_nothing_of_the_work_tree_configures_the_cli() -> None:
    """No settings, MCP servers, commands or skills but the operator's own."""
    argv = _command().argv
    assert {"--setting-sources=", "--strict-mcp-config", "--disable-slash-commands"} <= set(argv)
    assert not any(part.startswith("--mcp-config") for part in argv)


def test_tools_that_reach_the_network_are_not_offered() -> None:
    """The broker refuses what runs at the provider; the CLI does not offer it in the first place."""
    (tools,) = (part for part in _command().argv if part.startswith("--tools="))
    assert "Bash" in tools
    assert "Web" not in tools


def test_every_model_is_the_runs_own() -> None:
    """Helpers and subagents ask for the model that the token is good for, and for no more than it may write."""
    command = _command()
    assert command.argv[command.argv.index("--model") + 1] == "claude-x"
    pointed = {name: value for name, value in command.env.items() if "MODEL" in name}
    assert len(pointed) == 6
    assert set(pointed.values()) == {"claude-x"}
    assert command.env["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == "100"


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("opus", "claude-opus-5-5"),
        ("claude-sonnet-5-5", "claude-sonnet-5-5"),
        ("a/b", "a/b"),
        ("claude-sonnet-5-5[1m]", "claude-sonnet-5-5"),
        ("opus[1M]", "claude-opus-5-5"),
    ],
)
def test_aliases_become_ids(name: str, model: str) -> None:
    """The grant must name what the CLI will ask for; what is no alias stays as it is."""
    assert ClaudeCodeAdapter().model_id(name) == model


def test_a_session_begins_with_the_history() -> None:
    """What the agent does not remember goes before the message, divided by a line that no message can hold."""
    command = _command("first", "reply", "second", session=AgentSession(id=_SESSION, resume=False))
    at = command.argv.index("--session-id")
    assert command.argv[at + 1] == _SESSION
    prompt = _said(command)
    assert prompt.index("first") < prompt.index("reply") < prompt.index("second")
    (mark,) = {line.split()[1] for line in prompt.splitlines() if line.startswith("--- ")}
    assert prompt.count(mark) == 3


def test_a_resumed_session_gets_what_it_does_not_know() -> None:
    """The message alone, or behind what was said since."""
    session = AgentSession(id=_SESSION, resume=True)
    command = _command("second", session=session)
    assert command.argv[command.argv.index("--resume") + 1] == _SESSION
    assert _said(command) == "\nsecond"
    missed = _said(_command("missed", "reply", "second", session=session))
    assert " people wrote ---\nmissed\n" in missed
    newest = _command(session=AgentSession(id=None, resume=True)).argv
    assert "--continue" in newest
    assert "--resume" not in newest


@pytest.mark.parametrize(
    "session_id",
    ["../../etc/passwd", "--help", "", "x", f"{_SESSION}\n", f"{{{_SESSION}}}", _SESSION[:-1]],
)
def test_a_session_id_that_is_no_uuid_is_refused(session_id: str) -> None:
    """A path, an option or a search word never reaches the command line."""
    with pytest.raises(ValueError, match="not a session id"):
        _command(session=AgentSession(id=session_id, resume=True))


def test_the_operators_own_come_last() -> None:
    """MCP servers as a file, arguments behind all others."""
    command = _command(mcp_config=b'{"mcpServers":{}}', extra_arguments=("--effort", "high"))
    assert f"--mcp-config={_PATHS.run}/mcp.json" in command.argv
    assert _file(command, "mcp.json") == b'{"mcpServers":{}}'
    assert command.argv[-2:] == ("--effort", "high")


def test_a_blank_system_prompt_is_left_out() -> None:
    """The CLI's own prompt stands alone then."""
    assert "--append-system-prompt-file" in _command().argv
    assert "--append-system-prompt-file" not in _command(system_prompt=" \n").argv


def test_a_persons_form_keeps_the_token_in_its_file_and_obeys_no_work_tree() -> None:
    """Its own command line, resumed; what it would ask a newcomer is settled, and its file's other members are not ours."""
    turn = AgentTurn(
        messages=(),
        system_prompt="",
        model="claude-x",
        max_output_tokens=100,
        max_turns=5,
        run_token="the-token",
        paths=_PATHS,
        session=AgentSession(id=_SESSION, resume=True),
    )
    made = ClaudeCodeAdapter().interactive(turn)
    assert "--print" not in made.command.argv
    assert made.command.argv[made.command.argv.index("--resume") + 1] == _SESSION
    assert {"--setting-sources=", "--strict-mcp-config"} <= set(made.command.argv)
    started = at_terminal(made, turn, broker="/broker/b.sock")
    holding = [file.path for file in started.files if b"the-token" in file.data]
    assert holding == [f"{_PATHS.run}/token"]
    assert "the-token" not in " ".join([*started.argv, *made.command.argv])
    assert made.settings["/home/agent/.claude/.claude.json"]["hasCompletedOnboarding"] is True
    with pytest.raises(ValueError, match="not a session id"):
        ClaudeCodeAdapter().interactive(replace(turn, session=AgentSession(id="../x", resume=True)))
    assert not isinstance(create_adapter("anthropic"), InteractiveAdapter)
