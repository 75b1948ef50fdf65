"""Recorded turns with what a newer version might add: events, kinds of events and fields that nobody knows here."""

from pathlib import Path

import pytest

from agent_scripts.registry import create_adapter
from tests.unit.agent_scripts.transcripts import read, recorded

_RECORDED = sorted(
    path.parent.name for path in Path("tests/data").glob("*/[0-9]*-synthetic-unknown-events.jsonl")
)


@pytest.mark.parametrize("agent", _RECORDED)
def test_what_is_unknown_changes_nothing(agent: str) -> None:
    """The turn is read as the one without it."""
    lines, ended = recorded(agent, "synthetic-unknown-events")
    known, as_ended = recorded(agent, "resumed")
    assert len(lines) > len(known)
    events, finished = read(create_adapter(agent).parser(), lines, ended)
    assert (events, finished) == read(create_adapter(agent).parser(), known, as_ended)
    assert finished.error is None
    assert "boo" not in finished.text
