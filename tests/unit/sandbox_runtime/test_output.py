"""Bounded output and line splitting."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sandbox_runtime import TRUNCATION_MARK, BoundedBuffer, LineSplitter


@given(st.lists(st.binary(max_size=20)), st.integers(min_value=0, max_value=50))
def test_buffer_keeps_the_beginning(pieces: list[bytes], bound: int) -> None:
    """However it arrives, the first bytes are kept, and marked exactly when something is missing."""
    buffer = BoundedBuffer(bound)
    for piece in pieces:
        buffer.feed(piece)
    whole = b"".join(pieces)
    assert buffer.truncated == (len(whole) > bound)
    assert buffer.value() == whole[:bound] + (TRUNCATION_MARK if len(whole) > bound else b"")


@given(st.binary(max_size=200), st.lists(st.integers(min_value=0, max_value=200), max_size=5))
def test_lines_do_not_depend_on_the_pieces(data: bytes, cuts: list[int]) -> None:
    """Lines are the same whether the bytes come at once or in pieces."""
    splitter = LineSplitter(max_line_bytes=1000)
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    lines: list[bytes] = []
    for start, end in pairwise(bounds):
        lines += splitter.feed(data[start:end])
    lines += splitter.finish()
    expected = data.split(b"\n")
    assert lines == (expected[:-1] if expected[-1] == b"" else expected)


def test_long_line_is_cut_and_the_next_one_whole() -> None:
    """A line over the bound is cut and marked, and does not spoil the one after it."""
    splitter = LineSplitter(max_line_bytes=4)
    lines = splitter.feed(b"12345") + splitter.feed(b"6789\nabcd\n") + splitter.finish()
    assert lines == [b"1234" + TRUNCATION_MARK.rstrip(), b"abcd"]
