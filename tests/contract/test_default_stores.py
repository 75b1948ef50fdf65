"""What every store of defaults promises."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from app.runs.testing import ChannelChange, Defaults, DefaultStore, RunId
from app.store.memory import MemoryDefaultStore
from app.store.runs import open_store
from tests.building import T0


@pytest.fixture(
    params=["memory", "sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)]
)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[DefaultStore]:
    match request.param:
        case "memory":
            yield MemoryDefaultStore()
        case "sqlite":
            async with open_store(tmp_path / "orion.db") as sqlite:
                yield sqlite.defaults
        case _:
            async with open_store(request.getfixturevalue("postgres_url")) as postgres:
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


async def test_changes_of_a_channel_are_kept(store: DefaultStore) -> None:
    """Who, when and what, once for each message; the last one is found."""
    first = ChannelChange(
        run_id=RunId("run_1"), team="T1", channel="C1", user="U1", at=T0, said="agent=codex"
    )
    last = replace(first, run_id=RunId("run_2"), user="U2", at=T0 + timedelta(1), said="reset")
    assert await store.last_change("T1", "C1") is None
    assert [await store.keep(change) for change in (last, first, last)] == [True, True, False]
    assert await store.last_change("T1", "C1") == last
    assert await store.last_change("T2", "C1") is None
