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
    MessageHeard,
    ToolFinished,
    ToolStarted,
    TurnFinished,
    UsageReported,
)
from tests.unit.agent_scripts.transcripts import ENDED, read, recorded, streamed

_THREAD = "01a205ad-54f2-7743-93f7-5bc5aee237f3"
_BEGUN = '{"method":"turn/started","params":{}}'
_DONE = '{"method":"turn/completed","params":{"turn":{"status":"completed","error":null}}}'


def _replay(name: str) -> tuple[list[AgentEvent], TurnFinished]:
    return read(CodexParser(), *recorded("codex", name))


def _read(*lines: str, ended: AgentExit = ENDED) -> tuple[list[AgentEvent], TurnFinished]:
    return read(CodexParser(), lines, ended)


def _item(kind: str, *, event: str = "completed", **fields: Any) -> str:
    item = {"id": "item_1", "type": kind, **fields}
    return json.dumps({"method": f"item/{event}", "params": {"item": item}})


def _failed(message: str, info: object = None) -> str:
    error = {"message": message, "codexErrorInfo": info}
    turn = {"status": "failed", "error": error}
    return json.dumps({"method": "turn/completed", "params": {"turn": turn}})


def _delta(text: str, item_id: str = "item_1") -> str:
    params = {"itemId": item_id, "delta": text}
    return json.dumps({"method": "item/agentMessage/delta", "params": params})


def _heard(message_id: str) -> str:
    return _item("userMessage", event="started", clientId=message_id)


_ANSWER = _item("agentMessage", text="Done.")


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
    """The broker counts it."""
    events, _ = _replay("resumed")
    assert not [event for event in events if isinstance(event, UsageReported)]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("status-401", AgentErrorCode.MODEL_AUTH_FAILED),
        ("status-403", AgentErrorCode.MODEL_AUTH_FAILED),
        ("status-404", AgentErrorCode.MODEL_NOT_FOUND),
        ("status-429", AgentErrorCode.MODEL_RATE_LIMITED),
        ("status-500", AgentErrorCode.MODEL_UNAVAILABLE),
        ("status-529", AgentErrorCode.MODEL_OVERLOADED),
        ("context", AgentErrorCode.MODEL_CONTEXT_EXCEEDED),
        ("garbage", AgentErrorCode.EXECUTION_FAILED),
        ("cut", AgentErrorCode.EXECUTION_FAILED),
        # It does not tell that the model refused: it ends well, without a word.
        ("refused", AgentErrorCode.NO_ANSWER),
        ("session-unknown", AgentErrorCode.SESSION_NOT_FOUND),
        ("stopped", AgentErrorCode.EXECUTION_FAILED),
    ],
)
def test_recorded_failures_have_their_codes(name: str, code: AgentErrorCode) -> None:
    """By a word or the status of its model; what the CLI says of it is for the operator and never the answer."""
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


@pytest.mark.parametrize("end", range(len(recorded("codex", "tools")[0])))
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
    begun = _item("commandExecution", event="started", command="sleep 600")
    for lines in (
        (begun, _ANSWER),
        (_ANSWER, begun),
        (_ANSWER, begun, _item("commandExecution", command="sleep 600")),
        (_ANSWER, _delta("And", "item_2")),
        (),
    ):
        assert _read(*lines, ended=idle)[1].error is AgentErrorCode.IDLE
    assert _read(_ANSWER, _failed("x"), ended=idle)[1].error is AgentErrorCode.IDLE
    late = AgentExit(exit_code=143, reason="timeout")
    assert _read(_ANSWER, ended=late)[1].error is AgentErrorCode.TIMEOUT


@pytest.mark.parametrize("end", range(len(recorded("codex", "tools")[0])))
def test_a_recorded_turn_that_goes_silent(end: int) -> None:
    """It is an answer behind a whole message alone; that one may have stood before a tool, which the note allows for."""
    lines, _ = recorded("codex", "tools")
    idle = AgentExit(exit_code=143, reason="idle")
    finished = _read(*lines[:end], ended=idle)[1]
    told = [one for one in map(json.loads, lines[:end]) if "item" in one.get("params", {})]
    last = told[-1] if told else {}
    is_message = last.get("method") == "item/completed" and (
        last["params"]["item"]["type"] == "agentMessage"
    )
    is_writing = end > 0 and "item/agentMessage/delta" in lines[end - 1]
    is_answer = is_message and not is_writing
    assert finished.error is (None if is_answer else AgentErrorCode.IDLE)


