"""Up to when was heard, on both databases: it moves over what was heard without a gap, for one process at a time."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from app.store.runs import SqlRunStore, open_store
from tests.building import T0

MINUTE = timedelta(minutes=1)
SINCE = T0 + timedelta(microseconds=123_457)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    if request.param == "sqlite":
        return tmp_path / "orion.db"
    return str(request.getfixturevalue("postgres_url"))


@asynccontextmanager
async def process(location: Path | str) -> AsyncIterator[SqlRunStore]:
    async with open_store(location) as store:
        await store.leases.join()
        yield store
        await store.leases.leave()


async def test_it_moves_on(location: Path | str) -> None:
    """The first process ever begins it, and what moved never goes back."""
    async with process(location) as store:
        heard = store.heard
        assert await heard.claim() is None  # there is nothing yet
        assert await heard.begin(SINCE)
        assert not await heard.begin(SINCE + 9 * MINUTE)
        assert await heard.claim() == {"": SINCE}  # to the microsecond
        await heard.release()
        await heard.advance(SINCE + 2 * MINUTE)
        await heard.advance(SINCE + MINUTE)
        assert await heard.claim() == {"": SINCE + 2 * MINUTE}


async def test_places_are_ahead_until_all_is_done(location: Path | str) -> None:
    """A process that dies in between leaves what it did; the end of all is the end of each, and an earlier one changes nothing."""
    async with process(location) as store:
        assert await store.heard.begin(SINCE)
        assert await store.heard.claim() == {"": SINCE}
        await store.heard.keep("C1", SINCE + MINUTE)
        await store.heard.keep("C1", SINCE + 2 * MINUTE)
    async with process(location) as store:
        known = {"": SINCE, "C1": SINCE + 2 * MINUTE}
        assert await store.heard.claim() == known
        await store.heard.finish(SINCE - MINUTE)
        assert await store.heard.claim() == known
        await store.heard.finish(SINCE + 3 * MINUTE)
        assert await store.heard.claim() == {"": SINCE + 3 * MINUTE}


@pytest.mark.postgresql
async def test_one_at_a_time(postgres_url: str) -> None:
    """What one has claimed, another one neither claims nor moves, until it is released or its process is no more."""
    async with process(postgres_url) as one, process(postgres_url) as other:
        assert await one.heard.begin(SINCE)
        assert await one.heard.claim() is not None
        assert await other.heard.claim() is None
        await other.heard.advance(SINCE + MINUTE)  # which waits
        await other.heard.release()  # which is not its own
        assert await other.heard.claim() is None
        await one.heard.release()
        assert await other.heard.claim() == {"": SINCE}
        await other.leases.leave()
        assert await one.heard.claim() == {"": SINCE}
