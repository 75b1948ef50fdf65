"""Every parser over every recording with anything in any place: a process of a sandbox may write what it likes."""

import json
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_scripts.adapter import AgentExit
from agent_scripts.events import (
    AgentEvent,
    MessageHeard,
    TextDelta,
    ToolFinished,
    ToolStarted,
    UsageReported,
)
from agent_scripts.registry import agent_names, create_adapter
from agent_scripts.supervision import parse_record

_DATA = Path("tests/data")
_SCRIPTED = (
    '{"type":"text","text":"a"}',
    '{"type":"tool_started","id":"t","name":"shell","argument":"ls"}',
    '{"type":"tool_finished","id":"t","is_error":false,"output_bytes":9}',
    '{"type":"usage","model":"m","input_tokens":1,"output_tokens":2,"cache_read_tokens":3,"cache_creation_tokens":4}',
    '{"type":"error","code":"model_overloaded","message":"busy","status":529}',
    '{"type":"final","text":"The answer."}',
)
"""Of our own script; what an agent reads that nobody has recorded."""
_MAX_LINES = 60
_VALUES: Sequence[Any] = (
    *(None, True, False, 0, -1, 10**400, 1e308, math.inf, -math.inf, math.nan),
    *("", "x", "\ud800", "\0", "-x", [], [1], [[]], {}, {"a": 1}),
    *(["x", {"text": 3}], {"text": []}, {"content": [{"type": "text"}]}, [None]),
)
_ODD = st.sampled_from(_VALUES)
_SHARE_OF_LINES, _SHARE_OF_VALUES = 0.4, 0.08
_ENDS = st.builds(
    AgentExit,
    exit_code=st.sampled_from([0, 1, None, 42, 143, 144]),
    reason=st.sampled_from(["exited", "idle", "timeout", "stopped", "lost"]),
    stderr_tail=st.sampled_from(["", "\ud800Session not found", "x" * 5000]),
)


@cache
def _recordings(agent: str) -> Sequence[Sequence[str]]:
    read = [path.read_text().splitlines()[:-1] for path in sorted((_DATA / agent).glob("*.jsonl"))]
    short = [[line for line in lines if len(line) < 8000] for lines in read]
    return [lines[-_MAX_LINES:] for lines in short if lines] or [_SCRIPTED]


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value))
    else:
        inner = []
    return [path, *(place for key, one in inner for place in _places(one, (*path, key)))]


def _with(value: Any, path: tuple[Any, ...], odd: object) -> Any:
    if not path:
        return odd
    key, *rest = path
    changed = dict(value) if isinstance(value, dict) else list(value)
    changed[key] = _with(value[key], tuple(rest), odd)
    return changed


def _mutated(value: Any, luck: Random) -> Any:
    if luck.random() < _SHARE_OF_VALUES:
        return luck.choice(_VALUES)
    if isinstance(value, dict):
        return {key: _mutated(one, luck) for key, one in value.items()}
    return [_mutated(one, luck) for one in value] if isinstance(value, list) else value


def _mutated_line(line: str, luck: Random) -> str:
    if not line.startswith("{") or luck.random() > _SHARE_OF_LINES:
        return line
    return json.dumps(_mutated(json.loads(line), luck))


def _check(event: AgentEvent) -> None:
    match event:
        case TextDelta(text=text):
            assert isinstance(text, str)
        case ToolStarted():
            assert all(isinstance(one, str) for one in (event.tool_id, event.name, event.argument))
        case ToolFinished():
            assert isinstance(event.tool_id, str)
            assert event.output_bytes >= 0
        case MessageHeard():
            assert isinstance(event.message_id, str)
        case UsageReported():
            assert isinstance(event.input_tokens, int)
            assert isinstance(event.output_tokens, int)
        case _:
            raise AssertionError(event)


@pytest.mark.parametrize("agent", agent_names())
@settings(max_examples=250, deadline=None)
@given(seed=st.integers(0, 2**32), number=st.integers(0, 100), ended=_ENDS)
def test_no_value_in_any_place_breaks_a_parser(
    agent: str, seed: int, number: int, ended: AgentExit
) -> None:
    """Whatever comes: events of their types, and an outcome whose cost is none or can be one."""
    parser = create_adapter(agent).parser()
    luck = Random(seed)  # noqa: S311 - odd values, no secrets
    recordings = _recordings(agent)
    for line in recordings[number % len(recordings)]:
        for event in parser.feed(_mutated_line(line, luck)):
            _check(event)
    finished = parser.finish(ended)
    assert finished.error is not None or finished.text.strip()
    assert finished.cost_usd is None or 0 <= finished.cost_usd <= 1e6
    assert all(isinstance(one, str) for one in (finished.text, finished.detail, *finished.notes))


@settings(max_examples=200, deadline=None)
@given(
    key=st.sampled_from(
        ["seq", "t", "kind", "stream", "text", "truncated", "code", "reason", "survivors"]
    ),
    kind=st.sampled_from(["line", "exit"]),
    odd=_ODD,
)
def test_no_value_in_any_place_breaks_the_reading_of_records(
    key: str, kind: str, odd: object
) -> None:
    """One that is a record fits into the record of its run."""
    good = {"seq": 1, "t": 1.0, "kind": kind, "stream": "stdout", "text": "x", "truncated": False}
    end = {"code": 0, "reason": "exited", "survivors": 0}
    record = parse_record(json.dumps({**good, **end, key: odd}))
    assert record is None or 0 < record.seq < 2**31


@pytest.mark.parametrize("agent", agent_names())
@pytest.mark.parametrize("depth", [90, 500, 980, 100_000])
def test_depth_breaks_no_parser(agent: str, depth: int) -> None:
    """In each place of the lines of a recording in turn."""
    deep = "[" * depth + "]" * depth
    parser = create_adapter(agent).parser()
    for line in {line[:60]: line for line in max(_recordings(agent), key=len)}.values():
        record = json.loads(line) if line.startswith("{") else {}
        for place in _places(record)[:40]:
            text = json.dumps(_with(record, place, "\ue000")).replace('"\\ue000"', deep)
            for event in parser.feed(text):
                _check(event)
    parser.finish(AgentExit(exit_code=0, reason="exited"))
