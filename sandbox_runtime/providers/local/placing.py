"""How a local sandbox gets its place: which host user it runs as, its directory, and what lies in it at first."""

import asyncio
import zlib
from pathlib import Path

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.providers.local import files
from sandbox_runtime.providers.local.place import Place
from sandbox_runtime.providers.local.records import SandboxRecord, SnapshotRecord
from sandbox_runtime.providers.local.store import LocalStore
from sandbox_runtime.types import SandboxSpec, SnapshotId

UIDS_PER_STATE_DIR = 256
"""Sandboxes at once, when running as root: each is a host uid of its own."""
FIRST_UID, UID_BLOCKS = 200_000, 1024
"""Above the accounts of people and services and below systemd's container ranges. Source: systemd, UIDS-GIDS, read 2026-11."""


def uid_range(state_dir: Path) -> range:
    """Host uids of this state directory's sandboxes, seldom shared with those of another one."""
    block = zlib.crc32(bytes(state_dir.absolute())) % UID_BLOCKS
    return range(
        FIRST_UID + block * UIDS_PER_STATE_DIR, FIRST_UID + (block + 1) * UIDS_PER_STATE_DIR
    )


def uids_for(spec: SandboxSpec, own: range | None) -> range | None:
    """Whose a sandbox's processes may be on the host: in a directory of the host's only those of its owner can work."""
    if spec.work_dir is None:
        return own
    directory = Path(spec.work_dir)
    if not directory.is_absolute() or not directory.is_dir():
        raise SandboxError(SandboxErrorCode.NOT_FOUND, f"there is no directory {directory}")
    if own is None:
        return None
    owner = directory.stat().st_uid
    if owner == 0:
        raise SandboxError(
            SandboxErrorCode.UNSUPPORTED,
            f"{directory} belongs to root, and nothing in a sandbox runs as root: chown it to a user, or work in a copy",
        )
    return range(owner, owner + 1)


async def require_snapshot(
    store: LocalStore, snapshot_id: SnapshotId | None
) -> SnapshotRecord | None:
    """What is asked for, if anything is.

    Raises:
        SandboxError: NOT_FOUND.
    """
    if snapshot_id is None:
        return None
    record = await asyncio.to_thread(store.find, snapshot_id)
    if record is None:
        raise SandboxError(SandboxErrorCode.NOT_FOUND, f"no snapshot {snapshot_id!r}")
    return record


async def make_place(
    store: LocalStore,
    record: SandboxRecord,
    *,
    spec: SandboxSpec,
    snapshot: SnapshotRecord | None,
    uids: range | None,
) -> Place:
    """The claimed and filled place of a sandbox.

    Raises:
        SandboxError: LIMIT_REACHED, or NOT_FOUND for a snapshot that went meanwhile.
        OSError: the disk.
    """
    claimed = await asyncio.to_thread(store.claim, record, uids=uids)
    if claimed is None:
        raise SandboxError(
            SandboxErrorCode.LIMIT_REACHED,
            f"{UIDS_PER_STATE_DIR} local sandboxes are running"
            if spec.work_dir is None
            else f"another sandbox works as the owner of {spec.work_dir}",
        )
    # Claimed: from here on its environment is kept. It may have gone just before.
    await require_snapshot(store, spec.snapshot_id)
    workspace = await require_snapshot(store, spec.workspace_id) or snapshot
    directory = store.sandbox(record.id)
    place = Place(
        directory=directory,
        environment_id=record.environment,
        environment=(
            store.environment(record.environment)
            if record.environment
            else directory / "environment"
        ),
        environment_writable=spec.environment_writable,
        network=spec.network,
        limits=spec.limits,
        host_uid=claimed.host_uid,
        mounted=Path(spec.work_dir) if spec.work_dir is not None else None,
    )
    template = snapshot.environment if snapshot else None
    await files.fill_place(
        place,
        saved=store.snapshot(workspace.id) if workspace else None,
        template=store.environment(template) if template else None,
    )
    return place
