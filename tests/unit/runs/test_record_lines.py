"""Lines of a stream that anybody in a sandbox may write to."""

import time
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from app.runs.testing import MAX_LINE_BYTES, MAX_RECORD_CHARS, RecordLines


@given(st.lists(st.text(st.sampled_from("ab\n"))))
def test_lines_do_not_depend_on_how_they_arrive(pieces: list[str]) -> None:
    """They are those of the whole text; what has no end yet is none."""
    lines = RecordLines(1000)
    found = [line for piece in pieces for line in lines.feed(piece)]
    assert found == "".join(pieces).split("\n")[:-1]
    assert lines.dropped == 0


def test_a_line_that_is_too_long_is_dropped() -> None:
    """The others are not; a line of just that length counts."""
    lines = RecordLines(4)
    found = [line for piece in ("a\nbb", "bbb", "b\ncccc\nd") for line in lines.feed(piece)]
    assert (found, lines.dropped) == (["a", "cccc"], 1)
    lines.reset()
    assert list(lines.feed("e\n")) == ["e"]


def test_a_line_without_an_end_costs_neither_time_nor_memory() -> None:
    """64 MiB in small pieces: in far less than a second, and no more of it is kept than the bound."""
    lines, piece = RecordLines(1_000_000), "x" * 4096
    tracemalloc.start()
    began = time.process_time()
    for _ in range(16_384):
        assert list(lines.feed(piece)) == []
    took = time.process_time() - began
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert took < 1
    assert peak < 2_000_000


def test_the_longest_line_of_a_supervisor_fits() -> None:
    """Every byte of it may be six characters of JSON."""
    assert MAX_RECORD_CHARS == 6 * MAX_LINE_BYTES + 1024
