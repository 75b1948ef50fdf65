"""Work that has to be known to its end, whoever is cancelled meanwhile."""

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

from sandbox_runtime.errors import SandboxError
from sandbox_runtime.task_group import open_task_group

_T = TypeVar("_T")


async def finish(work: Coroutine[None, None, _T], *, timeout_s: float = 30.0) -> _T:
    """What the work gives. A cancellation waits for its end, for a bounded time, and is raised then.

    Who is asked over a network does not stop when the one who asked goes away: who does not wait cannot know what there
    is to clean up.
    """
    async with open_task_group() as group:
        task = group.create_task(_outcome(work))
        try:
            outcome = await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait((task,), timeout=timeout_s)
            task.cancel()
            raise
    if isinstance(outcome, SandboxError):
        raise outcome
    return outcome


async def _outcome(work: Coroutine[None, None, _T]) -> _T | SandboxError:
    try:
        return await work
    except SandboxError as exc:
        return exc
