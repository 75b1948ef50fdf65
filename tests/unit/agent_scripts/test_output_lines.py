"""Lines of JSON from a process that may print anything."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_scripts.output_lines import count_of, read_record, shown_argument, size_of, text_of


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
    ("arguments", "shown"),
    [
        ({"path": "a.txt"}, "a.txt"),
        ({"file_path": "a.txt", "content": "x"}, "a.txt"),
        ({"content": "x", "filePath": "a.txt"}, "a.txt"),
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
