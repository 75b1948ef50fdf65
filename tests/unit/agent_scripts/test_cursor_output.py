"""The parser of the cursor adapter, over shapes from its documentation, replayed by an executable. Nothing here was recorded."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agent_scripts.adapter import IDLE_NOTE, AgentExit
from agent_scripts.agents.cursor.output import CursorParser
from agent_scripts.events import (
    AgentErrorCode,
    AgentEvent,
    TextDelta,
    ToolFinished,
    ToolStarted,
    TurnFinished,
    UsageReported,
)

_DATA = Path("tests/data/cursor")
_FAKE = """
import json, sys
*lines, last = open(sys.argv[1]).read().splitlines()
ended = json.loads(last)
print("\\n".join(lines))
sys.stderr.write(ended["stderr_tail"])
sys.exit(ended["exit_code"])
"""
"""Prints a file of shapes, its last line is how it ends: what stands in for an executable that nobody here has."""


def _path(name: str) -> Path:
    return _DATA / f"documented-synthetic-{name}.jsonl"


def _run(name: str) -> tuple[list[AgentEvent], TurnFinished]:
    done = subprocess.run(
        [sys.executable, "-c", _FAKE, str(_path(name))], capture_output=True, text=True, check=False
    )
    reason = json.loads(_path(name).read_text().splitlines()[-1])["reason"]
    ended = AgentExit(exit_code=done.returncode, reason=reason, stderr_tail=done.stderr)
    return _read(done.stdout.splitlines(), ended)


def _read(lines: list[str], ended: AgentExit) -> tuple[list[AgentEvent], TurnFinished]:
    parser = CursorParser()
    events = [event for line in lines for event in parser.feed(line)]
    return events, parser.finish(ended)


@pytest.mark.parametrize("name", ["tools", "unknown-events"])
def test_a_turn_with_tools(name: str) -> None:
    """Tools of a kind and without one, a failed one, the last message as the answer, usage; unknown lines disturb nothing."""
    events, finished = _run(name)
    started = [event for event in events if isinstance(event, ToolStarted)]
    assert [(event.name, event.argument) for event in started] == [
        ("shell", "ls -la"),
        ("write", "notes.txt"),
        ("custom", '{"query": "q"}'),
    ]
    ended = [event.is_error for event in events if isinstance(event, ToolFinished)]
    assert ended == [False, True, False]
    assert finished.error is None
    assert finished.text == "Done: two files."
    assert finished.agent_session_id == "c5e55100-0000-4000-8000-000000000001"
    text = "".join(event.text for event in events if isinstance(event, TextDelta))
    assert text == "I will look.\n\nDone: two files."
    (usage,) = (event for event in events if isinstance(event, UsageReported))
    assert (usage.input_tokens, usage.output_tokens, usage.cache_read_tokens) == (10, 5, 3)


def test_without_usage_there_is_none() -> None:
    """Older versions do not tell it."""
    events, finished = _run("resumed")
    assert finished.text == "You said hello."
    assert not [event for event in events if isinstance(event, UsageReported)]


@pytest.mark.parametrize("name", ["failed", "auth", "error-result", "stopped"])
def test_failures(name: str) -> None:
    """An exit code, a bad result, our own stop: none is an answer."""
    _, finished = _run(name)
    assert finished.error is AgentErrorCode.EXECUTION_FAILED
    assert finished.detail


def test_cut_and_idle() -> None:
    """No result, no success; a result before the idle limit is one."""
    *lines, _ = _path("tools").read_text().splitlines()
    ended = AgentExit(exit_code=0, reason="exited")
    assert _read(lines[:-1], ended)[1].error is AgentErrorCode.NO_ANSWER
    _, finished = _read(lines, AgentExit(exit_code=None, reason="idle"))
    assert finished.error is None
    assert finished.notes == (IDLE_NOTE,)


@pytest.mark.parametrize("line", ['{"type":"tool_call"}', '{"type":"assistant","message":{}}', "{"])
def test_broken_lines_give_nothing(line: str) -> None:
    """Whatever comes."""
    assert CursorParser().feed(line) == ()
