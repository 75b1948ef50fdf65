"""What every store of model calls promises."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from app.aio import open_task_group
from app.runs.testing import (
    REFRESH_S,
    Budgets,
    Ledger,
    ModelCall,
    Price,
    Prices,
    RunId,
    SpendingStore,
    SpentCall,
    SystemClock,
    Usage,
)
from app.store.memory import MemorySpendingStore
from app.store.runs import open_store
from tests.building import T0, make_run
from tests.postgres import unreachable
from tests.waiting import until

D = Decimal(1)

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
    """Each once, however often it is written; none that a person pays; of those whose cost nobody knows the number."""
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
        ("user unpriced", "T1", "U1"): 1,
        ("channel unpriced", "T1", "C1"): 1,
        ("all unpriced", "", ""): 1,
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


@pytest.mark.postgresql
async def test_a_budget_of_a_day_is_one_for_all_processes(postgres_url: str) -> None:
    """What one spends keeps the others from asking, within seconds, and those that start; each call counts once."""
    budgets = Budgets(day=100)
    prices = Prices({"m-1": Price(input=Decimal(1), output=D, cache_read=D, cache_write=D)})
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        ledgers = []
        group = await stack.enter_async_context(open_task_group())
        for _ in range(3):
            store = await stack.enter_async_context(open_store(postgres_url))
            ledger = Ledger(
                prices=prices,
                budgets=budgets,
                store=store.spending,
                clock=clock,
                is_shared=True,
            )
            await ledger.load()
            ledgers.append(ledger)
            for work in (ledger.load_forever(), ledger.write_forever()):
                stack.callback(group.create_task(work).cancel)
        run = replace(make_run(), attempt=1)
        for ledger in ledgers:
            spending = await ledger.begin_spending(run)
            spending.count(_call(clock, tokens=33))
        await until(
            lambda: all(one._spent[clock.now().date()]["all", "", ""] == 99 for one in ledgers),
            timeout_s=2 * REFRESH_S + 2,
        )
        assert all(one.find_excess(run.request) is None for one in ledgers)
        (await ledgers[0].begin_spending(run)).count(_call(clock, tokens=1))
        await until(
            lambda: all(one.find_excess(run.request) for one in ledgers),
            timeout_s=2 * REFRESH_S + 2,
        )


def _call(clock: SystemClock, *, tokens: int) -> ModelCall:
    return ModelCall(
        model="m-1",
        started_at=clock.now(),
        first_token_at=None,
        ended_at=clock.now(),
        status=200,
        usage=Usage(input_tokens=tokens),
    )


@pytest.mark.long
@pytest.mark.postgresql
async def test_a_database_that_is_away_for_a_moment_loses_no_spending(postgres_url: str) -> None:
    """What is counted meanwhile is written afterwards, and the looking goes on."""
    clock = SystemClock()
    async with open_store(postgres_url) as store, open_task_group() as group:
        prices = Prices({"m-1": Price(input=Decimal(1), output=D, cache_read=D, cache_write=D)})
        ledger = Ledger(
            prices=prices,
            budgets=Budgets(day=100),
            store=store.spending,
            clock=clock,
            is_shared=True,
        )
        await ledger.load()
        tasks = [group.create_task(one) for one in (ledger.load_forever(), ledger.write_forever())]
        run = replace(make_run(), attempt=1)
        spending = await ledger.begin_spending(run)
        with unreachable(postgres_url):
            spending.count(_call(clock, tokens=60))
            await asyncio.sleep(REFRESH_S + 1)
            assert ledger.find_excess(run.request) is None
        spending.count(_call(clock, tokens=40))
        assert ledger.find_excess(run.request) is not None
        await until(lambda: not ledger._unwritten, timeout_s=10)
        assert (await store.spending.sums(clock.now().date()))["all", "", ""] == 100
        await asyncio.sleep(REFRESH_S + 0.5)
        assert ledger._spent[clock.now().date()]["all", "", ""] == 100
        for task in tasks:
            task.cancel()
