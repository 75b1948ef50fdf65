"""Bounded output."""

from hypothesis import given
from hypothesis import strategies as st

from sandbox_runtime import TRUNCATION_MARK, BoundedBuffer


@given(st.lists(st.binary(max_size=20)), st.integers(min_value=0, max_value=50))
def test_buffer_keeps_the_beginning(pieces: list[bytes], bound: int) -> None:
    """However it arrives, the first bytes are kept, and marked exactly when something is missing."""
    buffer = BoundedBuffer(bound)
    for piece in pieces:
        buffer.feed(piece)
    whole = b"".join(pieces)
    assert buffer.truncated == (len(whole) > bound)
    assert buffer.value() == whole[:bound] + (TRUNCATION_MARK if len(whole) > bound else b"")
