"""Work that has to be known to its end, whoever is cancelled meanwhile."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TypeVar

from sandbox_runtime.errors import SandboxError
from sandbox_runtime.task_group import TaskGroup, open_task_group

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


class Unfinished:
    """Requests whose asker may go away before the answer: they go on without it, and what they have made is given up then.

    For what takes too long to be waited for by somebody who has been told to stop.
    """

    def __init__(self, group: TaskGroup) -> None:
        self._group = group
        self._left: set[asyncio.Task[None]] = set()

    async def ask(
        self,
        work: Coroutine[None, None, _T],
        give_up: Callable[[_T | SandboxError], Coroutine[None, None, None]],
    ) -> _T:
        """What the work gives. Cancelled, it leaves that to `give_up`, which raises nothing.

        Raises:
            SandboxError: the work's own.
        """
        task = self._group.create_task(_outcome(work))
        try:
            outcome = await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():
                left = self._group.create_task(_afterwards(task, give_up))
                self._left.add(left)
                left.add_done_callback(self._left.discard)
            raise
        if isinstance(outcome, SandboxError):
            raise outcome
        return outcome

    async def close(self, *, timeout_s: float = 10.0) -> None:
        """Wait for what goes on, so long at most; what is not answered then is left to whoever sweeps."""
        if self._left:
            _, pending = await asyncio.wait(self._left, timeout=timeout_s)
            for task in pending:
                task.cancel()


async def _afterwards(
    task: "asyncio.Task[_T | SandboxError]",
    give_up: Callable[[_T | SandboxError], Coroutine[None, None, None]],
) -> None:
    await give_up(await task)


async def _outcome(work: Coroutine[None, None, _T]) -> _T | SandboxError:
    try:
        return await work
    except SandboxError as exc:
        return exc
