"""The parser of the codex adapter, over what the real CLI printed (tests/data/codex) and over hostile lines."""

import json
import time
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_scripts.adapter import IDLE_NOTE, UNENDED_NOTE, AgentExit
from agent_scripts.agents.codex.output import CodexParser
from agent_scripts.events import (
    AgentErrorCode,
    AgentEvent,
    ToolFinished,
    ToolStarted,
    TurnFinished,
    UsageReported,
)
from tests.unit.agent_scripts.transcripts import ENDED, read, recorded, streamed

_THREAD = "01a205ad-54f2-7743-93f7-5bc5aee237f3"
_DONE = '{"type":"turn.completed","usage":{}}'


def _replay(name: str) -> tuple[list[AgentEvent], TurnFinished]:
    return read(CodexParser(), *recorded("codex", name))


def _read(*lines: str, ended: AgentExit = ENDED) -> tuple[list[AgentEvent], TurnFinished]:
    return read(CodexParser(), lines, ended)


def _item(kind: str, *, event: str = "completed", **fields: Any) -> str:
    return json.dumps({"type": f"item.{event}", "item": {"id": "item_1", "type": kind, **fields}})


def _failed(message: str) -> str:
    return json.dumps({"type": "turn.failed", "error": {"message": message}})


_ANSWER = _item("agent_message", text="Done.")


def test_a_turn_with_tools() -> None:
    """Every text once, every tool with its command out of its shell, its end and its failure, the last text as the answer."""
    events, finished = _replay("tools")
    started = [event for event in events if isinstance(event, ToolStarted)]
    ended = [event for event in events if isinstance(event, ToolFinished)]
    assert {event.name for event in started} == {"shell"}
    assert started[0].argument == "echo one"
    assert started[1].argument.endswith("> notes.txt")
    assert [event.tool_id for event in ended] == [event.tool_id for event in started]
    assert [event.is_error for event in ended] == [False, False, True]
    assert ended[0].output_bytes == 4
    assert finished.error is None
    assert finished.cost_usd is None
    assert streamed(events).startswith(
        "Step 1 of 3.\n\nStep 2 of 3.\n\nStep 3 of 3.\n\nI am Orion's"
    )
    assert streamed(events).endswith(finished.text)


def test_a_resumed_turn() -> None:
    """The same thread, and an answer of this turn alone."""
    _, first = _replay("tools")
    events, resumed = _replay("resumed")
    assert first.agent_session_id is not None
    assert resumed.agent_session_id == first.agent_session_id
    assert resumed.error is None
    assert resumed.text == streamed(events)
    assert "what did I ask?" in resumed.text


def test_no_usage_is_reported() -> None:
    """What it tells is the sum over the thread."""
    events, _ = _replay("resumed")
    assert not [event for event in events if isinstance(event, UsageReported)]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("status-401", AgentErrorCode.EXECUTION_FAILED),
        ("status-403", AgentErrorCode.EXECUTION_FAILED),
        ("status-404", AgentErrorCode.EXECUTION_FAILED),
        ("status-429", AgentErrorCode.EXECUTION_FAILED),
        ("status-500", AgentErrorCode.EXECUTION_FAILED),
        ("status-529", AgentErrorCode.EXECUTION_FAILED),
        ("context", AgentErrorCode.EXECUTION_FAILED),
        ("garbage", AgentErrorCode.EXECUTION_FAILED),
        ("cut", AgentErrorCode.EXECUTION_FAILED),
        # It does not tell that the model refused: it ends well, without a word.
        ("refused", AgentErrorCode.NO_ANSWER),
        ("session-unknown", AgentErrorCode.SESSION_NOT_FOUND),
        ("stopped", AgentErrorCode.EXECUTION_FAILED),
    ],
)
def test_recorded_failures_have_their_codes(name: str, code: AgentErrorCode) -> None:
    """What its models said is the broker's to know; what the CLI says of it is for the operator and never the answer."""
    events, finished = _replay(name)
    assert finished.error is code, finished.detail
    assert finished.detail
    assert finished.text == streamed(events).strip()


def test_a_call_that_helped_to_repeat_is_no_failure() -> None:
    """A retry is told in a line of its own, which is neither text nor outcome."""
    _, finished = _replay("retried-500")
    assert finished.error is None
    assert "!500 1" in finished.text


def test_a_stopped_turn_keeps_its_thread() -> None:
    """The id was told at once."""
    assert _replay("stopped")[1].agent_session_id is not None


def test_a_broken_mcp_server_is_a_note() -> None:
    """Once, by its name; that the model is new to the CLI is none."""
    _, finished = _replay("mcp-failed")
    assert finished.error is None
    assert finished.notes == ("The MCP server `gone` could not be used: failed.",)


@pytest.mark.parametrize("end", range(8))
def test_a_truncated_turn_is_no_success(end: int) -> None:
    """Without its last line there is no answer, whatever the exit code."""
    lines, _ = recorded("codex", "tools")
    finished = _read(*lines[:end], lines[end][:50])[1]
    assert finished.error is AgentErrorCode.NO_ANSWER


