"""`asyncio.TaskGroup` that leaves its task as it found it.

When a child fails while the group already waits for its end, asyncio cancels the parent and never takes that back: the
parent counts as being cancelled for the rest of its life, and with Python 3.11.2, as in Debian 12, every `asyncio.timeout`
in it then lets its CancelledError out instead of turning it into a TimeoutError (with 3.11.7 it does not). Source: CPython,
asyncio/taskgroups.py and asyncio/timeouts.py, `__aexit__`.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

TaskGroup = asyncio.TaskGroup  # noqa: TID251 - the one place


@asynccontextmanager
async def open_task_group() -> AsyncIterator[TaskGroup]:
    """As `asyncio.TaskGroup`.

    Raises:
        BaseExceptionGroup: of what the tasks raised.
    """
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - inside a coroutine there is one
    cancelling = task.cancelling()
    try:
        async with TaskGroup() as group:
            yield group
    except BaseExceptionGroup:
        while task.cancelling() > cancelling:
            task.uncancel()
        raise
