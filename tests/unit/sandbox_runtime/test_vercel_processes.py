"""The SDK's reader under cancellation."""

import asyncio
from contextlib import suppress

import pytest

from sandbox_runtime.providers.vercel.processes import was_cancelled
from sandbox_runtime.task_group import open_task_group


def _broken() -> None:
    raise RuntimeError("the current task is not holding this lock")


async def test_an_error_in_place_of_a_cancellation_is_known() -> None:
    """As the reader raises it: while it handles the cancellation, and once more while it handles that."""
    found: list[bool] = []

    async def read() -> None:
        try:
            try:
                try:
                    await asyncio.sleep(60)
                finally:
                    _broken()
            finally:
                _broken()
        except RuntimeError as exc:
            found.append(was_cancelled(exc))

    async with open_task_group() as group:
        task = group.create_task(read())
        await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait((task,))
    assert found == [True]


def test_another_error_is_none() -> None:
    """It stays what it is."""
    with pytest.raises(RuntimeError) as caught:
        _broken()
    assert not was_cancelled(caught.value)
