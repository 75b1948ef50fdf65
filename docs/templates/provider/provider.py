"""The NAME provider: sandboxes as directories of this machine, without isolation; what follows stands for a vendor's API."""

import asyncio
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from typing_extensions import override

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.host import check_network
from sandbox_runtime.managed_provider import Keep, ManagedProvider
from sandbox_runtime.provider import (
    ProgressListener,
    SandboxProvider,
    ServiceContext,
    ignore_progress,
)
from sandbox_runtime.providers.NAME.sandbox import NameSandbox, Place, new_id
from sandbox_runtime.providers.NAME.snapshots import Snapshots, copy, remove
from sandbox_runtime.types import Capability, SandboxId, SandboxInfo, SandboxSpec, SnapshotRef

_BASE = "base"


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What an open provider has; a vendor's client, say."""

    directory: Path
    snapshots: Snapshots


class NameProvider(ManagedProvider[State, NameSandbox]):
    """Its sandboxes end with the process that made them."""

    name = "NAME"
    capabilities = frozenset({Capability.SNAPSHOT})

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory
        self._infos_of: dict[SandboxId, SandboxInfo] = {}

    @override
    async def _open(self, stack: AsyncExitStack) -> State:
        await asyncio.to_thread(remove, self._directory / "sandboxes")
        return State(directory=self._directory, snapshots=Snapshots(self._directory))

    @override
    async def probe(self) -> str:
        return "directories of this machine, without isolation"

    @override
    async def ensure_ready(self, progress: ProgressListener | None = None) -> SnapshotRef:
        tell = progress or ignore_progress
        tell("checking")
        found = await self.find_snapshot(_BASE)
        if found is not None:
            tell("exists")
            return found
        tell("creating")
        sandbox = await self.create(SandboxSpec(environment_writable=True))
        try:
            tell("snapshotting")
            saved = await sandbox.snapshot(name=_BASE)
        finally:
            await sandbox.destroy()
        tell("done")
        return saved

    @override
    async def _create(self, state: State, spec: SandboxSpec) -> NameSandbox:
        check_network(spec, drops_root=False)
        found = self._find(state, spec.snapshot_id)
        workspace = self._find(state, spec.workspace_id) or found
        environment = found[1] if found is not None else ""
        is_new = spec.environment_writable or not environment
        made = new_id() if is_new else environment
        directory = state.directory / "sandboxes" / new_id()

        def fill() -> None:
            for name in ("work", "home", "run"):
                (directory / name).mkdir(parents=True)
            if workspace is not None:
                for name in ("work", "home"):
                    copy(workspace[0] / name, directory / name)
            target = state.snapshots.environment(made)
            if is_new and environment:
                copy(state.snapshots.environment(environment), target)
            target.mkdir(parents=True, exist_ok=True)

        try:
            await asyncio.to_thread(fill)
        except BaseException:
            await asyncio.to_thread(remove, directory)
            raise
        place = Place(directory=directory, environment=made, spec=spec)
        sandbox = NameSandbox(place, state.snapshots, forget=self._forget)
        self._infos_of[sandbox.id] = SandboxInfo(
            id=sandbox.id,
            provider=self.name,
            running=True,
            created_at=datetime.now(UTC),
            labels=spec.labels,
        )
        return sandbox

    def _find(self, state: State, snapshot_id: str | None) -> tuple[Path, str] | None:
        found = state.snapshots.find(snapshot_id) if snapshot_id is not None else None
        if snapshot_id is not None and found is None:
            raise SandboxError(SandboxErrorCode.NOT_FOUND, f"no snapshot {snapshot_id!r}")
        return found

    @override
    async def _attach(self, state: State, sandbox_id: SandboxId) -> NameSandbox:
        raise SandboxError(SandboxErrorCode.UNSUPPORTED, "it ends with the process that made it")

    @override
    def release(self, sandbox_id: SandboxId) -> None:
        raise SandboxError(SandboxErrorCode.UNSUPPORTED, "it ends with the process that made it")

    @override
    async def _end(self, state: State, sandbox_id: SandboxId) -> None:
        """No other process has one."""

    @override
    async def _infos(self, state: State) -> Iterable[SandboxInfo]:
        self._infos_of = {
            key: info for key, info in self._infos_of.items() if key in self._sandboxes
        }
        return self._infos_of.values()

    @override
    async def _reap(self, state: State, keep: Keep) -> int:
        return 0


def create(context: ServiceContext) -> SandboxProvider:
    """Makes the provider for a service."""
    return NameProvider(context.state_dir / "NAME")
