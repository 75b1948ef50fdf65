"""What every store of pull requests promises, as two processes have it."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from app.pull_requests.news import with_news
from app.pull_requests.records import PullRequest, PullRequestStore
from app.runs.testing import RunState
from app.store.memory import MemoryRunStore
from app.store.runs import open_store
from tests.unit.pull_requests.building import RUN, bad, make_pull, view

NOW = datetime.now(UTC)
PULL = make_pull(pushed_at=NOW, next_at=NOW)


@dataclass(frozen=True)
class Stores:
    one: PullRequestStore
    other: PullRequestStore


@pytest.fixture(
    params=["memory", "sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)]
)
async def stores(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stores]:
    if request.param == "memory":
        memory = MemoryRunStore()
        yield Stores(memory.pull_requests, memory.pull_requests)
        return
    async with AsyncExitStack() as stack:
        if request.param == "sqlite":  # which is one process's
            alone = await stack.enter_async_context(open_store(tmp_path / "orion.db"))
            await alone.leases.join()
            yield Stores(alone.pull_requests, alone.pull_requests)
            return
        url = request.getfixturevalue("postgres_url")
        first, second = [await stack.enter_async_context(open_store(url)) for _ in range(2)]
        for store in (first, second):
            await store.leases.join()
        yield Stores(first.pull_requests, second.pull_requests)


async def found(store: PullRequestStore) -> PullRequest:
    pull = await store.get(PULL.id)
    assert pull is not None
    return pull


async def test_what_is_kept_is_what_was_given(stores: Stores) -> None:
    assert await stores.one.get(PULL.id) is None
    await stores.one.open(PULL)
    assert await stores.other.get(PULL.id) == PULL
    (claimed,) = await stores.one.claim(limit=1)
    seen = with_news(claimed, view(bad("\u00e9\u6f22", summary="x" * 5_000)), now=NOW)
    assert await stores.one.save(seen)
    assert await stores.other.get(PULL.id) == seen
    assert seen.notices


async def test_each_is_claimed_by_one(stores: Stores) -> None:
    """The longest due first; whoever has looked gives it back, and it is claimed when it is due again."""
    later = replace(PULL, id="pr_later", next_at=NOW + timedelta(hours=1))
    never = replace(PULL, id="pr_never", next_at=None)
    early = replace(PULL, id="pr_early", next_at=NOW - timedelta(hours=1))
    for pull in (PULL, later, never, early):
        await stores.one.open(pull)
    (first,) = await stores.one.claim(limit=1)
    assert first.id == early.id
    assert [pull.id for pull in await stores.other.claim(limit=9)] == [PULL.id]
    assert await stores.one.claim(limit=9) == []
    assert await stores.one.save(first)
    assert await stores.one.claim(limit=9) == []
    assert await stores.one.save(first, release=True)
    assert not await stores.one.save(first)
    (again,) = await stores.other.claim(limit=9)
    assert (again.id, again.claim != first.claim) == (early.id, True)
    assert not await stores.one.save(replace(first, head="f" * 40))
    assert (await stores.one.get(early.id)) == again
    assert await stores.other.save(replace(again, next_at=None), release=True)
    assert await stores.other.claim(limit=9) == []


async def test_a_push_meanwhile_is_not_lost(stores: Stores) -> None:
    """Who pushed last and that it is due stay; what was told of it, too."""
    await stores.one.open(replace(PULL, next_at=NOW - timedelta(seconds=1)))
    (claimed,) = await stores.one.claim(limit=9)
    pushed_at = NOW + timedelta(seconds=1)
    pushed = replace(PULL, run_id="run_2", asker="U2", pushed_at=pushed_at, next_at=NOW)
    await stores.other.open(pushed)
    seen = with_news(claimed, view(bad()), now=NOW)
    await stores.one.save(seen, release=True)
    now = await found(stores.other)
    assert (now.run_id, now.asker, now.next_at) == ("run_2", "U2", NOW)
    assert now.notices == seen.notices
    await stores.other.open(replace(pushed, thread_ts="9.9"))
    again = await found(stores.one)
    assert (again.notices, again.thread_ts) == (seen.notices, PULL.thread_ts)


async def test_what_a_dead_process_had_is_somebody_elses(tmp_path: Path) -> None:
    """At once, as nobody else works on a file."""
    async with open_store(tmp_path / "orion.db") as store:
        await store.leases.join()
        await store.pull_requests.open(PULL)
        assert len(await store.pull_requests.claim(limit=1)) == 1
    async with open_store(tmp_path / "orion.db") as store:
        await store.leases.join()
        assert [one.id for one in await store.pull_requests.claim(limit=1)] == [PULL.id]


async def test_one_that_nobody_knows_is_not_kept(stores: Stores) -> None:
    assert not await stores.one.save(PULL)
    assert await stores.one.get(PULL.id) is None


async def test_it_goes_with_its_run(tmp_path: Path) -> None:
    """When the record of who pushed last is removed."""
    async with open_store(tmp_path / "orion.db") as store:
        await store.leases.join()
        await store.add(RUN)
        await store.pull_requests.open(PULL)
        await store.update(RUN.id, state=RunState.SUCCEEDED, ended_at=NOW - timedelta(days=9))
        assert await store.remove_ended(before=NOW, limit=9) == 1
        assert await store.pull_requests.get(PULL.id) is None
