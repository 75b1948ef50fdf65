"""The parser of the gemini adapter, over what the real CLI printed (tests/data/gemini) and over hostile lines."""

import json
import time
import tracemalloc
from pathlib import Path

import pytest

from agent_scripts.adapter import IDLE_NOTE, UNENDED_NOTE, AgentExit
from agent_scripts.agents.gemini.output import GeminiParser
from agent_scripts.events import (
    AgentErrorCode,
    AgentEvent,
    TextDelta,
    ToolFinished,
    ToolStarted,
    TurnFinished,
    UsageReported,
)

_DATA = Path("tests/data/gemini")
_VERSION = "0.61.0"
_SESSION = "5e551000-0000-4000-8000-000000000001"
_ENDED = AgentExit(exit_code=0, reason="exited")


def _recorded(name: str) -> tuple[list[str], AgentExit]:
    *lines, last = (_DATA / f"{_VERSION}-{name}.jsonl").read_text().splitlines()
    return lines, AgentExit(**json.loads(last))


def _read(lines: list[str], ended: AgentExit = _ENDED) -> tuple[list[AgentEvent], TurnFinished]:
    parser = GeminiParser()
    events = [event for line in lines for event in parser.feed(line)]
    return events, parser.finish(ended)


def _streamed(events: list[AgentEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def test_a_turn_with_tools() -> None:
    """Every text once, every tool with its argument and its end, usage by model, the answer behind the last tool."""
    events, finished = _read(*_recorded("tools"))
    assert finished.error is None, finished.detail
    started = [event for event in events if isinstance(event, ToolStarted)]
    assert [(event.name, event.argument) for event in started] == [
        ("run_shell_command", "echo one"),
        ("write_file", "notes.txt"),
        ("run_shell_command", "exit 3"),
    ]
    ended = [event.tool_id for event in events if isinstance(event, ToolFinished)]
    assert ended == [event.tool_id for event in started]
    assert finished.agent_session_id == _SESSION
    assert finished.text.startswith("I am Orion's offline model.")
    text = _streamed(events)
    assert text.startswith("Step 1 of 3.\n\nStep 2 of 3.\n\nStep 3 of 3.\n\n")
    assert text.endswith(finished.text)
    (usage,) = (event for event in events if isinstance(event, UsageReported))
    assert usage.model == "gemini-2.5-pro"
    assert usage.input_tokens > 0
    assert usage.cache_read_tokens > 0
    assert usage.output_tokens > 0


def test_a_resumed_turn_remembers() -> None:
    """The follow-up's answer quotes the turn before."""
    _, finished = _read(*_recorded("resumed"))
    assert finished.error is None
    assert "my name is Ada" in finished.text


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("status-401", AgentErrorCode.MODEL_AUTH_FAILED),
        ("key-refused", AgentErrorCode.EXECUTION_FAILED),
        ("status-403", AgentErrorCode.MODEL_AUTH_FAILED),
        ("status-404", AgentErrorCode.EXECUTION_FAILED),
        ("status-429", AgentErrorCode.MODEL_RATE_LIMITED),
        ("status-500", AgentErrorCode.MODEL_UNAVAILABLE),
        ("status-503", AgentErrorCode.MODEL_UNAVAILABLE),
        ("context", AgentErrorCode.EXECUTION_FAILED),
        ("refused", AgentErrorCode.MODEL_REFUSED),
        ("garbage", AgentErrorCode.EXECUTION_FAILED),
        ("cut", AgentErrorCode.EXECUTION_FAILED),
        ("max-turns", AgentErrorCode.TURN_LIMIT),
        ("session-unknown", AgentErrorCode.SESSION_NOT_FOUND),
        ("session-broken", AgentErrorCode.SESSION_NOT_FOUND),
        ("stopped", AgentErrorCode.EXECUTION_FAILED),
    ],
)
def test_recorded_failures_have_their_codes(name: str, code: AgentErrorCode) -> None:
    """Each failure by its own code; what the CLI says of it is for the operator and never the answer."""
    events, finished = _read(*_recorded(name))
    assert finished.error is code, finished.detail
    assert finished.detail
    assert "API Error" not in finished.text
    assert finished.text == _streamed(events).strip()


def test_a_call_that_helped_to_repeat_is_no_failure() -> None:
    """A retry is told on stderr only."""
    assert _read(*_recorded("retried-503"))[1].error is None


