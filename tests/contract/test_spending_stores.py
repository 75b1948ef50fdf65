"""What every store of model calls promises."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

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
    """By run and by time; written twice they are there once."""
    await store.add([CALL, OTHER])
    await store.add([OTHER])
    assert await store.of_run(RunId("run_1")) == [CALL]
    assert sorted(await store.since(T0), key=lambda call: call.id) == [CALL, OTHER]
    assert await store.since(T0 + timedelta(minutes=1)) == [OTHER]
    assert await store.of_run(RunId("run_3")) == []
