"""The anthropic adapter: its recipe, its command, its parser."""

import json

import pytest

from agent_scripts.adapter import (
    AgentExit,
    AgentPaths,
    AgentTurn,
    EventParser,
    ExitReason,
    TurnMessage,
)
from agent_scripts.agents.anthropic.adapter import AnthropicAdapter
from agent_scripts.events import AgentErrorCode, TextDelta, ToolFinished, ToolStarted, UsageReported

_PATHS = AgentPaths(work="/work", home="/home/agent", run="/orion/r1", environment="/env")
_FINAL = '{"type":"final","text":"The answer."}'
_ERROR = '{"type":"error","code":"model_overloaded","message":"busy","status":529}'


def _turn(text: str = "hello") -> AgentTurn:
    return AgentTurn(
        messages=(TurnMessage(role="user", text=text),),
        system_prompt="Be brief.",
        model="claude-x",
        max_output_tokens=100,
        max_turns=5,
        run_token="the-token",
        paths=_PATHS,
    )


def _parser(*lines: str) -> EventParser:
    parser = AnthropicAdapter().parser()
    for line in lines:
        parser.feed(line)
    return parser


def _exit(code: int | None = 0, reason: ExitReason = "exited") -> AgentExit:
    return AgentExit(exit_code=code, reason=reason, stderr_tail="the tail")


def test_recipe_is_pinned_and_named_by_its_content() -> None:
    """Only hash-pinned packages are installed, and the name changes with the paths, the lock or a command."""
    recipe = AnthropicAdapter().environment(_PATHS)
    (lock,) = recipe.files
    assert lock.path == "/env/requirements.lock"
    assert b"anthropic==2.12.0" in lock.data
    assert b"--hash=sha256:" in lock.data
    assert any("--require-hashes" in command for command in recipe.commands)
    assert recipe.name == AnthropicAdapter().environment(_PATHS).name
    prefix, _, digest = recipe.name.partition("-")
    assert (prefix, len(digest)) == ("anthropic", 12)
    other = AgentPaths(work="/work", home="/h", run="/r", environment="/elsewhere")
    assert AnthropicAdapter().environment(other).name != recipe.name


def test_lock_names_no_index() -> None:
    """No package index is named in what is installed inside sandboxes."""
    (lock,) = AnthropicAdapter().environment(_PATHS).files
    assert b"://" not in lock.data
    assert b"--index" not in lock.data


def test_user_text_travels_as_a_file() -> None:
    """The message is in the request file alone, whatever it holds; the token is in the environment alone."""
    text = "--rm -rf / '\" \ud800 \u200b"
    command = AnthropicAdapter().command(_turn(text))
    request = json.loads(command.files[0].data)
    assert request["messages"] == [{"role": "user", "text": text, "images": []}]
    assert request["system"] == "Be brief."
    assert not any(text in part for part in command.argv)
    assert command.env["ANTHROPIC_API_KEY"] == "the-token"
    assert command.env["ANTHROPIC_BASE_URL"] == "{relay}/broker/anthropic"
    assert not any("the-token" in part for part in command.argv)
    assert not any(b"the-token" in file.data for file in command.files)


def test_secrets_and_prompts_are_not_in_reprs() -> None:
    """A log of the turn or the command shows neither."""
    turn = _turn("private words")
    assert "private words" not in repr(turn)
    assert "the-token" not in repr(turn)
    assert "the-token" not in repr(AnthropicAdapter().command(turn))


def test_lines_become_events() -> None:
    """Every line of the script has its event; a tool's argument is one line of bounded length."""
    parser = AnthropicAdapter().parser()
    assert parser.feed('{"type":"text","text":"a"}') == (TextDelta(text="a"),)
    started = json.dumps(
        {"type": "tool_started", "id": "t", "name": "shell", "argument": "a\n b" + "c" * 5000}
    )
    (event,) = parser.feed(started)
    assert isinstance(event, ToolStarted)
    assert event.argument.startswith("a bccc")
    assert len(event.argument) == 2000
    finished = '{"type":"tool_finished","id":"t","is_error":true,"output_bytes":9}'
    assert parser.feed(finished) == (ToolFinished(tool_id="t", is_error=True, output_bytes=9),)
    usage = {
        "input_tokens": 1,
        "output_tokens": 2,
        "cache_read_tokens": 3,
        "cache_creation_tokens": 4,
    }
    assert parser.feed(json.dumps({"type": "usage", "model": "m", **usage})) == (
        UsageReported(model="m", **usage),
    )
    assert parser.feed(_FINAL) == ()