def test_a_bad_exit_after_the_end_is_a_failure() -> None:
    """Both must be good."""
    finished = _read(_ANSWER, _DONE, ended=AgentExit(exit_code=1, reason="exited"))[1]
    assert finished.error is AgentErrorCode.EXECUTION_FAILED


@pytest.mark.parametrize(
    ("info", "code"),
    [
        (None, AgentErrorCode.EXECUTION_FAILED),
        ("other", AgentErrorCode.EXECUTION_FAILED),
        ({"responseStreamDisconnected": None}, AgentErrorCode.EXECUTION_FAILED),
        ({"responseStreamDisconnected": {"httpStatusCode": None}}, AgentErrorCode.EXECUTION_FAILED),
        ({"httpConnectionFailed": {"httpStatusCode": 402}}, AgentErrorCode.MODEL_BILLING),
        ("usageLimitExceeded", AgentErrorCode.MODEL_BILLING),
        ("serverOverloaded", AgentErrorCode.MODEL_OVERLOADED),
    ],
)
def test_whatever_it_says_of_a_failure(info: object, code: AgentErrorCode) -> None:
    """It is one, though it has answered before; of its words only the one for a model that came to its limit is read."""
    assert _read(_ANSWER, _failed("429 Too Many Requests", info), _DONE)[1].error is code
    cut = "stream disconnected before completion: Incomplete response returned, reason: max_output_tokens"
    assert _read(_ANSWER, _failed(cut, info), _DONE)[1].error is AgentErrorCode.OUTPUT_LIMIT


def test_a_request_that_it_refuses() -> None:
    """Is a failure before the turn; a message that came too late for it is not."""
    refused = json.dumps({"id": 4, "error": {"code": -32600, "message": "no"}})
    assert _read(refused)[1].detail.startswith("no (")
    assert _read(_BEGUN, _ANSWER, refused, _DONE)[1].error is None


def test_what_is_written_is_shown_as_it_comes() -> None:
    """A message whose pieces were shown is not shown again, and one that broke off is no answer."""
    whole = _item("agentMessage", text="Hello there.")
    cut = _delta("Hel", "item_0")
    events, finished = _read(cut, _delta("Hello "), _delta("there."), whole, _DONE)
    assert streamed(events) == "Hel\n\nHello there."
    assert finished.text == "Hello there."


def test_a_message_that_is_heard() -> None:
    """What was answered whole before it stands before the next answer; what was broken off, or said before a tool, does not."""
    begun = _item("commandExecution", event="started", command="ls")
    ended = begun.replace("started", "completed")
    heard = MessageHeard(message_id="run_1")
    events, finished = _read(_ANSWER, _heard("run_1"), _item("agentMessage", text="More."), _DONE)
    assert heard in events
    assert finished.text == "Done.\n\nMore."
    for before in ([_delta("Do")], [_ANSWER, begun, ended]):
        events, finished = _read(*before, _heard("run_1"), _item("agentMessage", text="B"), _DONE)
        assert heard in events
        assert finished.text == "B"
    assert _read(_ANSWER, _heard("run_1"), _DONE)[1].error is AgentErrorCode.NO_ANSWER


def test_other_tools() -> None:
    """A change of files is told once; a call of MCP has its server's name."""
    changed = _item("fileChange", changes=[{"path": "a"}, {"path": "b"}], status="completed")
    call = _item("mcpToolCall", event="started", server="s", tool="t", arguments={"path": "x"})
    refused = _item("mcpToolCall", server="s", tool="t", status="failed", error={"message": "no"})
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
    odd = '{"id":2,"result":{"thread":{"id":"--help"}}}'
    good = odd.replace("--help", _THREAD)
    other = good.replace("01a2", "ffff")
    assert _read(odd, _ANSWER, _DONE)[1].agent_session_id is None
    assert _read(odd, good, other, _ANSWER, _DONE)[1].agent_session_id == _THREAD


@pytest.mark.parametrize(
    "line",
    [
        '{"method":"turn/plan/updated","params":{"turnId":"x","plan":[]}}',
        '{"method":"item/completed","params":{"item":[]}}',
        '{"method":"item/completed","params":[]}',
        '{"method":"item/completed","params":{"item":{"id":1,"type":"agentMessage","text":"x"}}}',
        '{"method":"thread/shaken","params":{}}',
        '{"method":["turn/completed"],"params":{}}',
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
                    st.sampled_from(["method", "params", "item", "id", "type", "error"]), inner
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
    line = _item("commandExecution", command="/bin/sh -c 'ls -la'", aggregatedOutput=output)
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
