"""A task group of ours leaves the task that opened it as it found it."""

import asyncio

import pytest

from sandbox_runtime.task_group import open_task_group, together


async def _fail() -> None:
    await asyncio.sleep(0)
    raise OSError("broken")


async def _wait(ended: asyncio.Event) -> None:
    try:
        await asyncio.sleep(10)
    finally:
        ended.set()


async def test_a_failure_at_the_end_is_no_cancellation() -> None:
    """The child fails while the group waits for it: a later timeout of the task is still one."""
    with pytest.raises(ExceptionGroup):
        async with open_task_group() as group:
            group.create_task(_fail())
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await asyncio.sleep(10)


async def test_a_failure_of_the_block_ends_the_children() -> None:
    """And passes as it is; beside a child's own failure it is in a group, as asyncio has it."""
    ended = asyncio.Event()

    async def fail_beside_it() -> None:
        async with open_task_group() as group:
            group.create_task(_wait(ended))
            await asyncio.sleep(0)
            raise OSError("broken")

    with pytest.raises(OSError, match="broken"):
        await fail_beside_it()
    assert ended.is_set()

    async def fail_late() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            raise ValueError("late")

    async def fail_both() -> None:
        async with open_task_group() as group:
            group.create_task(fail_late())
            await asyncio.sleep(0)
            raise OSError("broken")

    with pytest.raises(ExceptionGroup) as caught:
        await fail_both()
    assert {type(one) for one in caught.value.exceptions} == {OSError, ValueError}


async def test_a_cancellation_stays_one() -> None:
    """What somebody else asked of the task is not taken back."""

    async def work() -> None:
        async with open_task_group() as group:
            group.create_task(asyncio.sleep(10))

    async with open_task_group() as outer:
        task = outer.create_task(work())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelling() == 1


async def test_two_together() -> None:
    """Both results; the error of one as it is, when the other has ended."""
    ended = asyncio.Event()
    assert await together(asyncio.sleep(0, "a"), asyncio.sleep(0, "b")) == ("a", "b")
    with pytest.raises(OSError, match="broken"):
        await together(_wait(ended), _fail())
    assert ended.is_set()