@pytest.mark.parametrize(
    "line",
    [
        "",
        "words",
        "[1]",
        "7",
        "null",
        "{}",
        '{"type":"alive"}',
        '{"type":"text"}',
        '{"type":["text"]}',
        "[" * 100_000,
    ],
)
def test_other_lines_are_ignored(line: str) -> None:
    """Unknown, malformed and hostile lines give nothing and raise nothing."""
    assert AnthropicAdapter().parser().feed(line) == ()


def test_numbers_that_are_none_count_nothing() -> None:
    """Of usage and of sizes alike."""
    parser = AnthropicAdapter().parser()
    line = '{"type":"tool_finished","id":"t","is_error":false,"output_bytes":1e999}'
    assert parser.feed(line) == (ToolFinished(tool_id="t", is_error=False, output_bytes=0),)
    usage = '{"type":"usage","model":"m","input_tokens":1e999,"output_tokens":NaN}'
    assert parser.feed(usage) == (UsageReported(model="m", input_tokens=0, output_tokens=0),)


def test_final_and_exit_zero_is_success() -> None:
    """Both are needed."""
    finished = _parser('{"type":"text","text":"Let me see."}', _FINAL).finish(_exit())
    assert (finished.text, finished.error) == ("The answer.", None)
    finished = _parser(_FINAL).finish(_exit(1))
    assert finished.error is AgentErrorCode.EXECUTION_FAILED


def test_no_terminal_event_is_a_failure() -> None:
    """Text alone is no answer; a crash shows the tail of stderr."""
    finished = _parser('{"type":"text","text":"Let me"}').finish(_exit())
    assert (finished.text, finished.error) == ("Let me", AgentErrorCode.NO_ANSWER)
    finished = _parser().finish(_exit(137))
    assert finished.error is AgentErrorCode.EXECUTION_FAILED
    assert "137" in finished.detail
    assert "the tail" in finished.detail


def test_blank_final_is_no_answer() -> None:
    """An answer of white space is none."""
    assert (
        _parser('{"type":"final","text":" \\n"}').finish(_exit()).error is AgentErrorCode.NO_ANSWER
    )


@pytest.mark.parametrize("code", list(AgentErrorCode))
def test_every_code_of_the_script_is_understood(code: AgentErrorCode) -> None:
    """What the script says is the outcome, with the text written before."""
    line = json.dumps({"type": "error", "code": code.value, "message": "m", "status": 400})
    finished = _parser('{"type":"text","text":"so far"}', line).finish(_exit(1))
    assert (finished.error, finished.text) == (code, "so far")
    assert "400" in finished.detail


def test_unknown_code_is_a_failed_execution() -> None:
    """A newer or garbled code does not break the host."""
    finished = _parser('{"type":"error","code":"gremlins","message":"m"}').finish(_exit(1))
    assert finished.error is AgentErrorCode.EXECUTION_FAILED


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("timeout", AgentErrorCode.TIMEOUT),
        ("output_limit", AgentErrorCode.OUTPUT_LIMIT),
        ("idle", AgentErrorCode.IDLE),
        ("stopped", AgentErrorCode.EXECUTION_FAILED),
        ("lost", AgentErrorCode.EXECUTION_FAILED),
    ],
)
def test_our_own_reasons_beat_the_script(reason: ExitReason, code: AgentErrorCode) -> None:
    """A run that we ended has our reason, whatever it still said."""
    assert _parser(_ERROR).finish(_exit(None, reason)).error is code


def test_idle_after_the_final_answer_is_success() -> None:
    """The answer is there; that the process then hung is no loss."""
    finished = _parser(_FINAL).finish(_exit(137, "idle"))
    assert (finished.text, finished.error) == ("The answer.", None)
