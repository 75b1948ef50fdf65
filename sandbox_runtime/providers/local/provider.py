"""The local provider: sandboxes as directories of this machine, commands under bubblewrap or, by choice, plain."""

import asyncio
import os
import secrets
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from typing_extensions import override

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.host import check_network
from sandbox_runtime.owner import Owner
from sandbox_runtime.probing import probing
from sandbox_runtime.provider import ProgressListener, Sandbox, SandboxProvider, ignore_progress
from sandbox_runtime.providers.local import files
from sandbox_runtime.providers.local.bubblewrap import GROUP, PASSWD
from sandbox_runtime.providers.local.opening import IsolationKind, open_isolation
from sandbox_runtime.providers.local.place import Isolation, Place
from sandbox_runtime.providers.local.placing import (
    make_place,
    require_snapshot,
    uid_range,
    uids_for,
)
from sandbox_runtime.providers.local.probing import probe
from sandbox_runtime.providers.local.records import SandboxRecord, SnapshotRecord
from sandbox_runtime.providers.local.sandbox import LocalSandbox
from sandbox_runtime.providers.local.store import LocalStore
from sandbox_runtime.providers.local.tree import kill_marked, mark_of
from sandbox_runtime.task_group import open_task_group
from sandbox_runtime.types import (
    OF_CLOUDS,
    Capability,
    SandboxId,
    SandboxInfo,
    SandboxSpec,
    SnapshotId,
    SnapshotRef,
)

BASE_NAME = "base"


