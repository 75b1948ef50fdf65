"""Work in the background, which ends with its block and cleans up to its end; calls of a store, which are repeated."""

import asyncio

import pytest

from app.aio import background, retry_store


@pytest.mark.parametrize("ends_sooner", [False, True])
async def test_what_is_cleaned_up_is_not_broken_off(ends_sooner: bool) -> None:
    """A drain ends it first and the block again, in the middle of what it cleans up."""
    begun, cleaning, cleaned = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            cleaning.set()
            await asyncio.sleep(0.02)
            cleaned.set()

    async with asyncio.timeout(10):
        async with background(work()) as end:
            await begun.wait()
            if ends_sooner:
                end()
                await cleaning.wait()
        assert cleaned.is_set()


async def test_a_crash_ends_the_block() -> None:
    async def crash() -> None:
        raise LookupError("a bug")

    with pytest.raises(ExceptionGroup) as raised:
        async with asyncio.timeout(10), background(crash()):
            await asyncio.Event().wait()
    assert raised.group_contains(LookupError)


async def test_who_is_told_to_end_repeats_nothing() -> None:
    """The call fails by that; it was taken for an outage, and whoever made it went on."""
    calls = 0

    async def work() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await retry_store(work)
    assert calls == 1
