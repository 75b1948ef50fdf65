"""What every store of runs' files promises."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from app.runs.testing import RunFileKind, RunState
from app.store.memory import MemoryRunStore
from app.store.runs import SqlRunStore, open_store
from tests.building import T0, make_request, make_run

Store = MemoryRunStore | SqlRunStore


@pytest.fixture(
    params=["memory", "sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)]
)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    match request.param:
        case "memory":
            yield MemoryRunStore()
        case "sqlite":
            async with open_store(tmp_path / "orion.db") as sqlite:
                yield sqlite
        case _:
            async with open_store(request.getfixturevalue("postgres_url")) as postgres:
                yield postgres


async def test_files_are_kept_by_kind_and_replaced(store: Store) -> None:
    """The last content of a kind counts; what was never saved is empty."""
    run = make_run()
    await store.add(run)
    await store.files.save(run.id, RunFileKind.LOG, "first")
    await store.files.save(run.id, RunFileKind.LOG, "second «ü» \x01")
    assert await store.files.load(run.id, RunFileKind.LOG) == "second «ü» \x01"
    assert await store.files.load(run.id, RunFileKind.PATCH) == ""


async def test_files_go_with_their_run(store: Store) -> None:
    """Removing old runs removes what they left, and nothing of a younger one."""
    old, young = make_run(), make_run(make_request(ts="2.000001"))
    for run, ended_at in ((old, T0 - timedelta(days=9)), (young, T0)):
        await store.add(run)
        await store.files.save(run.id, RunFileKind.PATCH, run.id)
        await store.update(run.id, state=RunState.SUCCEEDED, ended_at=ended_at)
    assert await store.remove_ended(before=T0 - timedelta(days=8), limit=10) == 1
    assert await store.files.load(old.id, RunFileKind.PATCH) == ""
    assert await store.files.load(young.id, RunFileKind.PATCH) == young.id
