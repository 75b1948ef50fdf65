"""The parser of the copilot adapter, over what the real CLI printed (tests/data/copilot) and over hostile lines."""

import json
import time
import tracemalloc
from pathlib import Path

import pytest

from agent_scripts.adapter import IDLE_NOTE, UNENDED_NOTE, AgentExit
from agent_scripts.agents.copilot.output import CopilotParser
from agent_scripts.events import (
    AgentErrorCode,
    AgentEvent,
    TextDelta,
    ToolFinished,
    ToolStarted,
    TurnFinished,
)

_DATA = Path("tests/data/copilot")
_VERSION = "1.0.102"
_SESSION = "5e551000-0000-4000-8000-000000000001"
_ENDED = AgentExit(exit_code=0, reason="exited")


def _recorded(name: str) -> tuple[list[str], AgentExit]:
    *lines, last = (_DATA / f"{_VERSION}-{name}.jsonl").read_text().splitlines()
    return lines, AgentExit(**json.loads(last))


def _read(lines: list[str], ended: AgentExit = _ENDED) -> tuple[list[AgentEvent], TurnFinished]:
    parser = CopilotParser()
    events = [event for line in lines for event in parser.feed(line)]
    return events, parser.finish(ended)


def _streamed(events: list[AgentEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def test_a_turn_with_tools() -> None:
    """Every text once, every tool with its argument, its end and its failure, the answer from the last message."""
    events, finished = _read(*_recorded("tools"))
    assert finished.error is None, finished.detail
    started = [event for event in events if isinstance(event, ToolStarted)]
    assert [(event.name, event.argument) for event in started] == [
        ("bash", "echo one"),
        ("create", "notes.txt"),
        ("bash", "exit 3"),
    ]
    ended = [event for event in events if isinstance(event, ToolFinished)]
    assert [event.tool_id for event in ended] == [event.tool_id for event in started]
    assert [event.is_error for event in ended] == [False, False, True]
    assert finished.agent_session_id == _SESSION
    assert finished.text.startswith("I am Orion's offline model.")
    text = _streamed(events)
    assert text.startswith("Step 1 of 3.\n\nStep 2 of 3.\n\nStep 3 of 3.\n\n")
    assert text.strip().endswith(finished.text)
    assert text.count(finished.text) == 1


def test_a_resumed_turn_remembers() -> None:
    """The follow-up's answer quotes the turn before."""
    _, finished = _read(*_recorded("resumed"))
    assert finished.error is None
    assert "run: echo one" in finished.text


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("status-401", AgentErrorCode.MODEL_AUTH_FAILED),
        ("status-403", AgentErrorCode.MODEL_AUTH_FAILED),
        ("status-404", AgentErrorCode.MODEL_NOT_FOUND),
        ("status-429", AgentErrorCode.MODEL_RATE_LIMITED),
        ("status-500", AgentErrorCode.MODEL_UNAVAILABLE),
        ("garbage", AgentErrorCode.MODEL_UNAVAILABLE),
        ("status-529", AgentErrorCode.MODEL_OVERLOADED),
        ("context", AgentErrorCode.MODEL_CONTEXT_EXCEEDED),
        ("refused", AgentErrorCode.MODEL_REFUSED),
        ("cut", AgentErrorCode.MODEL_UNAVAILABLE),
        ("session-unknown", AgentErrorCode.SESSION_NOT_FOUND),
        ("stopped", AgentErrorCode.EXECUTION_FAILED),
    ],
)
def test_recorded_failures_have_their_codes(name: str, code: AgentErrorCode) -> None:
    """Each failure by its own code; what the CLI says of it is for the operator and never the answer."""
    _, finished = _read(*_recorded(name))
    assert finished.error is code, finished.detail
    assert finished.detail
    assert "Failed to get response" not in finished.text
    assert "content filtering" not in finished.text


def test_a_call_that_helped_to_repeat_is_no_failure() -> None:
    """A retry is told in lines of its own, which are neither text nor outcome."""
    _, finished = _read(*_recorded("retried-529"))
    assert finished.error is None, finished.detail
    assert "!529 1" in finished.text


