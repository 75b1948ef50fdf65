"""How long a run waits for its records: what an agent worked for must not be lost to a database locked for a moment."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from tenacity import AsyncRetrying, retry_if_not_exception_type, stop_after_delay, wait_fixed

PATIENCE_S = 60.0
PAUSE_S = 1.0

T = TypeVar("T")


async def patiently(work: Callable[[], Awaitable[T]]) -> T:
    """The result of a store's call that is safe to repeat, tried for a minute; then its last error. KeyError is no outage."""
    async for attempt in AsyncRetrying(
        retry=retry_if_not_exception_type(KeyError),
        stop=stop_after_delay(PATIENCE_S),
        wait=wait_fixed(PAUSE_S),
        reraise=True,
    ):
        with attempt:
            return await work()
    raise AssertionError("tenacity ends with a result or an error")
