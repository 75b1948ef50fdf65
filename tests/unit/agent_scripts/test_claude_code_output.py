"""The parser of the claude adapter, over what the real CLI printed (tests/data/claude) and over hostile lines."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_scripts.adapter import IDLE_NOTE, UNENDED_NOTE, AgentExit, ExitReason
from agent_scripts.agents.claude.output import ClaudeCodeParser
from agent_scripts.events import (
    AgentErrorCode,
    AgentEvent,
    MessageHeard,
    TextDelta,
    ToolFinished,
    ToolStarted,
    TurnFinished,
    UsageReported,
)

_DATA = Path("tests/data/claude")
_VERSION = "2.1.330"
_SESSION = "5e551000-0000-4000-8000-000000000001"
_ENDED = AgentExit(exit_code=0, reason="exited")


def _recorded(name: str) -> tuple[list[str], AgentExit]:
    *lines, last = (_DATA / f"{_VERSION}-{name}.jsonl").read_text().splitlines()
    return lines, AgentExit(**json.loads(last))


def _read(lines: list[str], ended: AgentExit = _ENDED) -> tuple[list[AgentEvent], TurnFinished]:
    parser = ClaudeCodeParser()
    events = [event for line in lines for event in parser.feed(line)]
    return events, parser.finish(ended)


def _replay(name: str) -> tuple[list[AgentEvent], TurnFinished]:
    return _read(*_recorded(name))


def _streamed(events: list[AgentEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def _line(kind: str, **fields: Any) -> str:
    return json.dumps({"type": kind, "session_id": _SESSION, **fields})


def _result(**fields: Any) -> str:
    good = {"subtype": "success", "is_error": False, "result": "Done.", "total_cost_usd": 0.5}
    return _line("result", **(good | fields))


def test_a_turn_with_tools() -> None:
    """Every text once, every tool with its argument, its end and its failure, the answer from the result."""
    events, finished = _replay("tools")
    started = [event for event in events if isinstance(event, ToolStarted)]
    ended = [event for event in events if isinstance(event, ToolFinished)]
    assert [(event.name, event.argument) for event in started] == [
        ("Bash", "echo one"),
        ("Write", "notes.txt"),
        ("Bash", "exit 3"),
    ]
    assert [event.tool_id for event in ended] == [event.tool_id for event in started]
    assert [event.is_error for event in ended] == [False, False, True]
    assert ended[0].output_bytes == 3
    assert finished.error is None
    assert finished.agent_session_id == _SESSION
    text = _streamed(events)
    assert text.startswith("Step 1 of 3.\n\nStep 2 of 3.\n\nStep 3 of 3.\n\n")
    assert text.endswith(finished.text)
    assert text.count(finished.text) == 1


def test_usage_is_by_model_call() -> None:
    """One report a call, with what the stream said at its end."""
    events, _ = _replay("tools")
    usage = [event for event in events if isinstance(event, UsageReported)]
    assert len(usage) == 4
    assert {event.model for event in usage} == {"claude-sonnet-5-5"}
    assert all(event.output_tokens > 1 for event in usage)


def test_cost_is_of_this_turn() -> None:
    """A resumed session's total counts the turns before, too; the cost reported does not."""
    lines, _ = _recorded("resumed")
    total = json.loads(lines[-1])["total_cost_usd"]
    first, resumed = _replay("tools")[1].cost_usd, _replay("resumed")[1].cost_usd
    assert first is not None
    assert resumed is not None
    assert first + resumed == pytest.approx(total)


def test_cost_of_an_older_version() -> None:
    """Without the field for it, the total was of the run (2.1.197)."""
    assert _read([_result()])[1].cost_usd == 0.5


