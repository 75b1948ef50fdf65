"""Snapshots: the whole disk at Vercel, told of by the record of the sandbox that was saved.

Saving stops the sandbox. Its record stays, under its name, with the snapshot in its tags: that is what is found, listed and
deleted here. A snapshot below it that it booted from is never touched. Source: Vercel documentation, "Snapshots", read 2026-11.
"""

import logging
import re
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Protocol

import vercel.sandbox as sdk

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.providers.vercel import tags as keys
from sandbox_runtime.providers.vercel.errors import ATTEMPTS, ask, asking, is_status
from sandbox_runtime.providers.vercel.machine import About, Machine
from sandbox_runtime.providers.vercel.settings import VercelSettings
from sandbox_runtime.providers.vercel.tags import SnapshotTags
from sandbox_runtime.types import SnapshotId, SnapshotRef

PROVIDER_NAME = "vercel"
BASE = "base"
"""Of the image, without any snapshot."""
_SNAPSHOT_TIMEOUT_S = 65.0
_LIST_TIMEOUT_S = 60.0
_MOVE_TIMEOUT_S = 600.0
_PIECE_BYTES = 1024 * 1024
_MAX_WORKSPACE_BYTES = 4 * 1024**3
_ARCHIVE = "/tmp/orion-workspace.tar.gz"  # noqa: S108  # in a machine where nothing of the agent's runs
_GONE = SandboxErrorCode.UNAVAILABLE

_log = logging.getLogger(__name__)


class BootSaved(Protocol):
    """Boots a closed sandbox from a snapshot, for a moment."""

    async def __call__(self, snapshot: SnapshotTags) -> Machine: ...


