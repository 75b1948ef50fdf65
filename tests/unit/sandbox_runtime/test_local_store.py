"""The local state directory: whole or absent, swept when the owner is dead."""

import fcntl
import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sandbox_runtime.lifecycle import Owner
from sandbox_runtime.providers.local.store import (
    SUPERSEDED_KEPT,
    LocalStore,
    SandboxRecord,
    SnapshotRecord,
)

_NOW = datetime(2026, 11, 21, tzinfo=UTC)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    store = LocalStore(tmp_path / "state", base="python 3.11")
    store.prepare({})
    return store


def _sandbox(
    sandbox_id: str, *, owner: Owner | None = None, environment: str | None = None
) -> SandboxRecord:
    return SandboxRecord(
        id=sandbox_id,
        owner=owner or Owner.of(),
        created_at=_NOW,
        labels={},
        environment=environment,
        host_uid=None,
    )


def _publish(
    store: LocalStore, snapshot_id: str, *, name: str | None = None, environment: str | None = None
) -> None:
    made = store.sandbox(f"making-{snapshot_id}")
    made.mkdir()
    store.publish(
        made, SnapshotRecord(id=snapshot_id, created_at=_NOW, environment=environment), name=name
    )


def test_records_survive_the_way_to_disk(store: LocalStore) -> None:
    """What is written is what is read."""
    record = store.claim(_sandbox("a", environment="e"), uids=range(7, 9))
    assert record == replace(_sandbox("a", environment="e"), host_uid=7)
    assert store.sandboxes() == [record]


def test_host_uids_are_unique_and_bounded(store: LocalStore) -> None:
    """Each sandbox has a uid of its own; when all are taken there is none, until one is given back."""
    first, second = (store.claim(_sandbox(name), uids=range(7, 9)) for name in "ab")
    assert first is not None
    assert second is not None
    assert (first.host_uid, second.host_uid) == (7, 8)
    assert store.claim(_sandbox("c"), uids=range(7, 9)) is None
    store.discard_sandbox("a")
    third = store.claim(_sandbox("c"), uids=range(7, 9))
    assert third is not None
    assert third.host_uid == 7


def test_reused_pid_is_not_the_owner() -> None:
    """An owner is alive only if pid and start time agree."""
    me = Owner.of()
    assert me.alive
    assert me.pid == os.getpid()
    assert not replace(me, started="1@other-boot").alive


def test_sweep_takes_what_is_dead_and_leaves_the_living(store: LocalStore) -> None:
    """Sandboxes of dead owners, unfinished directories and unused environments go; all else stays."""
    for name in ("kept", "snapshotted", "orphan"):
        store.environment(name).mkdir()
    store.claim(_sandbox("living", environment="kept"), uids=None)
    dead = replace(Owner.of(), started="1@other-boot")
    store.claim(_sandbox("dead", owner=dead, environment="orphan"), uids=None)
    store.sandbox("half-made").mkdir()
    (store.sandbox("half-made") / "sandbox.json").touch()
    store.snapshot("half-made").mkdir()
    _publish(store, "s", environment="snapshotted")
    store.sweep()
    assert [record.id for record in store.sandboxes()] == ["living"]
    assert not store.sandbox("half-made").exists()
    assert not store.snapshot("half-made").exists()
    assert store.find("s") is not None
    remaining = {path.name for path in store.environment("x").parent.iterdir()}
    assert remaining == {"kept", "snapshotted"}


def test_unfinished_snapshot_is_not_found(store: LocalStore) -> None:
    """A snapshot directory without its record does not exist."""
    store.snapshot("half").mkdir()
    assert store.find("half") is None
    assert store.snapshots() == []


@pytest.mark.parametrize("hostile", ["../sandboxes", "", ".", "..", "a/b", "x" * 300])
def test_hostile_ids_find_nothing(store: LocalStore, hostile: str) -> None:
    """An id never leads out of the snapshots."""
    assert store.find(hostile) is None


def test_names_belong_to_one_base(tmp_path: Path, store: LocalStore) -> None:
    """Another Python or isolation does not find environments made for this one."""
    _publish(store, "s", name="agent")
    assert store.find_named("agent") is not None
    other = LocalStore(tmp_path / "state", base="python 3.12")
    assert other.find_named("agent") is None


def test_replaced_snapshot_is_kept_a_while(store: LocalStore) -> None:
    """A replaced snapshot can be restored for an hour by those who hold its id, then it goes."""
    _publish(store, "old", name="agent")
    _publish(store, "new", name="agent")
    found = store.find_named("agent")
    assert found is not None
    assert found.id == "new"
    store.sweep()
    old = store.find("old")
    assert old is not None
    assert old.superseded_at is not None
    aged = replace(old, superseded_at=datetime.now(UTC) - SUPERSEDED_KEPT - timedelta(seconds=1))
    (store.snapshot("old") / "snapshot.json").write_text(aged.to_json())
    store.sweep()
    assert store.find("old") is None
    assert store.find("new") is not None


def test_who_is_frozen_keeps_nobody_out(tmp_path: Path) -> None:
    """Whoever came after it goes on, with a lock that the frozen one does not have; the next one waits for that."""
    store = LocalStore(tmp_path / "state", base="", locked_s=0.2)
    store.prepare({})
    path = tmp_path / "state" / "lock"
    with path.open("a") as frozen:
        fcntl.flock(frozen, fcntl.LOCK_EX)
        assert store.claim(_sandbox("a"), uids=None) is not None
        assert path.stat().st_ino != os.fstat(frozen.fileno()).st_ino
        assert store.claim(_sandbox("b"), uids=None) is not None
    assert {record.id for record in store.sandboxes()} == {"a", "b"}


def test_the_lock_stays_where_nobody_is_frozen(tmp_path: Path) -> None:
    """One after the other has the same one."""
    store = LocalStore(tmp_path / "state", base="")
    store.prepare({})
    store.claim(_sandbox("a"), uids=None)
    before = (tmp_path / "state" / "lock").stat().st_ino
    store.claim(_sandbox("b"), uids=None)
    assert (tmp_path / "state" / "lock").stat().st_ino == before