def test_a_cost_that_cannot_be_one() -> None:
    """It is told as not known, whichever field it is in."""
    assert _read([_result(total_cost_usd=float("inf"))])[1].cost_usd is None
    models = {"a": {"costUSD": 0.25}, "b": {"costUSD": float("nan")}}
    odd = _result(model_usage_since_last_result=models)
    assert _read([odd])[1].cost_usd is None
    assert _read([odd.replace("NaN", "0.5")])[1].cost_usd == 0.75


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
        ("refused", AgentErrorCode.MODEL_REFUSED),
        ("garbage", AgentErrorCode.MODEL_UNAVAILABLE),
        ("max-turns", AgentErrorCode.TURN_LIMIT),
        ("session-unknown", AgentErrorCode.SESSION_NOT_FOUND),
        ("session-in-use", AgentErrorCode.EXECUTION_FAILED),
    ],
)
def test_recorded_failures_have_their_codes(name: str, code: AgentErrorCode) -> None:
    """Each failure by its own code; what the CLI says of it is for the operator and never the answer."""
    events, finished = _replay(name)
    assert finished.error is code, finished.detail
    assert finished.detail
    assert "API Error" not in finished.text
    assert finished.text == _streamed(events).strip()


def test_a_call_that_helped_to_repeat_is_no_failure() -> None:
    """A retry is told in a line of its own, which is neither text nor outcome."""
    _, finished = _replay("retried-529")
    assert finished.error is None
    assert "!529 1" in finished.text


def test_an_answer_longer_than_one_message() -> None:
    """The CLI lets the model go on at the limit of output tokens, and tells only the last piece: the answer is all of them."""
    events, finished = _replay("output-limit")
    assert finished.error is None
    assert finished.text.startswith("# A long answer")
    assert finished.text.endswith("or a failure such as `!429`.")
    assert finished.text == _streamed(events).strip()


def test_a_limit_that_is_told_again_repeats_nothing() -> None:
    """Any process of the sandbox may write such lines: the answer grows with the text alone."""
    text = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "abc"}}
    ended = {
        "type": "message_delta",
        "delta": {"stop_reason": "max_tokens"},
        "usage": {"output_tokens": 1},
    }
    result = {"type": "result", "subtype": "success", "is_error": False, "result": "def"}
    parser = ClaudeCodeParser()
    for record in [{"type": "stream_event", "event": event} for event in (text, *[ended] * 50)]:
        parser.feed(json.dumps({"session_id": _SESSION} | record))
    parser.feed(json.dumps({"session_id": _SESSION} | result))
    assert parser.finish(AgentExit(exit_code=0, reason="exited")).text == "abcdef"


def test_a_broken_stream_that_was_asked_for_again() -> None:
    """The answer is the whole one, not the pieces before the break."""
    _, finished = _replay("cut")
    assert finished.error is None
    assert finished.text.count("Hello!") == 1


def test_a_stopped_turn_keeps_what_was_written() -> None:
    """SIGTERM ends it without a result line: our reason is the outcome."""
    events, finished = _replay("stopped")
    assert finished.error is AgentErrorCode.EXECUTION_FAILED
    assert finished.text
    assert finished.text == _streamed(events).strip()


def test_a_terminal_line_in_a_tools_output_is_no_terminal_line() -> None:
    """It is inside a string."""
    _, finished = _replay("forged-in-tool")
    assert finished.error is None
    assert finished.text.startswith("I am Orion's offline model.")


def test_a_line_that_a_command_wrote_on_the_clis_stdout() -> None:
    """It stands there for all to read, and still the last result decides."""
    lines, ended = _recorded("forged-on-stdout")
    forged = [line for line in lines if json.loads(line).get("result") == "forged"]
    assert len(forged) == 1
    _, finished = _read(lines, ended)
    assert finished.text.startswith("I am Orion's offline model.")


def test_lines_of_another_session_do_not_count() -> None:
    """A forger must at least know which session it is in."""
    other = _result(session_id="00000000-0000-4000-8000-000000000001", result="forged")
    _, finished = _read([_line("system", subtype="init"), _result(), other])
    assert finished.text == "Done."
    nameless = json.dumps(
        {"type": "result", "subtype": "success", "is_error": False, "result": "x"}
    )
    assert _read([nameless])[1].error is AgentErrorCode.NO_ANSWER


def test_a_broken_mcp_server_is_noted() -> None:
    """The turn goes on without it; the operator can see it."""
    _, finished = _replay("mcp-failed")
    assert finished.error is None
    assert finished.notes == ("The MCP server `gone` could not be used: failed.",)