class LocalProvider(SandboxProvider):
    """Linux only. Lacks ATTACH: its commands die with the process that started them."""

    def __init__(
        self,
        state_dir: Path,
        *,
        isolation: IsolationKind = "bubblewrap",
        ca_bundle: Path | None = None,
        host_env: Mapping[str, str] | None = None,
    ) -> None:
        """`host_env` is the service's environment: what package installers need of it is passed into open sandboxes."""
        self._kind = isolation
        self._ca_bundle = ca_bundle
        self._host_env = dict(host_env or {})
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        self._store = LocalStore(
            state_dir.absolute(), base=f"{isolation} {sys.base_prefix} {version}"
        )
        self._is_root = os.geteuid() == 0
        self._uids = uid_range(state_dir) if self._drops_root else None
        self._sandboxes: dict[SandboxId, LocalSandbox] = {}
        self._isolation: Isolation | None = None
        self._finding: str | None = None
        self._readying = asyncio.Lock()

    @property
    @override
    def name(self) -> str:
        return "local"

    @property
    @override
    def capabilities(self) -> frozenset[Capability]:
        return frozenset(set(Capability) - OF_CLOUDS - {Capability.ATTACH})

    @property
    def _drops_root(self) -> bool:
        return self._is_root and self._kind == "bubblewrap"

    @override
    async def __aenter__(self) -> Self:
        def prepare() -> None:
            self._store.prepare({"passwd": PASSWD, "group": GROUP})
            # A bubblewrap whose parent is killed in the milliseconds before it asks to die with it (PR_SET_PDEATHSIG)
            # stays for ever, waiting for that parent. Source: bubblewrap 0.8.0, main and handle_die_with_parent; seen.
            for sandbox_id in self._store.abandoned():
                kill_marked(mark_of(sandbox_id))
            self._store.sweep()

        await asyncio.to_thread(prepare)
        await self._empty_trash()
        return self

    @override
    async def __aexit__(self, *exc_info: object) -> None:
        async with open_task_group() as group:
            for sandbox in list(self._sandboxes.values()):
                group.create_task(sandbox.destroy())

    @override
    async def probe(self) -> str:
        async with probing("a sandbox", otherwise=SandboxErrorCode.ISOLATION_UNAVAILABLE):
            finding = await probe(self, kind=self._kind, is_root=self._is_root)
        self._finding = finding
        return finding

    @override
    async def ensure_ready(self, progress: ProgressListener | None = None) -> SnapshotRef:
        tell = progress or ignore_progress
        async with self._readying:
            tell("checking")
            if self._finding is None:
                await self.probe()
            found = await self.find_snapshot(BASE_NAME)
            if found is not None:
                tell("exists")
                return found
            tell("creating")
            sandbox = await self.create(SandboxSpec(environment_writable=True))
            try:
                tell("snapshotting")
                ref = await sandbox.snapshot(name=BASE_NAME)
            finally:
                await sandbox.destroy()
            tell("done")
            return ref

    @override
    async def create(self, spec: SandboxSpec) -> Sandbox:
        isolation = self._open_isolation()
        check_network(spec, drops_root=self._drops_root)
        snapshot = await require_snapshot(self._store, spec.snapshot_id)
        await require_snapshot(self._store, spec.workspace_id)
        uids = uids_for(spec, self._uids)
        sandbox_id = SandboxId(secrets.token_hex(8))
        environment = snapshot.environment if snapshot else None
        if spec.environment_writable:
            environment = secrets.token_hex(8)
        record = SandboxRecord(
            id=sandbox_id,
            owner=Owner.current(),
            created_at=datetime.now(UTC),
            labels=dict(spec.labels),
            environment=environment,
            host_uid=None,
        )
        try:
            place = await make_place(self._store, record, spec=spec, snapshot=snapshot, uids=uids)
        except OSError as exc:
            await self._remove(sandbox_id)
            raise SandboxError(
                SandboxErrorCode.CREATE_FAILED, f"cannot make a sandbox: {exc}", retryable=True
            ) from exc
        except BaseException:
            await self._remove(sandbox_id)
            raise
        sandbox = LocalSandbox(
            sandbox_id,
            place=place,
            isolation=isolation,
            env=spec.env,
            save=self._save,
            discard=self._remove,
        )
        self._sandboxes[sandbox_id] = sandbox
        return sandbox

    @override
    async def attach(self, sandbox_id: SandboxId) -> Sandbox:
        raise SandboxError(
            SandboxErrorCode.UNSUPPORTED, "a local sandbox ends with the process that made it"
        )

    @override
    async def list(self, labels: Mapping[str, str] | None = None) -> Sequence[SandboxInfo]:
        wanted = (labels or {}).items()
        records = await asyncio.to_thread(self._store.sandboxes)
        return tuple(
            SandboxInfo(
                id=SandboxId(record.id),
                provider=self.name,
                running=record.owner.alive,
                created_at=record.created_at,
                labels=record.labels,
            )
            for record in sorted(records, key=lambda record: record.created_at)
            if wanted <= record.labels.items()
        )

    @override
    async def remove(self, sandbox_id: SandboxId) -> None:
        own = self._sandboxes.get(sandbox_id)
        if own is not None:
            await own.destroy()
        elif sandbox_id in {record.id for record in await asyncio.to_thread(self._store.sandboxes)}:
            await asyncio.to_thread(kill_marked, mark_of(sandbox_id))
            await self._remove(sandbox_id)

    @override
    async def sweep(self, keep: Collection[SandboxId] = ()) -> int:
        return 0

    @override
    async def find_snapshot(self, name: str) -> SnapshotRef | None:
        record = await asyncio.to_thread(self._store.find_named, name)
        return None if record is None else self._ref(record, name)

    @override
    async def list_snapshots(self) -> Sequence[SnapshotRef]:
        names = await asyncio.to_thread(self._store.names)
        records = await asyncio.to_thread(self._store.snapshots)
        sizes = await asyncio.to_thread(self._store.sizes)
        return tuple(
            replace(self._ref(record, names.get(record.id)), size_bytes=sizes.get(record.id))
            for record in records
            if record.superseded_at is None
        )

    @override
    async def delete_snapshot(self, snapshot_id: SnapshotId) -> None:
        await asyncio.to_thread(self._store.discard_snapshot, snapshot_id)
        await self._collect()

    def _open_isolation(self) -> Isolation:
        if self._isolation is None:
            self._isolation = open_isolation(
                self._kind,
                system=self._store.system,
                ca_bundle=self._ca_bundle,
                host_env=self._host_env,
            )
        return self._isolation

    async def _save(self, place: Place, name: str | None) -> SnapshotRef:
        record = SnapshotRecord(
            id=secrets.token_hex(8),
            created_at=datetime.now(UTC),
            environment=place.environment_id,
        )
        saving = place.directory / "saving"
        try:
            await files.save_workspace(place, saving)
            if place.environment_writable:
                await files.seal_environment(place)
            await asyncio.to_thread(self._store.publish, saving, record, name=name)
        finally:
            await files.remove(saving)
        return self._ref(record, name)

    async def _remove(self, sandbox_id: SandboxId) -> None:
        self._sandboxes.pop(sandbox_id, None)
        await asyncio.to_thread(self._store.discard_sandbox, sandbox_id)
        await self._collect()

    async def _collect(self) -> None:
        await asyncio.to_thread(self._store.sweep)
        await self._empty_trash()

    async def _empty_trash(self) -> None:
        for path in await asyncio.to_thread(lambda: sorted(self._store.trash.iterdir())):
            await files.remove(path)

    def _ref(self, record: SnapshotRecord, name: str | None) -> SnapshotRef:
        return SnapshotRef(
            id=SnapshotId(record.id),
            provider=self.name,
            name=name,
            created_at=record.created_at,
        )
