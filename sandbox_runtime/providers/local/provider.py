"""The local provider: sandboxes as directories of this machine, commands under bubblewrap or, by choice, plain."""

import asyncio
import os
import secrets
import shutil
import sys
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, Self

from typing_extensions import override

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.host import check_network, open_view
from sandbox_runtime.lifecycle import Owner, destroy_all
from sandbox_runtime.probing import EXEC_TIMEOUT_S, FILE_BYTES, check_isolation, probing
from sandbox_runtime.provider import (
    ProgressListener,
    Sandbox,
    SandboxProvider,
    ServiceContext,
    ignore_progress,
)
from sandbox_runtime.providers.inside.kill import kill_processes
from sandbox_runtime.providers.local.isolation import (
    GROUP,
    PASSWD,
    BubblewrapIsolation,
    Isolation,
    Place,
    PlainIsolation,
    Tools,
)
from sandbox_runtime.providers.local.processes import mark_of
from sandbox_runtime.providers.local.sandbox import LocalSandbox
from sandbox_runtime.providers.local.stats import measure_processes
from sandbox_runtime.providers.local.store import (
    LocalStore,
    SandboxRecord,
    SnapshotRecord,
    copy_workspace,
    fill_place,
    remove_tree,
    save_workspace,
    seal_environment,
)
from sandbox_runtime.providers.seccomp import filter_program
from sandbox_runtime.types import (
    Capability,
    SandboxId,
    SandboxInfo,
    SandboxLimits,
    SandboxSpec,
    SandboxStats,
    SnapshotId,
    SnapshotRef,
)

IsolationKind = Literal["bubblewrap", "none"]

UIDS_PER_STATE_DIR = 256
"""Sandboxes at once, when running as root: each is a host uid of its own."""
FIRST_UID, UID_BLOCKS = 200_000, 1024
"""Above the accounts of people and services and below systemd's container ranges. Source: systemd, UIDS-GIDS, read 2026-11."""

_LIMITS = SandboxLimits(max_processes=16, max_file_bytes=FILE_BYTES)
_USER_NAMESPACES = (
    "user namespaces may be forbidden here: see the sysctls user.max_user_namespaces, "
    "kernel.unprivileged_userns_clone and kernel.apparmor_restrict_unprivileged_userns"
)

BASE_NAME = "base"


class LocalProvider(SandboxProvider):
    """Linux only. Lacks ATTACH: its commands die with the process that started them, which alone can attach to its own."""

    name = "local"
    capabilities = frozenset({Capability.SNAPSHOT, Capability.MOUNT, Capability.TERMINAL})

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
    def _drops_root(self) -> bool:
        return self._is_root and self._kind == "bubblewrap"

    @override
    async def __aenter__(self) -> Self:
        def prepare() -> None:
            self._store.prepare({"passwd": PASSWD, "group": GROUP})
            # A bubblewrap whose parent is killed in the milliseconds before it asks to die with it (PR_SET_PDEATHSIG)
            # stays for ever, waiting for that parent. Source: bubblewrap 0.8.0, main and handle_die_with_parent; seen.
            for sandbox_id in self._store.abandoned():
                kill_processes(mark_of(sandbox_id).encode())
            self._store.sweep()

        await asyncio.to_thread(prepare)
        await self._empty_trash()
        return self

    @override
    async def __aexit__(self, *exc_info: object) -> None:
        await destroy_all(self._sandboxes.values())

    @override
    async def probe(self) -> str:
        async with probing("a sandbox", otherwise=SandboxErrorCode.ISOLATION_UNAVAILABLE):
            finding = await _probe(self, kind=self._kind, is_root=self._is_root)
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
            owner=Owner.of(),
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
        """Returns one of this provider's own: what its process has begun, the same process can go on with."""
        if own := self._sandboxes.get(sandbox_id):
            return own
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
    async def stats(self, sandbox_id: SandboxId) -> SandboxStats:
        records = await asyncio.to_thread(self._store.sandboxes)
        if not any(record.id == sandbox_id and record.owner.alive for record in records):
            return SandboxStats()
        return await asyncio.to_thread(measure_processes, mark_of(sandbox_id).encode())

    @override
    async def remove(self, sandbox_id: SandboxId) -> None:
        own = self._sandboxes.get(sandbox_id)
        if own is not None:
            await own.destroy()
        elif sandbox_id in {record.id for record in await asyncio.to_thread(self._store.sandboxes)}:
            await asyncio.to_thread(kill_processes, mark_of(sandbox_id).encode())
            await self._remove(sandbox_id)

    @override
    async def sweep(
        self, keep: Collection[SandboxId] = (), *, living: Collection[str] | None = None
    ) -> int:
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

    @override
    async def keep_copy(self, snapshot_id: SnapshotId) -> None:
        await copy_workspace(self._store, snapshot_id)

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
            await save_workspace(place, saving)
            if place.environment_writable:
                await seal_environment(place)
            await asyncio.to_thread(self._store.publish, saving, record, name=name)
        finally:
            await remove_tree(saving)
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
            await remove_tree(path)

    def _ref(self, record: SnapshotRecord, name: str | None) -> SnapshotRef:
        return SnapshotRef(
            id=SnapshotId(record.id),
            provider=self.name,
            name=name,
            created_at=record.created_at,
        )