class Snapshots:
    """Of one namespace in a project."""

    def __init__(self, client: sdk.SandboxClient, settings: VercelSettings) -> None:
        self._client = client
        self._keep_s = settings.snapshot_keep_s
        self.prefix = f"orion-{settings.name}-"
        self._id = re.compile(re.escape(self.prefix) + "[0-9a-f]{16}")

    async def find(self, snapshot_id: str) -> SnapshotTags | None:
        """By our id, which is the name of the record that tells of it."""
        record = await self.record(snapshot_id)
        return SnapshotTags.decode(record.tags or {}) if record is not None else None

    async def record(self, name: str) -> sdk.Sandbox | None:
        """A sandbox of the namespace, running or not; it is not resumed."""
        if not self._id.fullmatch(name):
            return None
        try:
            return await ask(lambda: self._client.get_sandbox(name=name), "cannot find a sandbox")
        except SandboxError as exc:
            if exc.code is SandboxErrorCode.NOT_FOUND:
                return None
            raise

    async def records(self, *, key: str, value: str) -> Sequence[sdk.Sandbox]:
        """Sandboxes of the namespace with that tag."""
        query = sdk.SandboxQueryByName(
            name_prefix=self.prefix, tag=sdk.TagFilter(key=key, value=value)
        )

        async def records() -> Sequence[sdk.Sandbox]:
            # Asked for by prefix, and looked at again: a listing that ignores it must not show what is not ours.
            return [
                record
                async for record in self._client.query_sandboxes(query=query)
                if self._id.fullmatch(record.name)
            ]

        return await ask(records, "cannot list sandboxes", timeout_s=_LIST_TIMEOUT_S)

    async def find_named(self, name: str) -> SnapshotRef | None:
        """The newest of that name that still exists."""
        found = await self._all(key=keys.NAME, value=keys.encode(name))
        for record_name, snapshot in sorted(found, key=lambda item: item[1].created_at)[::-1]:
            if await self._exists(snapshot):
                return _ref(record_name, snapshot)
        return None

    async def list(self) -> Sequence[SnapshotRef]:
        """Oldest first, each with its size without the system below."""
        found = await self._all(key=keys.MANAGED, value=keys.SNAPSHOT)
        refs = (_ref(record_name, snapshot) for record_name, snapshot in found)
        return tuple(sorted(refs, key=lambda ref: ref.created_at))

    async def delete(self, snapshot_id: str) -> None:
        """The snapshot and the record; unknown ids are fine."""
        record = await self.record(snapshot_id)
        snapshot = SnapshotTags.decode(record.tags or {}) if record is not None else None
        if record is None or snapshot is None:
            return
        await self._delete(snapshot.vercel_id)
        await end_record(record)

    async def _delete(self, vercel_id: str) -> None:
        async def delete() -> None:
            await (await self._client.get_snapshot(snapshot_id=vercel_id)).delete()

        try:
            await ask(delete, "cannot delete a snapshot")
        except SandboxError as exc:
            if exc.code is not SandboxErrorCode.NOT_FOUND and not is_status(exc, 410):
                raise

    async def save(self, machine: Machine, about: About, name: str | None) -> SnapshotRef:
        """A snapshot of a sandbox in which no command runs any more; it is off afterwards."""
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
        """Whatever becomes of the answer: the record says which snapshot is the sandbox's last one."""
        before = machine.handle.current_snapshot_id
        for attempt in range(1, ATTEMPTS + 1):
            try:
                async with asking(
                    "cannot save a sandbox", timeout_s=_SNAPSHOT_TIMEOUT_S, missing=_GONE
                ):
                    return await machine.session.snapshot(expiration=self._keep_s)
            except SandboxError as exc:
                if not exc.retryable:
                    raise
                found = await self.record(machine.handle.name)
                made = found.current_snapshot_id if found is not None else None
                if made is not None and made != before:
                    return await ask(
                        lambda made=made: self._client.get_snapshot(snapshot_id=made),  # type: ignore[misc]  # bound now
                        "cannot find a snapshot",
                    )
                if attempt == ATTEMPTS:
                    raise
        raise AssertionError("the last attempt returns or raises")

    async def move_workspace(self, saved: SnapshotTags, target: Machine, boot: BootSaved) -> None:
        """The files of work and home of a snapshot into a running machine, through here."""
        source = await boot(saved)
        try:
            await source.pack(_ARCHIVE)
            with tempfile.TemporaryFile() as file:
                async with (
                    asking("cannot move a workspace", timeout_s=_MOVE_TIMEOUT_S),
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
                    asking("cannot move a workspace", timeout_s=_MOVE_TIMEOUT_S),
                    target.session.fs.open(_ARCHIVE, "wb", size=size) as writer,
                ):
                    while data := file.read(_PIECE_BYTES):
                        await writer.write(data)
            await target.unpack(_ARCHIVE)
        finally:
            await end_record(source.handle)

    async def _exists(self, snapshot: SnapshotTags) -> bool:
        try:
            found = await ask(
                lambda: self._client.get_snapshot(snapshot_id=snapshot.vercel_id),
                "cannot find a snapshot",
            )
        except SandboxError as exc:
            if exc.code is SandboxErrorCode.NOT_FOUND or is_status(exc, 410):
                return False
            raise
        return found.status == "created"

    async def _replace(self, record_name: str, snapshot: SnapshotTags) -> None:
        """Of a name there is one. What still runs from an older one keeps running."""
        found = await self._all(key=keys.NAME, value=keys.encode(snapshot.name or ""))
        for other_name, other in found:
            if other_name != record_name and other.created_at <= snapshot.created_at:
                try:
                    await self.delete(other_name)
                except SandboxError as exc:
                    _log.warning(
                        "snapshot not removed",
                        extra={"action": "snapshot.remove_failed", "reason": str(exc)},
                    )

    async def _all(self, *, key: str, value: str) -> Sequence[tuple[str, SnapshotTags]]:
        records = await self.records(key=key, value=value)
        decoded = ((record.name, SnapshotTags.decode(record.tags or {})) for record in records)
        return [(name, snapshot) for name, snapshot in decoded if snapshot is not None]


async def end_record(record: sdk.Sandbox) -> None:
    """Stop it and remove its record; what is gone already is fine. Snapshots stay."""
    for doing, step in (("stop", record.stop), ("destroy", record.destroy)):
        try:
            await ask(step, f"cannot {doing} a sandbox")
        except SandboxError as exc:
            if exc.code is not SandboxErrorCode.NOT_FOUND and not is_status(exc, 410, 422):
                raise


def _ref(record_name: str, snapshot: SnapshotTags) -> SnapshotRef:
    return SnapshotRef(
        id=SnapshotId(record_name),
        provider=PROVIDER_NAME,
        name=snapshot.name,
        created_at=snapshot.created_at,
        size_bytes=snapshot.size_bytes,
    )
