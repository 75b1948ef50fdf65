"""`asyncio.TaskGroup` that leaves its task as it found it.

When a child fails while the group already waits for its end, asyncio cancels the parent and never takes that back: the
parent counts as being cancelled for the rest of its life, and with Python 3.11.2, as in Debian 12, every `asyncio.timeout`
in it then lets its CancelledError out instead of turning it into a TimeoutError (with 3.11.7 it does not). Source: CPython,
asyncio/taskgroups.py and asyncio/timeouts.py, `__aexit__`.

And what the block itself raises passes as it is, so that whoever opens a group around something need not look for that in groups.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T1 = TypeVar("T1")
T2 = TypeVar("T2")

TaskGroup = asyncio.TaskGroup  # noqa: TID251 - the one place


@asynccontextmanager
async def open_task_group() -> AsyncIterator[TaskGroup]:
    """Opens a group as `asyncio.TaskGroup` does; the block's own exception is raised as it is when no task has failed.

    Raises:
        BaseExceptionGroup: of what the tasks raised, and the block.
    """
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - inside a coroutine there is one
    cancelling = task.cancelling()
    own: BaseException | None = None
    try:
        async with TaskGroup() as group:
            try:
                yield group
            except BaseException as exc:
                own = exc
                raise
    except BaseExceptionGroup as failures:
        while task.cancelling() > cancelling:
            task.uncancel()
        if own is not None and failures.exceptions == (own,):
            raise own from own.__cause__
        raise


async def together(
    first: Coroutine[Any, Any, T1], second: Coroutine[Any, Any, T2]
) -> tuple[T1, T2]:
    """Returns both results; when one fails the other is cancelled and waited for, and the error is raised as it is."""
    try:
        async with open_task_group() as group:
            tasks = group.create_task(first), group.create_task(second)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from failures.exceptions[0].__cause__
    return tasks[0].result(), tasks[1].result()
