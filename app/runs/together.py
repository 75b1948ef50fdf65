"""Two things at once, as if they were one."""

from collections.abc import Coroutine
from typing import Any, TypeVar

from sandbox_runtime.task_group import open_task_group

T1 = TypeVar("T1")
T2 = TypeVar("T2")


async def together(
    first: Coroutine[Any, Any, T1], second: Coroutine[Any, Any, T2]
) -> tuple[T1, T2]:
    """Both results; when one fails the other is cancelled and waited for, and its error is raised as it is."""
    try:
        async with open_task_group() as group:
            tasks = group.create_task(first), group.create_task(second)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from failures.exceptions[0].__cause__
    return tasks[0].result(), tasks[1].result()
