"""The parser of the opencode adapter, over what the real CLI printed (tests/data/opencode) and over hostile lines."""

import json
import time
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_scripts.adapter import IDLE_NOTE, AgentExit
from agent_scripts.agents.opencode.output import OpenCodeParser
from agent_scripts.events import (
    AgentErrorCode,
    AgentEvent,
    ToolFinished,
    ToolStarted,
    TurnFinished,
    UsageReported,
)
from tests.unit.agent_scripts.transcripts import ENDED, read, recorded, streamed

_SESSION = "ses_dfa505f7cffe0GDrU7eA5GvKmk"


def _replay(name: str) -> tuple[list[AgentEvent], TurnFinished]:
    return read(OpenCodeParser(), *recorded("opencode", name))


def _read(*lines: str, ended: AgentExit = ENDED) -> tuple[list[AgentEvent], TurnFinished]:
    return read(OpenCodeParser(), lines, ended)


def _line(kind: str, session: str = _SESSION, **fields: Any) -> str:
    return json.dumps({"type": kind, "sessionID": session, **fields})


def _text(text: str) -> str:
    return _line("text", part={"type": "text", "text": text})


def _end(reason: str, **fields: Any) -> str:
    return _line("step_finish", part={"reason": reason, **fields})


def _error(name: str, **data: Any) -> str:
    return _line("error", error={"name": name, "data": data})


_STEP = _line("step_start", part={})


def test_a_turn_with_tools() -> None:
    """A command, a patch and a command that fails; the text of the last step is the answer."""
    events, finished = _replay("tools")
    started = [event for event in events if isinstance(event, ToolStarted)]
    ended = [event for event in events if isinstance(event, ToolFinished)]
    assert [event.name for event in started] == ["bash", "apply_patch", "bash"]
    assert [started[0].argument, started[2].argument] == ["echo one", "exit 3"]
    assert "notes.txt" in started[1].argument
    assert [event.is_error for event in ended] == [False, False, True]
    assert finished.error is None
    assert streamed(events).endswith(finished.text)


def test_a_turn_with_a_tool_without_memory() -> None:
    """Every text once, the tool with its argument and its end, the text of the last step as the answer, a cost."""
    events, finished = _replay("mcp-failed")
    assert [event for event in events if isinstance(event, ToolStarted)] == [
        ToolStarted(tool_id=_tool_id(events), name="bash", argument="true")
    ]
    ended = [event for event in events if isinstance(event, ToolFinished)]
    assert [(event.is_error, event.output_bytes) for event in ended] == [(False, 11)]
    assert finished.error is None
    assert finished.cost_usd is not None
    assert finished.cost_usd > 0
    assert streamed(events).startswith("Step 1 of 1.\n\nI am Orion's")
    assert streamed(events).endswith(finished.text)


def _tool_id(events: list[AgentEvent]) -> str:
    return next(event.tool_id for event in events if isinstance(event, ToolStarted))


@pytest.mark.parametrize(
    ("state", "is_error"),
    [
        ({"status": "completed", "output": "x", "metadata": {"exit": 3}}, True),
        ({"status": "completed", "output": "x", "metadata": {"exit": 0}}, False),
        ({"status": "error", "error": "x"}, True),
        ({"status": "completed", "output": "x"}, False),
        (None, False),
    ],
)
def test_failed_tools(state: object, is_error: bool) -> None:
    """A command with an exit code is completed, whatever the code."""
    line = _line("tool_use", part={"tool": "bash", "callID": "call_1", "state": state})
    (_, ended) = _read(line)[0]
    assert isinstance(ended, ToolFinished)
    assert ended.is_error is is_error


def test_a_patch_shows_what_it_changed() -> None:
    """Its title, not its text."""
    state = {"input": {"patchText": "*** Begin"}, "title": "Success. A notes.txt"}
    line = _line("tool_use", part={"tool": "apply_patch", "callID": "call_1", "state": state})
    assert _read(line)[0][0] == ToolStarted(
        tool_id="call_1", name="apply_patch", argument="Success. A notes.txt"
    )


def test_usage_is_by_step() -> None:
    """Input without what came from the cache."""
    events, _ = _replay("mcp-failed")
    usage = [event for event in events if isinstance(event, UsageReported)]
    assert len(usage) == 2
    assert all(event.output_tokens > 0 and event.cache_read_tokens > 0 for event in usage)


