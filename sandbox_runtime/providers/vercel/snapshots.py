"""Snapshots: the whole disk at Vercel, told of by the record of the sandbox that was saved.

Saving stops the sandbox. Its record stays, under its name, with the snapshot in its tags: that is what is found, listed and
deleted here. A snapshot below it that it booted from is never touched. Source: Vercel documentation, "Snapshots", read 2026-11.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import vercel.sandbox as sdk

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.managed_provider import remove_replaced
from sandbox_runtime.providers.vercel import VercelSettings
from sandbox_runtime.providers.vercel import labels as keys
from sandbox_runtime.providers.vercel.client import (
    ATTEMPTS,
    Order,
    VercelClient,
    ask,
    end_record,
    is_status,
    map_errors,
)
from sandbox_runtime.providers.vercel.labels import SnapshotTags
from sandbox_runtime.providers.vercel.machine import About, Machine
from sandbox_runtime.types import SandboxSpec, SnapshotId, SnapshotRef

PROVIDER_NAME = "vercel"
BASE = "base"
"""Of the image, without any snapshot."""
_SNAPSHOT_TIMEOUT_S = 65.0
_MOVE_TIMEOUT_S = 600.0
_PIECE_BYTES = 1024 * 1024
_MAX_WORKSPACE_BYTES = 4 * 1024**3
_ARCHIVE = "/tmp/orion-workspace.tar.gz"  # noqa: S108  # in a machine where nothing of the agent's runs
_GONE = SandboxErrorCode.UNAVAILABLE


class Snapshots:
    """The snapshots of one namespace in a project."""

    def __init__(self, client: VercelClient, settings: VercelSettings) -> None:
        self._client = client
        self._settings = settings

    async def find(self, snapshot_id: str) -> SnapshotTags | None:
        """Finds a snapshot by our id, which is the name of the record that tells of it."""
        record = await self._client.find_record(snapshot_id)
        return SnapshotTags.decode(record.tags or {}) if record is not None else None

    async def find_named(self, name: str) -> SnapshotRef | None:
        """Returns the newest snapshot of that name that still exists."""
        found = await self._all(key=keys.NAME, value=keys.encode(name))
        for record_name, snapshot in sorted(found, key=lambda item: item[1].created_at)[::-1]:
            if await self._exists(snapshot):
                return _ref(record_name, snapshot)
        return None

    async def list(self) -> Sequence[SnapshotRef]:
        """Lists snapshots, oldest first, each with its size without the system below."""
        found = await self._all(key=keys.MANAGED, value=keys.SNAPSHOT)
        refs = (_ref(record_name, snapshot) for record_name, snapshot in found)
        return tuple(sorted(refs, key=lambda ref: ref.created_at))

    async def delete(self, snapshot_id: str) -> None:
        """Deletes the snapshot and the record; unknown ids are fine."""
        record = await self._client.find_record(snapshot_id)
        snapshot = SnapshotTags.decode(record.tags or {}) if record is not None else None
        if record is None or snapshot is None:
            return
        await self._delete(snapshot.vercel_id)
        await end_record(record)

    async def _delete(self, vercel_id: str) -> None:
        async def delete() -> None:
            await (await self._client.sdk.get_snapshot(snapshot_id=vercel_id)).delete()

        try:
            await ask(delete, "cannot delete a snapshot")
        except SandboxError as exc:
            if exc.code is not SandboxErrorCode.NOT_FOUND and not is_status(exc, 410):
                raise

    async def save(self, machine: Machine, about: About, name: str | None) -> SnapshotRef:
        """Saves a sandbox in which no command runs any more; it is off afterwards."""
        size_bytes = await machine.prepare_to_save()
        made = await self._save_once(machine)
        snapshot = SnapshotTags(
            vercel_id=made.id,
            name=name,
            size_bytes=size_bytes,
            created_at=datetime.fromtimestamp(made.created_at / 1000, UTC),
            environment="" if about.is_writable else about.environment,
        )
        record = machine.handle
        try:
            await ask(lambda: record.update(tags=snapshot.encode()), "cannot write down a snapshot")
        except BaseException:
            await self._delete(made.id)  # nobody would ever find it
            raise
        if name is not None:
            await self._replace(record.name, snapshot)
        return _ref(record.name, snapshot)

    async def _save_once(self, machine: Machine) -> sdk.Snapshot:
        """Saves once, whatever becomes of the answer: the record says which snapshot is the sandbox's last one."""
        before = machine.handle.current_snapshot_id
        for attempt in range(1, ATTEMPTS + 1):
            try:
                async with map_errors(
                    "cannot save a sandbox", timeout_s=_SNAPSHOT_TIMEOUT_S, missing=_GONE
                ):
                    return await machine.session.snapshot(expiration=self._settings.snapshot_keep_s)
            except SandboxError as exc:
                if not exc.retryable:
                    raise
                found = await self._client.find_record(machine.handle.name)
                made = found.current_snapshot_id if found is not None else None
                if made is not None and made != before:
                    return await ask(
                        lambda made=made: self._client.sdk.get_snapshot(snapshot_id=made),  # type: ignore[misc]  # bound now
                        "cannot find a snapshot",
                    )
                if attempt == ATTEMPTS:
                    raise
        raise AssertionError("the last attempt returns or raises")

    async def move_workspace(self, saved: SnapshotTags, target: Machine) -> None:
        """Moves the files of work and home of a snapshot into a running machine, through here."""
        source = await self._boot(saved)
        try:
            await source.pack(_ARCHIVE)
            with tempfile.TemporaryFile() as file:
                async with (
                    map_errors("cannot move a workspace", timeout_s=_MOVE_TIMEOUT_S),
                    source.session.fs.open(_ARCHIVE, "rb") as reader,
                ):
                    while data := await reader.read(_PIECE_BYTES):
                        file.write(data)
                        if file.tell() > _MAX_WORKSPACE_BYTES:
                            raise SandboxError(
                                SandboxErrorCode.LIMIT_REACHED,
                                f"a workspace is larger than {_MAX_WORKSPACE_BYTES} bytes",
                            )
                size = file.tell()
                file.seek(0)
                async with (
                    map_errors("cannot move a workspace", timeout_s=_MOVE_TIMEOUT_S),
                    target.session.fs.open(_ARCHIVE, "wb", size=size) as writer,
                ):
                    while data := file.read(_PIECE_BYTES):
                        await writer.write(data)
            await target.unpack(_ARCHIVE)
        finally:
            await end_record(source.handle)

    async def _boot(self, saved: SnapshotTags) -> Machine:
        """Boots a closed sandbox from a snapshot, for a moment."""
        order = Order(
            source=saved,
            network_policy=sdk.NetworkPolicy.deny_all(),
            labels={},
            lifetime_s=self._settings.lifetime_s,
        )
        record = await self._client.create(order)
        try:
            return Machine.of(record)
        except BaseException:
            await self._client.discard(record)
            raise

    async def _exists(self, snapshot: SnapshotTags) -> bool:
        try:
            found = await ask(
                lambda: self._client.sdk.get_snapshot(snapshot_id=snapshot.vercel_id),
                "cannot find a snapshot",
            )
        except SandboxError as exc:
            if exc.code is SandboxErrorCode.NOT_FOUND or is_status(exc, 410):
                return False
            raise
        return found.status == "created"

    async def _replace(self, record_name: str, snapshot: SnapshotTags) -> None:
        """Deletes the older ones of its name: of a name there is one. What still runs from an older one keeps running."""
        found = await self._all(key=keys.NAME, value=keys.encode(snapshot.name or ""))
        for other_name, other in found:
            if other_name != record_name and other.created_at <= snapshot.created_at:
                await remove_replaced(partial(self.delete, other_name))

    async def _all(self, *, key: str, value: str) -> Sequence[tuple[str, SnapshotTags]]:
        records = await self._client.list_records(key=key, value=value)
        decoded = ((record.name, SnapshotTags.decode(record.tags or {})) for record in records)
        return [(name, snapshot) for name, snapshot in decoded if snapshot is not None]


