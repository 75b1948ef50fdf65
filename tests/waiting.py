"""How tests wait for what another task, thread or process does. The default limits are long: they end what hangs, and cost nothing where all is well; a test that judges a time gives its own."""

import asyncio
from collections.abc import Callable, Iterator

WAIT_S = 60.0
POLL_S = 0.02


def pauses(longest_s: float = 0.25) -> Iterator[float]:
    """How long to wait between looks that cost something: longer and longer, up to this."""
    pause_s = POLL_S
    while True:
        yield pause_s
        pause_s = min(1.3 * pause_s, longest_s)


async def until(condition: Callable[[], object], *, timeout_s: float = WAIT_S) -> None:
    """Returns once the condition holds.

    Raises:
        TimeoutError: it did not within that time.
    """
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(POLL_S)