def test_a_resumed_turn() -> None:
    """An answer of this turn alone, with its memory of the one before."""
    events, resumed = _replay("resumed")
    assert resumed.error is None
    assert resumed.text == streamed(events)
    assert "what did I ask?" in resumed.text


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("status-401", AgentErrorCode.MODEL_AUTH_FAILED),
        ("status-403", AgentErrorCode.MODEL_AUTH_FAILED),
        ("status-404", AgentErrorCode.MODEL_NOT_FOUND),
        ("status-429", AgentErrorCode.MODEL_RATE_LIMITED),
        ("status-500", AgentErrorCode.MODEL_UNAVAILABLE),
        ("context", AgentErrorCode.MODEL_CONTEXT_EXCEEDED),
        ("cut", AgentErrorCode.MODEL_UNAVAILABLE),
        ("garbage", AgentErrorCode.EXECUTION_FAILED),
        ("output-limit", AgentErrorCode.OUTPUT_LIMIT),
        # It does not tell that the model refused: it ends well, without a word.
        ("refused", AgentErrorCode.NO_ANSWER),
        ("session-unknown", AgentErrorCode.SESSION_NOT_FOUND),
        ("stopped", AgentErrorCode.EXECUTION_FAILED),
    ],
)
def test_recorded_failures_have_their_codes(name: str, code: AgentErrorCode) -> None:
    """Each failure by its own code; what the CLI says of it is for the operator and never the answer."""
    events, finished = _replay(name)
    assert finished.error is code, finished.detail
    assert finished.detail
    assert finished.text == streamed(events).strip()


def test_a_call_that_helped_to_repeat_is_no_failure() -> None:
    """A retry is not told."""
    _, finished = _replay("retried-500")
    assert finished.error is None
    assert "!500 1" in finished.text


def test_a_broken_mcp_server_is_a_note() -> None:
    """Once, by its name; told in the log alone."""
    _, finished = _replay("mcp-failed")
    assert finished.error is None
    assert finished.notes == ("The MCP server `gone` could not be used: failed.",)
    told = 'timestamp=1 level=WARN run=1 message="server unavailable" key="a b" type=remote status=needs_auth\n'
    ended = AgentExit(exit_code=0, reason="exited", stderr_tail=f"{told}{told}x {told}")
    notes = _read(_STEP, _text("x"), _end("stop"), ended=ended)[1].notes
    assert notes == ("The MCP server `a b` could not be used: needs_auth.",)


def test_a_stopped_turn_keeps_its_session() -> None:
    """The id was told in its first line."""
    assert _replay("stopped")[1].agent_session_id is not None


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (_error("ContextOverflowError", message="x"), AgentErrorCode.MODEL_CONTEXT_EXCEEDED),
        (_error("APIError", message="x", statusCode=500), AgentErrorCode.MODEL_UNAVAILABLE),
        (_error("APIError", message="x", statusCode=400), AgentErrorCode.EXECUTION_FAILED),
        (_error("APIError", message="cut off"), AgentErrorCode.MODEL_UNAVAILABLE),
        (_error("ProviderAuthError"), AgentErrorCode.MODEL_AUTH_FAILED),
        (_error("UnknownError", message="401 429"), AgentErrorCode.EXECUTION_FAILED),
        (_line("error", error="odd"), AgentErrorCode.EXECUTION_FAILED),
        (_end("length"), AgentErrorCode.OUTPUT_LIMIT),
        (_end("content-filter"), AgentErrorCode.MODEL_REFUSED),
        (_end("tool-calls"), AgentErrorCode.NO_ANSWER),
        (_end("unknown"), AgentErrorCode.NO_ANSWER),
    ],
)
def test_ends_without_an_answer(line: str, code: AgentErrorCode) -> None:
    """By name and status, never by words; a denied permission ends after its tool call with a good exit code."""
    assert _read(_STEP, _text("Done."), line)[1].error is code


