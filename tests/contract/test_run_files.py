"""What every store of runs' files promises."""

from datetime import timedelta

from app.runs.testing import RunFileKind, RunState
from app.store.memory import MemoryRunStore
from app.store.runs import SqlRunStore
from tests.building import T0, make_request, make_run

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
