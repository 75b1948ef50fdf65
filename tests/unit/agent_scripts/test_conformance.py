"""What holds for every agent of the registry, whatever its command line: run over a new one before anything else."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import get_args

import pytest

from agent_scripts.adapter import (
    AgentCommand,
    AgentExit,
    AgentPaths,
    AgentSession,
    AgentTurn,
    ExitReason,
    TurnMessage,
)
from agent_scripts.events import AgentErrorCode
from agent_scripts.registry import agent_names, agent_spec, create_adapter

AGENTS = agent_names()
_PATHS = AgentPaths(work="/work", home="/home/agent", run="/orion/r1", environment="/env")
_UUID = "5e551000-0000-4000-8000-000000000001"
_MCP = json.dumps(
    {
        "mcpServers": {
            "a": {"command": "x", "args": ["y"], "env": {"K": "v"}},
            "b": {
                "type": "http",
                "url": "${ORION_RELAY}/broker/mcp/b",
                "headers": {"Authorization": "Bearer {run_token}"},
            },
        }
    }
).encode()
_TURN = AgentTurn(
    messages=[TurnMessage(role="user", text="hello")],
    system_prompt="Be brief.",
    model="model-x",
    max_output_tokens=100,
    max_turns=5,
    run_token="the-token",
    vendor_key="the-real-key",
    model_url="{relay}/broker/p",
    paths=_PATHS,
    mcp_config=_MCP,
)
_WITH_SESSIONS = [name for name in AGENTS if agent_spec(name).has_sessions]
_CODES: Mapping[ExitReason, AgentErrorCode] = {
    "timeout": AgentErrorCode.TIMEOUT,
    "idle": AgentErrorCode.IDLE,
    "output_limit": AgentErrorCode.OUTPUT_LIMIT,
    "disk_limit": AgentErrorCode.DISK_LIMIT,
    "process_limit": AgentErrorCode.PROCESS_LIMIT,
}


def _command(agent: str, turn: AgentTurn = _TURN) -> AgentCommand:
    return create_adapter(agent).command(turn)


@pytest.mark.parametrize("agent", AGENTS)
def test_its_entry_leads_to_it(agent: str) -> None:
    """The name of the registry is that of its spec and of its adapter; it has a model, and either a protocol or a key."""
    spec = agent_spec(agent)
    assert spec.name == create_adapter(agent).name == agent
    assert create_adapter(agent).model_id(spec.default_model)
    assert (spec.protocol is None) == bool(spec.own_key)


@pytest.mark.parametrize("agent", AGENTS)
def test_its_environment_is_named_by_what_is_in_it(agent: str) -> None:
    """The same each time; all files lie in it, and none of the turn's does."""
    recipe = create_adapter(agent).environment(_PATHS)
    assert recipe == create_adapter(agent).environment(_PATHS)
    assert recipe.name.startswith(f"{agent}-")
    assert recipe.commands
    assert all(file.path.startswith(f"{_PATHS.environment}/") for file in recipe.files)


@pytest.mark.parametrize("agent", AGENTS)
def test_secrets_are_on_no_command_line_and_in_no_home(agent: str) -> None:
    """Command lines are readable for every process; a home is saved."""
    command = _command(agent)
    assert "the-token" not in " ".join(command.argv)
    assert "the-real-key" not in " ".join(command.argv)
    for file in command.files:
        if not file.path.startswith(f"{_PATHS.run}/"):
            assert b"the-token" not in file.data
            assert b"the-real-key" not in file.data


@pytest.mark.parametrize("agent", AGENTS)
def test_its_files_lie_in_the_run_directory_or_the_home(agent: str) -> None:
    """In the work tree one would be a change of the repository; in the environment nothing can be written."""
    command = _command(agent)
    places = (f"{_PATHS.run}/", f"{_PATHS.home}/")
    assert [file.path for file in command.files if not file.path.startswith(places)] == []
    assert command.stdin_path in (None, *(file.path for file in command.files))


@pytest.mark.parametrize("agent", AGENTS)
def test_it_works_in_its_own_home(agent: str) -> None:
    """Where its memory is kept with the thread; local addresses are asked without a proxy."""
    env = _command(agent).env
    assert env["HOME"] == _PATHS.home
    assert env["NO_PROXY"] == "127.0.0.1"


@pytest.mark.parametrize("agent", [name for name in AGENTS if agent_spec(name).protocol])
def test_it_asks_the_relay_with_the_runs_token(agent: str) -> None:
    """It is told the URL and the token in its environment or in a file; a real key never."""
    command = _command(agent)
    told = [*command.env.values(), *(file.data.decode() for file in command.files)]
    assert any("{relay}/broker/p" in text for text in told)
    assert any("the-token" in text for text in told)
    assert not any("the-real-key" in text for text in told)


@pytest.mark.parametrize("agent", _WITH_SESSIONS)
@pytest.mark.parametrize("session_id", ["../../etc/passwd", "--help", "", "x", "a b", f"{_UUID}\n"])
def test_a_session_id_of_another_form_is_refused(agent: str, session_id: str) -> None:
    """A path, an option or a search word never reaches the command line."""
    session = AgentSession(id=session_id, resume=True)
    with pytest.raises(ValueError, match=r"^not a "):
        _command(agent, replace(_TURN, session=session))


@pytest.mark.parametrize("agent", _WITH_SESSIONS)
def test_without_an_id_the_newest_session_is_resumed(agent: str) -> None:
    """By the agent's own word for it, which a new session does without."""
    newest = _command(agent, replace(_TURN, session=AgentSession(id=None, resume=True)))
    assert (newest.argv, newest.files) != (_command(agent).argv, _command(agent).files)


@pytest.mark.parametrize("agent", AGENTS)
def test_what_is_loaded_ahead_becomes_any_turn(agent: str) -> None:
    """Its command line is where that of every turn begins; nothing of a turn is in it."""
    ahead = create_adapter(agent).preload(_PATHS)
    if ahead is not None:
        assert _command(agent).argv[: len(ahead.argv)] == ahead.argv
        assert "the-token" not in str(ahead.env.values())


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("reason", get_args(ExitReason))
def test_without_a_word_there_is_no_answer(agent: str, reason: ExitReason) -> None:
    """However the process ended; what Orion did itself has its own code."""
    finished = create_adapter(agent).parser().finish(AgentExit(exit_code=0, reason=reason))
    assert finished.error is not None
    assert finished.error is _CODES.get(reason, finished.error)
    assert finished.text == ""


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("line", ["", "no JSON", "[]", "{}", '{"type": 3}', '{"type": "zzz"}'])
def test_a_line_that_says_nothing_is_no_event(agent: str, line: str) -> None:
    """Unknown and malformed ones: newer versions say more, and commands print what they like."""
    assert create_adapter(agent).parser().feed(line) == ()


@pytest.mark.parametrize("agent", AGENTS)
def test_a_bad_exit_is_a_failure_with_its_words(agent: str) -> None:
    """What it said on stderr is in the operator's log."""
    ended = AgentExit(exit_code=3, reason="exited", stderr_tail="it broke")
    finished = create_adapter(agent).parser().finish(ended)
    assert finished.error is not None
    assert "it broke" in finished.detail