def test_a_session_that_breaks_after_work_is_a_failure() -> None:
    """Where a tool ran already, beginning anew would run it twice."""
    lines, ended = _recorded("session-broken")
    tool = json.dumps({"type": "tool_use", "tool_id": "t", "tool_name": "x", "parameters": {}})
    assert _read([tool, *lines], ended)[1].error is AgentErrorCode.EXECUTION_FAILED


def test_ended_by_a_signal_it_exits_with_0_and_no_result() -> None:
    """SIGTERM from within the sandbox: an exit code is no proof of success."""
    lines, _ = _recorded("tools")
    assert _read(lines[:-1])[1].error is AgentErrorCode.NO_ANSWER


def test_an_answer_before_the_idle_limit_counts() -> None:
    """The CLI said that it was done, or wrote behind its last tool, and did not end; while a tool runs it is none."""
    lines, _ = _recorded("tools")
    idle = AgentExit(exit_code=None, reason="idle")
    _, finished = _read(lines, idle)
    assert (finished.error, finished.notes) == (None, (IDLE_NOTE,))
    unended = _read(lines[:-1], idle)[1]
    assert (unended.error, unended.text) == (None, finished.text)
    assert unended.notes == (UNENDED_NOTE,)
    for end, line in enumerate(lines):
        if '"tool_use"' in line or '"tool_result"' in line:
            assert _read(lines[: end + 1], idle)[1].error is AgentErrorCode.IDLE
    text = json.dumps({"type": "message", "role": "assistant", "content": "Meanwhile"})
    begun = next(line for line in lines if '"tool_use"' in line)
    assert _read([begun, text], idle)[1].error is AgentErrorCode.IDLE
    late = AgentExit(exit_code=None, reason="timeout")
    assert _read(lines[:-1], late)[1].error is AgentErrorCode.TIMEOUT


def test_a_broken_mcp_server_is_noted() -> None:
    """The turn goes on without it; the CLI does not name it."""
    _, finished = _read(*_recorded("mcp-failed"))
    assert finished.error is None
    assert len(finished.notes) == 1


def test_a_terminal_line_in_a_tools_output_is_no_terminal_line() -> None:
    """It is inside a string."""
    lines, ended = _recorded("forged-in-tool")
    assert _read(lines, ended)[1].error is None
    assert _read(lines[:-1], ended)[1].error is AgentErrorCode.NO_ANSWER


@pytest.mark.parametrize("cut", range(1, 8))
def test_a_recording_cut_anywhere_is_no_success(cut: int) -> None:
    """Without its terminal line, whole, a turn has failed, whatever the exit code says."""
    lines, _ = _recorded("tools")
    assert _read(lines[:-cut])[1].error is AgentErrorCode.NO_ANSWER
    broken = [*lines[:-1], lines[-1][: -cut * 10]]
    assert _read(broken)[1].error is AgentErrorCode.NO_ANSWER


@pytest.mark.parametrize(
    "line",
    [
        *("", "null", "[]", "{", '{"type":', "\ufffd", '{"type":"new_kind","x":1}', "[" * 9000),
        *('{"type":"tool_use"}', '{"type":"message","role":"assistant","content":7}', "{}"),
        '{"type":"init","session_id":"../../etc/passwd"}',
    ],
)
def test_unknown_and_broken_lines_give_nothing(line: str) -> None:
    """Newer versions and stray output do not disturb."""
    lines, ended = _recorded("tools")
    events, finished = _read([line, *lines, line], ended)
    assert (events, finished) == _read(lines, ended)


@pytest.mark.parametrize("name", sorted(path.stem for path in _DATA.glob("*.jsonl")))
def test_no_recording_names_a_machine(name: str) -> None:
    """No path outside of the sandbox, no key."""
    text = (_DATA / f"{name}.jsonl").read_text()
    assert "/root" not in text
    assert "sk-ant-" not in text


def test_fast_and_bounded() -> None:
    """5 MB/s at least; of the output of tools nothing is kept."""
    lines, _ = _recorded("tools")
    output = {"status": "success", "output": "x" * 2000}
    big = json.dumps({"type": "tool_result", "tool_id": "t", **output})
    load = [*lines[:-1], *[big] * 5000]
    parser = GeminiParser()
    begun = time.process_time()
    for line in load:
        parser.feed(line)
    assert sum(map(len, load)) / (time.process_time() - begun) > 5e6
    tracemalloc.start()
    for line in load:
        parser.feed(line)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 100_000