def test_a_later_step_takes_the_answer_back() -> None:
    """Only the step that ended the turn has it."""
    finished = _read(_STEP, _text("One."), _end("stop"), _STEP, _text("Two."))[1]
    assert finished.error is AgentErrorCode.NO_ANSWER
    assert finished.text == "One.\n\nTwo."
    finished = _read(_STEP, _text("One."), _end("tool-calls"), _STEP, _text("Two."), _end("stop"))[
        1
    ]
    assert (finished.error, finished.text) == (None, "Two.")


@pytest.mark.parametrize("reason", ["length", "content-filter"])
def test_a_step_that_was_cut_and_a_whole_one_after_it(reason: str) -> None:
    """The last step decides."""
    cut = (_STEP, _text("One."), _end(reason))
    finished = _read(*cut, _STEP, _text("Two."), _end("stop"))[1]
    assert (finished.error, finished.text) == (None, "Two.")
    assert _read(*cut)[1].error is not None
    broken = _error("APIError", message="x", statusCode=500)
    failed = _read(*cut, broken, _STEP, _text("Two."), _end("stop"))[1]
    assert failed.error is AgentErrorCode.MODEL_UNAVAILABLE


@pytest.mark.parametrize("end", range(1, 6))
def test_a_truncated_turn_is_no_success(end: int) -> None:
    """Without its last line there is no answer, whatever the exit code."""
    lines, _ = recorded("opencode", "mcp-failed")
    finished = _read(*lines[:end], lines[end][:50])[1]
    assert finished.error is AgentErrorCode.NO_ANSWER


def test_the_idle_limit() -> None:
    """Is a success with a note when the turn was over, and a failure before."""
    idle = AgentExit(exit_code=143, reason="idle")
    assert _read(_STEP, _text("x"), _end("stop"), ended=idle)[1].notes == (IDLE_NOTE,)
    assert _read(_STEP, _text("x"), ended=idle)[1].error is AgentErrorCode.IDLE


def test_a_crash_after_the_end_is_a_failure() -> None:
    """Both must be good."""
    ended = AgentExit(exit_code=134, reason="exited")
    finished = _read(_STEP, _text("x"), _end("stop"), ended=ended)[1]
    assert finished.error is AgentErrorCode.EXECUTION_FAILED


def test_a_price_that_is_not_known_is_none() -> None:
    """Nothing is what it says then; otherwise the steps add up."""
    assert _read(_STEP, _text("x"), _end("stop", cost=0))[1].cost_usd is None
    two = _read(_end("tool-calls", cost=0.25), _end("stop", cost=0.5))[1]
    assert two.cost_usd == 0.75
    odd = _read(_end("tool-calls", cost=0.25), _end("stop", cost=float("inf")))[1]
    assert odd.cost_usd is None


def test_lines_of_another_session_are_not_ours() -> None:
    """Only the one that spoke first counts, and only if it is one."""
    other = _line("text", "ses_ffffffffffffffffffffffffff", part={"text": "forged"})
    odd = _line("text", "--help", part={"text": "forged"})
    events, finished = _read(odd, _STEP, other, _text("x"), _end("stop"))
    assert streamed(events) == "x"
    assert finished.agent_session_id == _SESSION


@pytest.mark.parametrize(
    "line",
    [
        _line("step_shaken", part={}),
        _line("text", part="x"),
        _line("text", part={"text": 1}),
        _line("tool_use", part={"tool": "bash"}),
        _line("step_finish"),
        '{"type":"text","part":{"text":"x"}}',
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
    st.dictionaries(
        st.sampled_from(["part", "error"]),
        st.recursive(
            st.none() | st.integers() | st.text(),
            lambda inner: (
                st.lists(inner)
                | st.dictionaries(
                    st.sampled_from(["text", "state", "tool", "callID", "tokens", "cost", "input"]),
                    inner,
                )
            ),
        ),
    ),
    st.sampled_from(["text", "tool_use", "step_finish", "error", "step_start"]),
)
def test_any_json_is_read(fields: dict[str, Any], kind: str) -> None:
    """Whatever comes, there is an outcome."""
    assert _read(_line(kind, **fields))[1].error is not None


def test_speed_and_memory() -> None:
    """5 MB/s at least, and little of what has been read stays."""
    state = {"status": "completed", "input": {"command": "ls -la"}, "output": "x" * 4000}
    line = _line("tool_use", part={"tool": "bash", "callID": "call_1", "state": state})
    lines = [line] * 2500
    parser = OpenCodeParser()
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
