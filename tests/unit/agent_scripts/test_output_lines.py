"""Lines of JSON from a process that may print anything."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_scripts.cli_output import (
    cost_of,
    count_of,
    read_record,
    shown_argument,
    size_of,
    text_of,
)


@pytest.mark.parametrize("line", ["", "{", "[1]", "null", "warning: {}", "{" * 100_000, '{"a":1}x'])
def test_what_is_no_object_is_nothing(line: str) -> None:
    """Also what is too deep to be read."""
    assert read_record(line) is None


@given(st.text())
def test_any_line_is_read(line: str) -> None:
    """Never an error."""
    assert read_record(line) is None or line.strip().startswith("{")


def test_members_of_a_wrong_type() -> None:
    """Are as if they were not there."""
    record = read_record(' {"a": "x", "n": 3, "b": true, "minus": -1}')
    assert (text_of(record, "a"), text_of(record, "n"), text_of(None, "a")) == ("x", "", "")
    counts = [count_of(record, name) for name in ("n", "a", "b", "minus", "gone")]
    assert counts == [3, 0, 0, 0, 0]


@pytest.mark.parametrize(
    "told",
    ["1e999", "-1e999", "NaN", "-3", "-0.01", "true", "1000001", "1" + "0" * 400, '"1"', "null"],
)
def test_a_cost_that_cannot_be_one(told: str) -> None:
    """Not a number, not finite, below nothing or beyond belief: it is not known."""
    record = read_record(f'{{"cost": {told}}}')
    assert record is not None
    assert cost_of(record["cost"]) is None


def test_costs() -> None:
    """From nothing to a million dollars."""
    assert [cost_of(told) for told in (0, 0.25, 3, 1e6)] == [0, 0.25, 3, 1e6]


@pytest.mark.parametrize("depth", [150, 500, 900])
def test_a_line_too_deep_to_be_shown_is_nothing(depth: int) -> None:
    """It could be parsed; what then shows its arguments or its errors would fail. Many brackets beside each other are no depth."""
    deep = "[" * depth + "]" * depth
    assert read_record(f'{{"a": {deep}}}') is None
    assert read_record(f'{{"a": [{"[],{}," * depth}1]}}') is not None


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ({"path": "a.txt"}, "a.txt"),
        ({"file_path": "a.txt", "content": "x"}, "a.txt"),
        ({"content": "x", "filePath": "a.txt"}, "a.txt"),
        ({"content": "x", "filepath": "a.txt"}, "a.txt"),
        ({"description": "List", "command": "ls\n -la"}, "ls -la"),
        ({"cmd": "", "other": 1}, '{"cmd": "", "other": 1}'),
        ("ls  -la", "ls -la"),
        ({}, ""),
        (None, ""),
        (["a"], ""),
    ],
)
def test_the_shown_argument(arguments: object, shown: str) -> None:
    """A command or path first, however the agent names it; on one line."""
    assert shown_argument(arguments) == shown


def test_shown_arguments_are_short() -> None:
    """2,000 characters at the most."""
    assert len(shown_argument({"command": "x" * 1_000_000})) == 2000


def test_sizes() -> None:
    """In bytes of UTF-8; nothing is nothing."""
    assert [size_of(output) for output in ("äb", None, [1], "\ud800")] == [3, 0, 3, 1]
