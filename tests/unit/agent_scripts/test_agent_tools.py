"""The tools inside the sandbox: exact edits, bounded output, helpful refusals."""

from pathlib import Path

import pytest

from agent_scripts.agents.anthropic.inside.tools import Output, ToolLimits, cut_middle, run_tool


def _edit(tmp_path: Path, **arguments: object) -> tuple[str, bool]:
    limits = ToolLimits(work=str(tmp_path), timeout_s=5, output_bytes=1000, secret="made-up")
    return run_tool("edit_file", {"path": "a.txt", **arguments}, limits)


def test_create_view_replace_insert(tmp_path: Path) -> None:
    """The four actions do what they say, line ends stay as they were."""
    assert _edit(tmp_path, action="create", text="one\r\ntwo\r\n")[1] is False
    assert _edit(tmp_path, action="replace", old_text="two", text="2")[1] is False
    assert _edit(tmp_path, action="insert", line=0, text="zero")[1] is False
    assert (tmp_path / "a.txt").read_bytes() == b"zero\none\r\n2\r\n"
    assert _edit(tmp_path, action="view", start_line=2, end_line=9) == (
        "     2\tone\n     3\t2",
        False,
    )


def test_insert_after_a_last_line_without_newline(tmp_path: Path) -> None:
    """The new line does not run into the old one."""
    (tmp_path / "a.txt").write_text("end")
    _edit(tmp_path, action="insert", line=1, text="more")
    assert (tmp_path / "a.txt").read_text() == "end\nmore\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"action": "replace", "old_text": "x", "text": ""}, "stands 2 times"),
        ({"action": "replace", "old_text": "nope", "text": ""}, "not in"),
        ({"action": "replace", "text": ""}, "old_text must be given"),
        ({"action": "insert", "line": 9, "text": "t"}, "from 0 to 2"),
        ({"action": "insert", "line": "one", "text": "t"}, "whole number"),
        ({"action": "delete"}, "must be one of"),
        ({"action": "view", "path": "."}, "is a directory"),
        ({"action": "view", "path": "/dev/zero"}, "is a device or the like"),
        ({"action": "view", "path": "none"}, "FileNotFoundError"),
        ({"action": "view", "path": "\0"}, "ValueError"),
        ({"action": "view", "path": "binary"}, "not UTF-8"),
        ({"action": "view", "path": "big"}, "over 1000000 bytes"),
        ({"action": "create", "text": "lone \ud800"}, "UnicodeEncodeError"),
    ],
)
def test_refusals_change_nothing(tmp_path: Path, arguments: dict[str, object], words: str) -> None:
    """What cannot be done exactly is not done, and says why."""
    (tmp_path / "a.txt").write_text("x\nx\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "big").write_bytes(b"x" * 1_000_001)
    output, is_error = _edit(tmp_path, **arguments)
    assert is_error
    assert words in output
    assert (tmp_path / "a.txt").read_text() == "x\nx\n"


def test_output_keeps_head_and_tail() -> None:
    """However it arrives, long output keeps its ends and says how much is gone."""
    data = b"a" * 500 + b"b" * 10_000 + b"c" * 500
    output = Output(1000)
    for start in range(0, len(data), 333):
        output.add(data[start : start + 333])
    assert output.text() == "a" * 500 + "\n[... 10000 bytes cut ...]\n" + "c" * 500
    assert cut_middle(data, 1000) == output.text()


def test_output_that_fits_is_whole() -> None:
    """Nothing is cut up to the limit."""
    output = Output(1000)
    output.add(b"x" * 1000)
    assert output.text() == "x" * 1000
