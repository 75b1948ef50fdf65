"""What the service needs of asyncio beside the standard library: task groups, work in the background, retries of a store, gates, unix sockets."""

import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from tenacity import AsyncRetrying, retry_if_exception, stop_after_delay, wait_fixed

from app.errors import LeaseLostError
from sandbox_runtime.task_group import TaskGroup, open_task_group, together

__all__ = [
    "PAUSE_S",
    "RETRY_S",
    "Gate",
    "TaskGroup",
    "always_open",
    "background",
    "bind_unix_socket",
    "open_task_group",
    "retry_store",
    "together",
]

RETRY_S = 60.0
"""What an agent worked for must not be lost to a database that is locked for a moment."""
PAUSE_S = 1.0

T = TypeVar("T")
Gate = Callable[[], Awaitable[None]]
"""Awaited before an effect; raises LeaseLostError where this process must not cause it any more."""


async def always_open() -> None:
    """Is the gate of who is alone."""


async def retry_store(work: Callable[[], Awaitable[T]]) -> T:
    """Returns the result of a store's call that is safe to repeat, tried again for `RETRY_S`; then raises its last error.

    KeyError and LeaseLostError are no outage: they are raised at once, as is a cancellation.
    """
    async for attempt in AsyncRetrying(
        retry=retry_if_exception(_may_be_outage),
        stop=stop_after_delay(RETRY_S),
        wait=wait_fixed(PAUSE_S),
        reraise=True,
    ):
        with attempt:
            return await work()
    raise AssertionError("tenacity ends with a result or an error")


def _may_be_outage(error: BaseException) -> bool:
    return isinstance(error, Exception) and not isinstance(error, KeyError | LeaseLostError)


@asynccontextmanager
async def background(*work: Coroutine[None, None, None]) -> AsyncIterator[Callable[[], None]]:
    """Runs coroutines while the block runs; a crash of one ends the block. Yields what ends them sooner, which may be called twice."""
    async with open_task_group() as group:
        tasks = [group.create_task(one) for one in work]

        def end() -> None:
            while tasks:
                # Each once: a second time would break off what it cleans up.
                tasks.pop().cancel()

        yield end
        end()


@contextmanager
def bind_unix_socket(path: Path, *, mode: int) -> Iterator[socket.socket]:
    """Yields a socket that is bound there in place of an earlier one, for whoever may reach the path and `mode` lets write.

    Whoever listens at it closes it. Its name goes with the block, unless it is another one's by now: another process may listen in
    its place.

    Raises:
        OSError: the path cannot be bound.
    """
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)
        bound.bind(str(path))
    except OSError:
        bound.close()
        raise
    path.chmod(mode)  # before listen(): nobody else can have connected
    bound.setblocking(False)  # noqa: FBT003 - the socket module takes no keyword
    made = path.lstat().st_ino
    try:
        yield bound
    finally:
        with suppress(FileNotFoundError):
            if path.lstat().st_ino == made:
                path.unlink()
