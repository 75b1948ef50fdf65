"""When an emulator was at work for a client, for who wants to know how long that waited."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

Span = tuple[float, float]
"""Begin and end, in seconds by the wall clock."""


class Spans:
    """Of all calls; safe to be read from another thread."""

    def __init__(self) -> None:
        self._ended: list[Span] = []

    @contextmanager
    def span(self) -> Iterator[None]:
        """One call lasts as long as the block."""
        began_s = time.time()
        try:
            yield
        finally:
            self.add((began_s, time.time()))

    def add(self, span: Span) -> None:
        """One that has ended."""
        self._ended.append(span)

    def free_s(self, window: Span) -> float:
        """How long within a window no call was going."""
        free_s, reached_s = 0.0, window[0]
        for began_s, ended_s in sorted(self._ended):
            if ended_s <= reached_s:
                continue
            if began_s >= window[1]:
                break
            free_s += max(began_s - reached_s, 0.0)
            reached_s = ended_s
        return free_s + max(window[1] - reached_s, 0.0)