def open_isolation(
    kind: IsolationKind, *, system: Path, ca_bundle: Path | None, host_env: Mapping[str, str]
) -> Isolation:
    """Returns the isolation of that kind, with its programs found on the host's PATH.

    Raises:
        SandboxError: ISOLATION_UNAVAILABLE when a program is missing, or no filter is known for such a machine.
    """
    host = open_view(host_env)
    path = host_env.get("PATH", os.defpath)
    setpriv, prlimit = (_find(name, path, "util-linux") for name in ("setpriv", "prlimit"))
    if kind == "none":
        return PlainIsolation(prlimit=prlimit, setpriv=setpriv, host=host, ca_bundle=ca_bundle)
    bwrap = _find("bwrap", path, "bubblewrap (0.8 or later)")
    return BubblewrapIsolation(
        tools=Tools(bwrap=bwrap, setpriv=setpriv, prlimit=prlimit),
        system=system,
        host=host,
        ca_bundle=ca_bundle,
        filter=filter_program(),
    )


def _find(program: str, path: str, package: str) -> str:
    found = shutil.which(program, path=path)
    if found is None:
        raise SandboxError(
            SandboxErrorCode.ISOLATION_UNAVAILABLE, f"{program} is not installed: install {package}"
        )
    return found


def uid_range(state_dir: Path) -> range:
    """Returns host uids of this state directory's sandboxes, seldom shared with those of another one."""
    block = zlib.crc32(bytes(state_dir.absolute())) % UID_BLOCKS
    return range(
        FIRST_UID + block * UIDS_PER_STATE_DIR, FIRST_UID + (block + 1) * UIDS_PER_STATE_DIR
    )


def uids_for(spec: SandboxSpec, own: range | None) -> range | None:
    """Returns whose a sandbox's processes may be on the host: in a directory of the host's only those of its owner can work."""
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
    """Returns the record of the snapshot that is asked for, if any is. Raises: SandboxError: NOT_FOUND."""
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
    """Claims and fills the place of a sandbox.

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
    saved = store.snapshot(workspace.id) if workspace else None
    copied = directory / "copied"
    is_copy = workspace is not None and store.take_copy(workspace.id, copied)
    await fill_place(
        place,
        saved=copied if is_copy else saved,
        template=store.environment(template) if template else None,
        is_copy=is_copy,
    )
    return place


async def _probe(provider: SandboxProvider, *, kind: str, is_root: bool) -> str:
    """Returns one line on what was found. Raises: SandboxError: ISOLATION_UNAVAILABLE, with the reason."""
    try:
        sandbox = await provider.create(SandboxSpec(limits=_LIMITS))
        try:
            if kind == "none":
                await sandbox.exec(["python3", "-c", "pass"], timeout_s=EXEC_TIMEOUT_S)
                return "no isolation: commands run as plain processes with resource limits"
            await check_isolation(sandbox, what="bubblewrap", forks=24, max_processes_seen=8)
        finally:
            await sandbox.destroy()
    except SandboxError as exc:
        if exc.code is SandboxErrorCode.ISOLATION_UNAVAILABLE:
            raise
        raise SandboxError(
            SandboxErrorCode.ISOLATION_UNAVAILABLE, f"{exc}; {_USER_NAMESPACES}"
        ) from exc
    user = "a host user per sandbox" if is_root else "the service's own user"
    return (
        f"bubblewrap as {user}: user, pid, ipc, uts, mount and network namespaces hold, "
        "no capabilities, limits on memory, processes, file size and open files enforced"
    )


def create(context: ServiceContext) -> SandboxProvider:
    """Makes the provider for a service."""
    kind: IsolationKind = (
        "none" if context.values["ORION_LOCAL_ISOLATION"] == "none" else "bubblewrap"
    )
    return LocalProvider(
        context.state_dir,
        isolation=kind,
        ca_bundle=context.ca_bundle,
        host_env=context.host_env,
    )
