"""What every store of defaults promises."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.runs.defaults import Defaults, DefaultStore
from app.store.defaults import MemoryDefaultStore
from app.store.sql import open_postgres_store, open_sqlite_store


@pytest.fixture(
    params=["memory", "sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)]
)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[DefaultStore]:
    match request.param:
        case "memory":
            yield MemoryDefaultStore()
        case "sqlite":
            async with open_sqlite_store(tmp_path / "orion.db") as sqlite:
                yield sqlite.defaults
        case _:
            async with open_postgres_store(request.getfixturevalue("postgres_url")) as postgres:
                yield postgres.defaults


async def test_what_was_set_stays_until_it_is_reset(store: DefaultStore) -> None:
    """A change leaves the other fields alone, is safe to repeat, and is its owner's only."""
    assert await store.get("T1", "U1") == Defaults()
    await store.change("T1", "U1", agent="claude", model="opus", model_agent="claude")
    for _ in range(2):
        await store.change("T1", "U1", sandbox="docker", repo="acme/api", branch="main")
    await store.change("T1", "U1")
    wanted = Defaults(
        agent="claude",
        model="opus",
        model_agent="claude",
        sandbox="docker",
        repo="acme/api",
        branch="main",
    )
    assert await store.get("T1", "U1") == wanted
    assert await store.get("T2", "U1") == await store.get("T1", "C1") == Defaults()
    for _ in range(2):
        await store.reset("T1", "U1")
    assert await store.get("T1", "U1") == Defaults()
