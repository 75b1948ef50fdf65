"""The Vercel provider: sandboxes as microVMs, environments and workspaces as snapshots of their disks."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Self

import vercel.sandbox as sdk
from typing_extensions import override

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.finishing import Unfinished
from sandbox_runtime.lifecycle import destroy_all
from sandbox_runtime.processes import validate_command
from sandbox_runtime.provider import ProgressListener, Sandbox, SandboxProvider, ignore_progress
from sandbox_runtime.providers.vercel import tags as keys
from sandbox_runtime.providers.vercel.creation import Creation, Order
from sandbox_runtime.providers.vercel.credentials import Credentials
from sandbox_runtime.providers.vercel.looking import (
    command_env,
    info_of,
    is_left,
    is_sandbox,
)
from sandbox_runtime.providers.vercel.machine import About, Machine
from sandbox_runtime.providers.vercel.network import network_policy
from sandbox_runtime.providers.vercel.origin import find_origin
from sandbox_runtime.providers.vercel.probing import probe
from sandbox_runtime.providers.vercel.sandbox import VercelSandbox
from sandbox_runtime.providers.vercel.settings import (
    MAX_LIFETIME_S,
    MIN_LIFETIME_S,
    VercelSettings,
)
from sandbox_runtime.providers.vercel.snapshots import BASE, PROVIDER_NAME, Snapshots, end_record
from sandbox_runtime.providers.vercel.tags import SnapshotTags
from sandbox_runtime.task_group import open_task_group
from sandbox_runtime.types import (
    Capability,
    SandboxId,
    SandboxInfo,
    SandboxSpec,
    SnapshotId,
    SnapshotRef,
    endpoint_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What an open provider has."""

    client: sdk.SandboxClient
    snapshots: Snapshots
    creation: Creation