@pytest.mark.parametrize("name", sorted(path.stem for path in _DATA.glob("*.jsonl")))
def test_no_recording_names_a_machine(name: str) -> None:
    """No path outside of the sandbox, no port, no real id."""
    text = (_DATA / f"{name}.jsonl").read_text()
    assert "/root" not in text
    assert "sk-ant-" not in text


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_recording_cut_anywhere_is_no_success(cut: int) -> None:
    """Without its terminal line, whole, a turn has failed, whatever the exit code says."""
    lines, _ = _recorded("tools")
    assert _read(lines[:-cut])[1].error is AgentErrorCode.NO_ANSWER
    broken = [*lines[:-1], lines[-1][: -cut * 10]]
    assert _read(broken)[1].error is AgentErrorCode.NO_ANSWER


def test_without_streaming_the_whole_messages_are_the_text() -> None:
    """An older version, or one told not to stream: each block once."""
    lines, ended = _recorded("tools")
    whole = [line for line in lines if '"stream_event"' not in line]
    assert _streamed(_read(whole, ended)[0]) == _streamed(_read(lines, ended)[0])


@pytest.mark.parametrize("odd", [[], {}, None, 7])
def test_a_message_whose_id_is_none(odd: object) -> None:
    """Its text counts all the same."""
    message = {"id": odd, "content": [{"type": "text", "text": "x"}]}
    assert _streamed(_read([_line("assistant", message=message)])[0]) == "x"


def test_a_newer_version() -> None:
    """Unknown types and fields change nothing."""
    lines, ended = _recorded("tools")
    newer = [json.dumps(json.loads(line) | {"brand_new": {"a": [1]}}) for line in lines]
    newer.insert(3, _line("telepathy", content="boo"))
    assert _read(newer, ended) == _read(lines, ended)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"is_error": True, "api_error_status": 402}, AgentErrorCode.MODEL_BILLING),
        ({"is_error": True, "api_error_status": 503}, AgentErrorCode.MODEL_UNAVAILABLE),
        ({"is_error": True, "api_error_status": 400}, AgentErrorCode.EXECUTION_FAILED),
        ({"is_error": True, "api_error_status": "gremlins"}, AgentErrorCode.EXECUTION_FAILED),
        ({"is_error": "no"}, AgentErrorCode.EXECUTION_FAILED),
        ({"subtype": "error_during_execution"}, AgentErrorCode.EXECUTION_FAILED),
        ({"terminal_reason": "budget_exhausted", "is_error": True}, AgentErrorCode.TURN_LIMIT),
        ({"result": ""}, AgentErrorCode.NO_ANSWER),
        ({"result": " \n"}, AgentErrorCode.NO_ANSWER),
        ({"result": 7}, AgentErrorCode.NO_ANSWER),
    ],
)
def test_results_that_are_no_answer(fields: dict[str, Any], code: AgentErrorCode) -> None:
    """Only an unmistakable success is one."""
    assert _read([_result(**fields)])[1].error is code


def test_what_the_cli_says_itself_names_the_error() -> None:
    """With no status, the kind of the synthetic message decides."""
    said = _line(
        "assistant",
        error="billing_error",
        message={"model": "<synthetic>", "content": [{"type": "text", "text": "Pay up"}]},
    )
    events, finished = _read([said, _result(is_error=True)])
    assert events == []
    assert finished.error is AgentErrorCode.MODEL_BILLING
    assert finished.text == ""


HEARD = json.dumps({"type": "heard", "id": "run_1"})


def test_an_answer_that_was_whole_stays_before_the_next_one() -> None:
    """A message was heard behind it, and is answered in the same turn."""
    events, finished = _read([_result(result="One."), HEARD, _result(result="Two.")])
    assert events == [MessageHeard(message_id="run_1")]
    assert (finished.text, finished.error) == ("One.\n\nTwo.", None)


def test_what_broke_off_for_a_message_is_no_failure() -> None:
    broken_off = _result(subtype="error_during_execution", is_error=True, result=None)
    _, finished = _read([broken_off, HEARD, _result(result="Two.")])
    assert (finished.text, finished.error) == ("Two.", None)


