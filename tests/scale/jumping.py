"""An event loop whose clock jumps: where all tasks sleep, it is at once the time at which the first of them wakes.

So the product's own asyncio code waits for hours in a simulation. Not SimPy, in which Slack's limits would have to be written a
second time; not looptime, whose pytest plugin fails every test where pytest-asyncio is not installed.
"""

import asyncio
import selectors

from typing_extensions import override


class _Clock(selectors.SelectSelector):
    """In place of waiting for files, of which there are none."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    @override
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("all tasks wait for something that never comes")
        self.now_s += max(timeout, 0.0)
        return []


class JumpingLoop(asyncio.SelectorEventLoop):
    """Begins at 0 s. For one thread, without files, sockets and processes."""

    def __init__(self) -> None:
        self._clock = _Clock()
        super().__init__(self._clock)

    @override
    def time(self) -> float:
        return self._clock.now_s
