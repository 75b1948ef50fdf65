"""What every store of who was welcomed promises."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from app.aio import open_task_group
from app.store.memory import MemoryWelcomeStore
from app.store.runs import open_store
from app.store.settings import SqlWelcomeStore

Stores = tuple[MemoryWelcomeStore | SqlWelcomeStore, MemoryWelcomeStore | SqlWelcomeStore]


@pytest.fixture(
    params=["memory", "sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)]
)
async def stores(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stores]:
    """Two processes' ways to the same one."""
    if request.param == "memory":
        one = MemoryWelcomeStore()
        yield one, one
        return
    is_file = request.param == "sqlite"
    where = tmp_path / "orion.db" if is_file else request.getfixturevalue("postgres_url")
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(open_store(where))
        second = await stack.enter_async_context(open_store(where))
        yield first.welcomes, second.welcomes


async def test_one_of_many_is_told_to_welcome(stores: Stores) -> None:
    """However many ask at once, at whichever process; by person and workspace."""
    async with open_task_group() as group:
        claims = [group.create_task(stores[n % 2].claim("T1", "U1")) for n in range(8)]
    assert sorted(claim.result() for claim in claims) == [False] * 7 + [True]
    assert await stores[0].claim("T2", "U1")
    assert await stores[1].claim("T1", "U2")
    assert await stores[0].count() == 3


async def test_a_claim_that_is_taken_back_can_be_made_again(stores: Stores) -> None:
    """Once; taking back what nobody claimed is nothing."""
    await stores[0].release("T1", "U1")
    assert await stores[0].claim("T1", "U1")
    for _ in range(2):
        await stores[1].release("T1", "U1")
    assert await stores[1].claim("T1", "U1")
    assert not await stores[0].claim("T1", "U1")