def test_a_result_that_says_0_after_an_error_is_no_success() -> None:
    """A cancelled one says 0; a session's error overrules it."""
    lines, _ = _recorded("context")
    told = json.loads(lines[-1])
    lines = [*lines[:-1], json.dumps({**told, "exitCode": 0})]
    assert _read(lines)[1].error is AgentErrorCode.MODEL_CONTEXT_EXCEEDED


def test_an_agent_under_the_agent_does_not_speak() -> None:
    """What it says is no part of the answer."""
    data = {"messageId": "x", "content": "inner", "toolRequests": [], "parentToolCallId": "t"}
    lines, ended = _recorded("tools")
    inner = json.dumps({"type": "assistant.message", "data": data})
    assert _read([*lines[:-1], inner, lines[-1]], ended) == _read(lines, ended)


def test_without_streaming_the_whole_messages_are_the_text() -> None:
    """Each once, with a blank line between."""
    lines, ended = _recorded("tools")
    whole = [line for line in lines if "message_delta" not in line and "message_start" not in line]
    assert _streamed(_read(whole, ended)[0]).split() == _streamed(_read(lines, ended)[0]).split()
    assert _read(whole, ended)[1].error is None


def test_an_answer_before_the_idle_limit_counts() -> None:
    """The CLI said that it was done, or asked for no tool in its last message, and did not end; while it works it is none."""
    lines, _ = _recorded("tools")
    idle = AgentExit(exit_code=None, reason="idle")
    _, finished = _read(lines, idle)
    assert (finished.error, finished.notes) == (None, (IDLE_NOTE,))
    unended = _read(lines[:-1], idle)[1]
    assert (unended.error, unended.text) == (None, finished.text)
    assert unended.notes == (UNENDED_NOTE,)
    (last,) = [at for at, line in enumerate(lines) if '"toolRequests":[]' in line]
    for end in range(last):
        assert _read(lines[:end], idle)[1].error is AgentErrorCode.IDLE
    late = AgentExit(exit_code=None, reason="timeout")
    assert _read(lines[:-1], late)[1].error is AgentErrorCode.TIMEOUT


def test_messages_without_ids() -> None:
    """A whole one that did not come in pieces is text; one that did is no text twice."""
    data = {"content": "x", "toolRequests": [{}]}
    whole = json.dumps({"type": "assistant.message", "data": data})
    assert _streamed(_read([whole])[0]) == "x"
    begun = json.dumps({"type": "assistant.message_start", "data": {}})
    piece = json.dumps({"type": "assistant.message_delta", "data": {"deltaContent": "x"}})
    assert _streamed(_read([begun, piece, whole])[0]) == "x"


def test_a_broken_mcp_server_is_noted() -> None:
    """The turn goes on without it."""
    _, finished = _read(*_recorded("mcp-failed"))
    assert finished.error is None
    assert finished.notes == ("The MCP server `gone` could not be used: failed.",)


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
        *("", "null", "[]", "{", '{"type":', "\ufffd", '{"type":"new.kind","data":{}}', "[" * 9000),
        *('{"type":"result.x"}', '{"type":"assistant.message_delta","data":{}}', "{}"),
        '{"type":"session.mcp_server_status_changed","data":7}',
    ],
)
def test_unknown_and_broken_lines_give_nothing(line: str) -> None:
    """Newer versions and stray output do not disturb."""
    lines, ended = _recorded("tools")
    assert _read([line, *lines, line], ended) == _read(lines, ended)


@pytest.mark.parametrize("name", sorted(path.stem for path in _DATA.glob("*.jsonl")))
def test_no_recording_names_a_machine(name: str) -> None:
    """No path outside of the sandbox, no key."""
    text = (_DATA / f"{name}.jsonl").read_text()
    assert "/root" not in text
    assert "sk-ant-" not in text


def test_fast_and_bounded() -> None:
    """5 MB/s at least; of the output of tools nothing is kept."""
    lines, _ = _recorded("tools")
    data = {"toolCallId": "t", "success": True, "result": {"content": "x" * 2000}}
    big = json.dumps({"type": "tool.execution_complete", "data": data})
    load = [*lines[:-1], *[big] * 5000]
    parser = CopilotParser()
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