class VercelProvider(SandboxProvider):
    """Its sandboxes survive a crash of the service, and `attach` finds them again; each ends itself at its lifetime.

    Of a sandbox's labels those three are kept that are most telling (`orion.run`, `orion.session`, `orion.agent` first):
    a record at Vercel has five tags.
    """

    def __init__(self, settings: VercelSettings) -> None:
        self._settings = settings
        self._opened: Opened | None = None
        self._sandboxes: dict[SandboxId, VercelSandbox] = {}
        self._stack = AsyncExitStack()

    @property
    @override
    def name(self) -> str:
        return PROVIDER_NAME

    @property
    @override
    def capabilities(self) -> frozenset[Capability]:
        return frozenset(set(Capability) - {Capability.MOUNT})

    @override
    async def __aenter__(self) -> Self:
        settings = self._settings
        options = sdk.SandboxServiceOptions(
            base_url=settings.api_url,
            credentials_factory=Credentials(settings),
            region=settings.region,
        )
        group = await self._stack.enter_async_context(open_task_group())
        client = sdk.SandboxClient.create(options=options)
        snapshots = Snapshots(client, settings)
        self._opened = Opened(
            client=client,
            snapshots=snapshots,
            creation=Creation(client, settings, snapshots, Unfinished(group)),
        )
        return self

    @override
    async def __aexit__(self, *exc_info: object) -> None:
        opened = self._require_opened()
        try:
            await destroy_all(self._sandboxes.values())
            await opened.creation.close()
        finally:
            self._opened = None
            await self._stack.aclose()
            await opened.client.aclose()

    @override
    async def probe(self) -> str:
        return await probe(self, self._settings)

    @override
    async def ensure_ready(self, progress: ProgressListener | None = None) -> SnapshotRef:
        tell = progress or ignore_progress
        tell("checking")
        opened = self._require_opened()
        # Of all that could be wrong, the credentials are; an image that lacks something says so when it boots.
        await opened.snapshots.records(key=keys.MANAGED, value=keys.SNAPSHOT)
        tell("exists")
        return SnapshotRef(
            id=SnapshotId(BASE),
            provider=self.name,
            name=None,
            created_at=datetime.fromtimestamp(0, UTC),
        )

    @override
    async def create(self, spec: SandboxSpec) -> Sandbox:
        if spec.work_dir is not None:
            raise SandboxError(
                SandboxErrorCode.UNSUPPORTED,
                "sandboxes at Vercel do not work in a directory of the host",
            )
        policy = network_policy(spec.network)
        env = command_env(spec)
        validate_command(["sh"], env=env, cwd=None)
        opened = self._require_opened()
        origin = await find_origin(opened.snapshots, spec)
        order = Order(
            source=origin.source,
            network_policy=policy,
            labels=spec.labels,
            lifetime_s=self._lifetime_s(spec.lifetime_s),
        )
        about = About(
            broker=endpoint_of(spec.network),
            environment=origin.environment,
            is_writable=spec.environment_writable,
            limits=spec.limits,
            env=env,
        )
        handle = await self._create(opened, order)
        try:
            machine = await self._machine(opened, handle)
            booted = await machine.boot(about)
            if origin.workspace is not None:
                await opened.snapshots.move_workspace(origin.workspace, machine, self._boot_saved)
        except SandboxError as exc:
            await self._give_up(handle)
            if exc.code is SandboxErrorCode.NOT_FOUND:  # the workspace that was to be moved
                raise
            raise SandboxError(
                SandboxErrorCode.CREATE_FAILED, str(exc), retryable=exc.retryable
            ) from exc
        except BaseException:
            await self._give_up(handle)
            raise
        return self._own(opened, machine, replace(about, env={**booted, **about.env}))

    @override
    async def attach(self, sandbox_id: SandboxId) -> Sandbox:
        if sandbox_id in self._sandboxes:
            return self._sandboxes[sandbox_id]
        opened = self._require_opened()
        record = await opened.snapshots.record(sandbox_id)
        if not is_sandbox(record):
            raise SandboxError(SandboxErrorCode.NOT_FOUND, f"no sandbox {sandbox_id!r}")
        machine = await self._machine(opened, record)
        about, booted = await machine.about()
        return self._own(opened, machine, replace(about, env={**booted, **about.env}))

    @override
    async def remove(self, sandbox_id: SandboxId) -> None:
        own = self._sandboxes.get(sandbox_id)
        if own is not None:
            await own.destroy()
        else:
            await self._end(sandbox_id)

    @override
    async def list(self, labels: Mapping[str, str] | None = None) -> Sequence[SandboxInfo]:
        wanted = (labels or {}).items()
        records = await self._require_opened().snapshots.records(
            key=keys.MANAGED, value=keys.SANDBOX
        )
        infos = (info for info in map(info_of, records) if wanted <= info.labels.items())
        return tuple(sorted(infos, key=lambda info: info.created_at))

    @override
    async def find(self, sandbox_id: SandboxId) -> SandboxInfo | None:
        record = await self._require_opened().snapshots.record(sandbox_id)
        return info_of(record) if is_sandbox(record) else None

    @override
    def release(self, sandbox_id: SandboxId) -> None:
        self._sandboxes.pop(sandbox_id, None)

    @override
    async def sweep(self, keep: Collection[SandboxId] = ()) -> int:
        """Also records of sandboxes that have ended by themselves. What a process of another machine made is left: it may
        live, and the sandbox ends itself.
        """
        records = await self._require_opened().snapshots.records(
            key=keys.MANAGED, value=keys.SANDBOX
        )
        kept = {*keep, *self._sandboxes}
        left = [record for record in records if record.name not in kept and is_left(record)]
        for record in left:
            await end_record(record)
        return len(left)

    @override
    async def find_snapshot(self, name: str) -> SnapshotRef | None:
        return await self._require_opened().snapshots.find_named(name)

    @override
    async def list_snapshots(self) -> Sequence[SnapshotRef]:
        return await self._require_opened().snapshots.list()

    @override
    async def delete_snapshot(self, snapshot_id: SnapshotId) -> None:
        await self._require_opened().snapshots.delete(snapshot_id)

    async def _create(self, opened: Opened, order: Order) -> sdk.Sandbox:
        try:
            return await opened.creation.create(order)
        except SandboxError as exc:
            if exc.code is not SandboxErrorCode.LIMIT_REACHED:
                raise
            text = f"{exc}; {len(self._sandboxes)} sandboxes of this process are running"
            raise SandboxError(exc.code, text, retryable=exc.retryable) from exc

    async def _machine(self, opened: Opened, handle: sdk.Sandbox) -> Machine:
        if handle.current_session is None:
            handle = await opened.snapshots.record(handle.name) or handle
        return Machine.of(handle)

    async def _boot_saved(self, snapshot: SnapshotTags) -> Machine:
        opened = self._require_opened()
        order = Order(
            source=snapshot,
            network_policy=sdk.NetworkPolicy.deny_all(),
            labels={},
            lifetime_s=self._settings.lifetime_s,
        )
        handle = await self._create(opened, order)
        try:
            return await self._machine(opened, handle)
        except BaseException:
            await self._give_up(handle)
            raise

    async def _give_up(self, handle: sdk.Sandbox) -> None:
        """Of one that nobody got: if even this fails it ends itself."""
        try:
            await end_record(handle)
        except SandboxError:
            self._require_opened().creation.suspect(handle.name)

    async def _end(self, sandbox_id: SandboxId) -> None:
        record = await self._require_opened().snapshots.record(sandbox_id)
        if is_sandbox(record):
            await end_record(record)

    def _own(self, opened: Opened, machine: Machine, about: About) -> VercelSandbox:
        sandbox = VercelSandbox(
            machine,
            about,
            beat_s=self._settings.beat_s,
            save=opened.snapshots.save,
            end=self._end,
            forget=self.release,
        )
        self._sandboxes[sandbox.id] = sandbox
        return sandbox

    def _lifetime_s(self, wanted_s: float | None) -> float:
        lifetime_s = self._settings.lifetime_s if wanted_s is None else wanted_s
        if lifetime_s > MAX_LIFETIME_S:
            raise SandboxError(
                SandboxErrorCode.LIMIT_REACHED,
                f"a sandbox at Vercel lives {MAX_LIFETIME_S:g} s at most, not {lifetime_s:g} s",
            )
        return max(lifetime_s, MIN_LIFETIME_S)

    def _require_opened(self) -> Opened:
        if self._opened is None:
            raise RuntimeError("the provider is not open")
        return self._opened