def _ref(record_name: str, snapshot: SnapshotTags) -> SnapshotRef:
    return SnapshotRef(
        id=SnapshotId(record_name),
        provider=PROVIDER_NAME,
        name=snapshot.name,
        created_at=snapshot.created_at,
        size_bytes=snapshot.size_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Says what a sandbox starts from: a disk, and a workspace that has to be moved onto it."""

    disk: SnapshotTags | None
    """None = the image."""
    environment: str
    """Id of the snapshot that holds the environment, or of the base."""
    workspace: SnapshotTags | None


async def find_source(snapshots: Snapshots, spec: SandboxSpec) -> Source:
    """Finds what a sandbox starts from. Raises: SandboxError: NOT_FOUND for an unknown snapshot."""
    source, environment = None, BASE
    if spec.snapshot_id is not None and spec.snapshot_id != BASE:
        source = await _require(snapshots, spec.snapshot_id)
        environment = source.environment or spec.snapshot_id
    if spec.workspace_id is None or spec.workspace_id == spec.snapshot_id:
        return Source(disk=source, environment=environment, workspace=None)
    workspace = await _require(snapshots, spec.workspace_id)
    if workspace.environment == environment:
        # Its disk holds both: the usual case, and nothing has to be moved.
        return Source(disk=workspace, environment=environment, workspace=None)
    return Source(disk=source, environment=environment, workspace=workspace)


async def _require(snapshots: Snapshots, snapshot_id: str) -> SnapshotTags:
    found = await snapshots.find(snapshot_id)
    if found is None:
        raise SandboxError(SandboxErrorCode.NOT_FOUND, f"no snapshot {snapshot_id!r}")
    return found