def test_the_idle_limit() -> None:
    """Is a success with a note when the turn was over, or its newest word is a message, and a failure while it works."""
    idle = AgentExit(exit_code=143, reason="idle")
    assert _read(_ANSWER, _DONE, ended=idle)[1].notes == (IDLE_NOTE,)
    unended = _read(_ANSWER, ended=idle)[1]
    assert (unended.error, unended.text, unended.notes) == (None, "Done.", (UNENDED_NOTE,))
    begun = _item("command_execution", event="started", command="sleep 600")
    for lines in (
        (begun, _ANSWER),
        (_ANSWER, begun),
        (_ANSWER, begun, _item("command_execution", command="sleep 600")),
        (),
    ):
        assert _read(*lines, ended=idle)[1].error is AgentErrorCode.IDLE
    assert _read(_ANSWER, _failed("x"), ended=idle)[1].error is AgentErrorCode.IDLE
    late = AgentExit(exit_code=143, reason="timeout")
    assert _read(_ANSWER, ended=late)[1].error is AgentErrorCode.TIMEOUT


@pytest.mark.parametrize("end", range(9))
def test_a_recorded_turn_that_goes_silent(end: int) -> None:
    """It is an answer behind a message alone; that one may have stood before a tool, which the note allows for."""
    lines, _ = recorded("codex", "tools")
    idle = AgentExit(exit_code=143, reason="idle")
    finished = _read(*lines[:end], ended=idle)[1]
    is_message = end > 0 and '"agent_message"' in lines[end - 1]
    assert finished.error is (None if is_message else AgentErrorCode.IDLE)


def test_a_bad_exit_after_the_end_is_a_failure() -> None:
    """Both must be good."""
    finished = _read(_ANSWER, _DONE, ended=AgentExit(exit_code=1, reason="exited"))[1]
    assert finished.error is AgentErrorCode.EXECUTION_FAILED


@pytest.mark.parametrize("message", ["Quota exceeded.", "unexpected status 401 x", ""])
def test_whatever_it_says_of_a_failure(message: str) -> None:
    """It is one, though it has answered before."""
    assert _read(_ANSWER, _failed(message), _DONE)[1].error is AgentErrorCode.EXECUTION_FAILED


def test_other_tools() -> None:
    """A change of files is told once; a call of MCP has its server's name."""
    changed = _item("file_change", changes=[{"path": "a"}, {"path": "b"}], status="completed")
    call = _item("mcp_tool_call", event="started", server="s", tool="t", arguments={"path": "x"})
    refused = _item("mcp_tool_call", server="s", tool="t", status="failed", error={"message": "no"})
    events = _read(changed, call, refused)[0]
    assert events[:3] == [
        ToolStarted(tool_id="item_1", name="apply_patch", argument="a, b"),
        ToolFinished(tool_id="item_1", is_error=False, output_bytes=0),
        ToolStarted(tool_id="item_1", name="s.t", argument="x"),
    ]
    assert isinstance(events[3], ToolFinished)
    assert events[3].is_error


def test_what_is_no_thread_is_no_session() -> None:
    """An id that no Codex makes is not passed on, and a second one changes nothing."""
    odd = '{"type":"thread.started","thread_id":"--help"}'
    good = json.dumps({"type": "thread.started", "thread_id": _THREAD})
    other = good.replace("01a2", "ffff")
    assert _read(odd, _ANSWER, _DONE)[1].agent_session_id is None
    assert _read(odd, good, other, _ANSWER, _DONE)[1].agent_session_id == _THREAD


@pytest.mark.parametrize(
    "line",
    [
        '{"type":"item.completed","item":{"id":"x","type":"todo_list","items":[]}}',
        '{"type":"item.completed","item":[]}',
        '{"type":"item.completed","item":{"id":1,"type":"agent_message","text":"x"}}',
        '{"type":"thread.shaken"}',
        '{"type":["turn.completed"]}',
        "{" * 100_000,
        "warning: nothing",
        "",
    ],
)
def test_unknown_lines_give_nothing(line: str) -> None:
    """Neither an event nor an end."""
    events, finished = _read(line)
    assert events == []
    assert finished.error is AgentErrorCode.NO_ANSWER


@given(
    st.lists(
        st.recursive(
            st.none() | st.integers() | st.text(),
            lambda inner: (
                st.lists(inner)
                | st.dictionaries(
                    st.sampled_from(["type", "item", "id", "text", "error", "command"]), inner
                )
            ),
            max_leaves=12,
        )
    )
)
def test_any_json_is_read(records: list[Any]) -> None:
    """Whatever comes, there is an outcome."""
    assert _read(*map(json.dumps, records))[1].error is not None


def test_speed_and_memory() -> None:
    """5 MB/s at least, and little of what has been read stays."""
    output = "x" * 4000
    line = _item("command_execution", command="/bin/sh -c 'ls -la'", aggregated_output=output)
    lines = [line] * 2500
    parser = CodexParser()
    tracemalloc.start()
    for one in lines[:500]:
        parser.feed(one)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 200_000
    started = time.process_time()
    for one in lines:
        parser.feed(one)
    assert sum(map(len, lines)) / (time.process_time() - started) > 5_000_000