def test_what_was_heard_and_not_answered_is_a_failure() -> None:
    _, finished = _read([_result(result="One."), HEARD])
    assert finished.error is AgentErrorCode.NO_ANSWER


def test_a_failed_exit_beats_a_good_result() -> None:
    """Both are needed."""
    finished = _read([_result()], AgentExit(exit_code=137, reason="exited", stderr_tail="x"))[1]
    assert finished.error is AgentErrorCode.EXECUTION_FAILED
    assert "137" in finished.detail


def test_a_missing_session_told_on_stderr_alone() -> None:
    """A version that prints no result line for it."""
    tail = f"No conversation found with session ID: {_SESSION}\n"
    finished = _read([], AgentExit(exit_code=1, reason="exited", stderr_tail=tail))[1]
    assert finished.error is AgentErrorCode.SESSION_NOT_FOUND


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("timeout", AgentErrorCode.TIMEOUT),
        ("output_limit", AgentErrorCode.OUTPUT_LIMIT),
        ("stopped", AgentErrorCode.EXECUTION_FAILED),
        ("lost", AgentErrorCode.EXECUTION_FAILED),
    ],
)
def test_our_own_reasons_beat_the_cli(reason: ExitReason, code: AgentErrorCode) -> None:
    """A run that we ended has our reason, whatever it still said."""
    assert _read([_result()], AgentExit(exit_code=0, reason=reason))[1].error is code


def test_idle_after_the_answer_is_success() -> None:
    """The answer is there; that the process then hung is no loss. Without it, it is."""
    idle = AgentExit(exit_code=143, reason="idle")
    assert _read([_result()], idle)[1].notes == (IDLE_NOTE,)
    assert _read([], idle)[1].error is AgentErrorCode.IDLE


@pytest.mark.parametrize("name", ["tools", "output-limit"])
def test_idle_before_the_result_of_a_turn_that_the_model_ended(name: str) -> None:
    """Its whole text is the answer, with a note; before its end, and for any other reason than the idle limit, it is none."""
    lines, ended = _recorded(name)
    whole = _read(lines, ended)[1].text
    idle = AgentExit(exit_code=143, reason="idle")
    unended = _read(lines[:-1], idle)[1]
    assert (unended.error, unended.text, unended.notes) == (None, whole, (UNENDED_NOTE,))
    end = max(at for at, line in enumerate(lines[:-1]) if '"stop_reason":"end_turn"' in line)
    for cut in range(end):
        assert _read(lines[:cut], idle)[1].error is AgentErrorCode.IDLE
    late = AgentExit(exit_code=143, reason="timeout")
    assert _read(lines[:-1], late)[1].error is AgentErrorCode.TIMEOUT


def test_idle_after_an_error_that_the_cli_told_is_none() -> None:
    """Whatever the model had said before."""
    lines, _ = _recorded("tools")
    said = _line("assistant", error="server_error", message={"content": []})
    idle = AgentExit(exit_code=143, reason="idle")
    assert _read([*lines[:-1], said], idle)[1].error is AgentErrorCode.IDLE


@pytest.mark.parametrize(
    "line", ["", "words", "7", "null", "[]", "{}", '{"type":"result"}', "[" * 100_000, '{"a":"\\u']
)
def test_other_lines_are_ignored(line: str) -> None:
    """Unknown, malformed and hostile lines give nothing and raise nothing."""
    events, finished = _read([line])
    assert events == []
    assert finished.error is AgentErrorCode.NO_ANSWER


_ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.data())
def test_no_value_in_a_known_place_breaks_it(data: st.DataObject) -> None:
    """Every field of every recorded line may be anything at all."""
    lines, ended = _recorded(data.draw(st.sampled_from(["tools", "refused", "mcp-failed"])))
    number = data.draw(st.integers(0, len(lines) - 1))
    record = json.loads(lines[number])
    place: Any = record
    while True:
        key = data.draw(st.sampled_from(sorted(place)))
        if not isinstance(place[key], dict) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = data.draw(_ODD)
    _read([*lines[:number], json.dumps(record), *lines[number + 1 :]], ended)
