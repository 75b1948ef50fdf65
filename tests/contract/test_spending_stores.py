"""What every store of model calls promises."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from app.aio import open_task_group
from app.runs.testing import RunId, SpendingStore, SpentCall, Usage
from app.store.memory import MemorySpendingStore
from app.store.runs import open_store
from tests.building import T0

CALL = SpentCall(
    id="a" * 32,
    run_id=RunId("run_1"),
    agent="claude",
    model="m-1",
    team="T1",
    user="U1",
    channel="C1",
    at=T0,
    usage=Usage(input_tokens=3, cache_read_tokens=2**40, model_calls=1),
    cost=2**40,
)
OTHER = replace(CALL, id="b" * 32, run_id=RunId("run_2"), at=T0 + timedelta(hours=1), cost=None)


@pytest.fixture(
    params=["memory", "sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)]
)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SpendingStore]:
    match request.param:
        case "memory":
            yield MemorySpendingStore()
        case "sqlite":
            async with open_store(tmp_path / "orion.db") as sqlite:
                yield sqlite.spending
        case _:
            async with open_store(request.getfixturevalue("postgres_url")) as postgres:
                yield postgres.spending


async def test_calls_come_back_as_they_were(store: SpendingStore) -> None:
    """By run; written twice they are there once."""
    await store.add([CALL, OTHER])
    await store.add([OTHER])
    assert await store.of_run(RunId("run_1")) == [CALL]
    assert await store.of_run(RunId("run_2")) == [OTHER]
    assert await store.of_run(RunId("run_3")) == []


async def test_calls_are_added_up_by_days(store: SpendingStore) -> None:
    """Each once, however often it is written; none that a person pays, or whose cost nobody knows."""
    cheap = replace(CALL, cost=5)
    own = replace(cheap, id="c" * 32, is_own_key=True)
    tomorrow = replace(cheap, id="d" * 32, at=T0 + timedelta(days=1))
    await store.add([cheap, OTHER, own, tomorrow])
    await store.add([cheap, replace(cheap, id="e" * 32, user="U2")])
    assert await store.sums(T0.date()) == {
        ("user", "T1", "U1"): 5,
        ("user", "T1", "U2"): 5,
        ("channel", "T1", "C1"): 10,
        ("all", "", ""): 10,
    }
    assert (await store.sums(tomorrow.at.date()))["all", "", ""] == 5
    assert not await store.sums(T0.date() - timedelta(days=1))


@pytest.mark.postgresql
async def test_no_call_is_lost_from_sums_that_processes_add_to_at_once(postgres_url: str) -> None:
    """Two stores on one database, each from both ends of the same people; a batch is one transaction."""
    people = [f"U{n}" for n in range(8)]
    async with open_store(postgres_url) as one, open_store(postgres_url) as other:
        async with open_task_group() as group:
            for number in range(20):
                for name, store, users in (("a", one, people), ("b", other, people[::-1])):
                    calls = [
                        replace(CALL, id=f"{name}{number}{user}", user=user, cost=1)
                        for user in users
                    ]
                    group.create_task(store.spending.add(calls))
        sums = await one.spending.sums(T0.date())
    assert sums["all", "", ""] == 2 * 20 * len(people)
    assert {sums["user", "T1", user] for user in people} == {40}
