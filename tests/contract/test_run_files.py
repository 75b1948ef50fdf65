"""What every store of runs' files promises."""

from datetime import timedelta
from pathlib import Path

import pytest

from app.aio import open_task_group
from app.runs.testing import RunFileKind, RunState
from app.store.memory import MemoryRunStore
from app.store.runs import SqlRunStore, open_store
from tests.building import T0, make_request, make_run
from tests.contract.building import POSTGRESQL

Store = MemoryRunStore | SqlRunStore


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


async def test_lines_are_added_to_what_is_there(store: Store) -> None:
    """In the order in which they came; the first one to nothing, and those of a text that was saved stay."""
    run = make_run()
    await store.add(run)
    for line in ("first", "«ü»"):
        await store.files.append(run.id, RunFileKind.STEPS, line)
    assert await store.files.load(run.id, RunFileKind.STEPS) == "first\n«ü»"
    await store.files.save(run.id, RunFileKind.STEPS, "saved")
    await store.files.append(run.id, RunFileKind.STEPS, "second")
    assert await store.files.load(run.id, RunFileKind.STEPS) == "saved\nsecond"


@pytest.mark.parametrize("database", ["sqlite", POSTGRESQL])
async def test_lines_of_several_processes_are_all_kept(
    database: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Whoever has the run: what each adds at once with the others is there once."""
    is_file = database == "sqlite"
    where = tmp_path / "orion.db" if is_file else request.getfixturevalue("postgres_url")
    async with open_store(where) as one, open_store(where) as other:
        run = make_run()
        await one.add(run)
        lines = [f"{number}" for number in range(40)]
        async with open_task_group() as group:
            for number, line in enumerate(lines):
                files = (one, other)[number % 2].files
                group.create_task(files.append(run.id, RunFileKind.STEPS, line))
        kept = await one.files.load(run.id, RunFileKind.STEPS)
    assert sorted(kept.splitlines(), key=int) == lines
