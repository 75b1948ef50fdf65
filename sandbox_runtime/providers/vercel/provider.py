"""The Vercel provider: sandboxes as microVMs, environments and workspaces as snapshots of their disks."""

from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import vercel.sandbox as sdk
from typing_extensions import override

from sandbox_runtime.command import validate_command
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.host import USER, user_env
from sandbox_runtime.lifecycle import Orphans
from sandbox_runtime.managed_provider import Keep, ManagedProvider
from sandbox_runtime.probing import PROBE_TIMEOUT_S, probing
from sandbox_runtime.provider import (
    ProgressListener,
    SandboxProvider,
    ServiceContext,
    ignore_progress,
)
from sandbox_runtime.providers.vercel import MAX_LIFETIME_S, MIN_LIFETIME_S, VercelSettings
from sandbox_runtime.providers.vercel import labels as keys
from sandbox_runtime.providers.vercel.client import (
    Credentials,
    Order,
    VercelClient,
    create_http_client,
    end_record,
    network_policy,
)
from sandbox_runtime.providers.vercel.machine import HOME, About, Machine
from sandbox_runtime.providers.vercel.sandbox import VercelSandbox
from sandbox_runtime.providers.vercel.snapshots import (
    BASE,
    PROVIDER_NAME,
    Snapshots,
    find_source,
)
from sandbox_runtime.task_group import open_task_group
from sandbox_runtime.types import (
    Capability,
    SandboxId,
    SandboxInfo,
    SandboxSpec,
    SandboxStats,
    SnapshotId,
    SnapshotRef,
    endpoint_of,
)

RUNNING = frozenset({sdk.SandboxStatus.PENDING, sdk.SandboxStatus.RUNNING})


def command_env(spec: SandboxSpec) -> dict[str, str]:
    """Returns the environment of every command, beside the image's PATH and the names of its CA certificates."""
    scratch = "/tmp" if spec.environment_writable else None  # noqa: S108  # the machine's own
    return {**user_env(HOME, scratch=scratch), **spec.env}


def info_of(record: sdk.Sandbox) -> SandboxInfo:
    """Returns what a record tells of its sandbox."""
    return SandboxInfo(
        id=SandboxId(record.name),
        provider=PROVIDER_NAME,
        running=record.status in RUNNING,
        created_at=datetime.fromtimestamp((record.created_at or 0) / 1000, UTC),
        labels=keys.labels_of(record.tags or {}),
        region=record.region or "",
    )


def stats_of(record: sdk.Sandbox) -> SandboxStats:
    """Returns what a record tells of what its sandbox may have: the service does not say what it uses."""
    session, memory_mib = record.current_session, record.memory
    limit = session.execution_time_limit if session is not None else None
    ends_at = None
    if session is not None and session.started_at is not None and limit is not None:
        ends_at = datetime.fromtimestamp(session.started_at / 1000, UTC) + limit
    return SandboxStats(
        cpus=record.vcpus,
        memory_limit_bytes=None if memory_mib is None else memory_mib * 1024 * 1024,
        ends_at=ends_at,
    )


def is_left(record: sdk.Sandbox, keep: Keep) -> bool:
    """Whether it goes: nobody keeps it, and it is over, or had an owner who is known to live no more."""
    if record.name in keep.ids:
        return False
    owner = keys.owner_of(record.tags or {})
    is_over = record.status not in RUNNING
    return is_over or not (owner is None or owner.is_elsewhere or keep.covers(record.name, owner))


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    client: VercelClient
    snapshots: Snapshots


class VercelProvider(ManagedProvider[State, VercelSandbox]):
    """Makes sandboxes at Vercel. They survive a crash of the service, and `attach` finds them again; each ends itself at its lifetime.

    Of a sandbox's labels those three are kept that are most telling (`orion.run`, `orion.session`, `orion.agent` first):
    a record at Vercel has five tags.
    """

    name = PROVIDER_NAME
    capabilities = frozenset(
        {
            Capability.SNAPSHOT,
            Capability.ATTACH,
            Capability.REMOTE,
            Capability.BILLED,
            Capability.ENDS_WHEN_SAVED,
            Capability.HEADER_INJECTION,
            Capability.TERMINAL,
        }
    )

    def __init__(self, settings: VercelSettings) -> None:
        super().__init__()
        self._settings = settings

    @property
    @override
    def region(self) -> str:
        return self._settings.region

    @override
    async def _open(self, stack: AsyncExitStack) -> State:
        settings = self._settings
        options = sdk.SandboxServiceOptions(
            base_url=settings.api_url,
            credentials_factory=Credentials(settings),
            region=settings.region,
        )
        made = sdk.SandboxClient.create(options=options, httpx_client_factory=create_http_client)
        stack.push_async_callback(made.aclose)
        group = await stack.enter_async_context(open_task_group())
        client = VercelClient(
            made, settings, Orphans(group), count_own=lambda: len(self._sandboxes)
        )
        stack.push_async_callback(client.close)
        return State(client=client, snapshots=Snapshots(client, settings))

    @override
    async def probe(self) -> str:
        settings = self._settings
        async with probing("a sandbox at Vercel"):
            sandbox = await self.create(SandboxSpec())
            try:
                found = await sandbox.exec(["id", "-un"], timeout_s=PROBE_TIMEOUT_S)
            finally:
                await sandbox.destroy()
        if found.text.strip() != USER:
            raise SandboxError(
                SandboxErrorCode.ISOLATION_UNAVAILABLE,
                f"commands in the image {settings.image} do not run as {USER}",
            )
        return f"Vercel Sandbox in {settings.region}: a microVM each, {settings.vcpus} processors, no way to root"

    @override
    async def ensure_ready(self, progress: ProgressListener | None = None) -> SnapshotRef:
        tell = progress or ignore_progress
        tell("checking")
        state = self._state
        # Of all that could be wrong, the credentials are; an image that lacks something says so when it boots.
        await state.client.list_records(key=keys.MANAGED, value=keys.SNAPSHOT)
        tell("exists")
        return SnapshotRef(
            id=SnapshotId(BASE),
            provider=self.name,
            name=None,
            created_at=datetime.fromtimestamp(0, UTC),
        )

    @override
    async def _create(self, state: State, spec: SandboxSpec) -> VercelSandbox:
        policy = network_policy(spec.network)
        env = command_env(spec)
        validate_command(["sh"], env=env, cwd=None)
        source = await find_source(state.snapshots, spec)
        order = Order(
            source=source.disk,
            network_policy=policy,
            labels=spec.labels,
            lifetime_s=self._lifetime_s(spec.lifetime_s),
        )
        about = About(
            broker=endpoint_of(spec.network),
            environment=source.environment,
            is_writable=spec.environment_writable,
            limits=spec.limits,
            env=env,
        )
        record = await state.client.create(order)
        try:
            machine = Machine.of(record)
            booted = await machine.boot(about)
            if source.workspace is not None:
                await state.snapshots.move_workspace(source.workspace, machine)
        except SandboxError as exc:
            await state.client.discard(record)
            if exc.code is SandboxErrorCode.NOT_FOUND:  # the workspace that was to be moved
                raise
            raise SandboxError(
                SandboxErrorCode.CREATE_FAILED, str(exc), retryable=exc.retryable
            ) from exc
        except BaseException:
            await state.client.discard(record)
            raise
        return self._sandbox(state, machine, replace(about, env={**booted, **about.env}))

    @override
    async def _attach(self, state: State, sandbox_id: SandboxId) -> VercelSandbox:
        record = await state.client.find_sandbox(sandbox_id)
        if record is None:
            raise SandboxError(SandboxErrorCode.NOT_FOUND, f"no sandbox {sandbox_id!r}")
        machine = Machine.of(await state.client.with_session(record))
        about, booted = await machine.about()
        return self._sandbox(state, machine, replace(about, env={**booted, **about.env}))

    @override
    async def _infos(self, state: State) -> Iterable[SandboxInfo]:
        return map(info_of, await self._records(state))

    async def _records(self, state: State) -> Sequence[sdk.Sandbox]:
        return await state.client.list_records(key=keys.MANAGED, value=keys.SANDBOX)

    @override
    async def find(self, sandbox_id: SandboxId) -> SandboxInfo | None:
        record = await self._state.client.find_sandbox(sandbox_id)
        return None if record is None else info_of(record)

    @override
    async def stats(self, sandbox_id: SandboxId) -> SandboxStats:
        record = await self._state.client.find_sandbox(sandbox_id)
        return (
            SandboxStats() if record is None or record.status not in RUNNING else stats_of(record)
        )

    @override
    async def _reap(self, state: State, keep: Keep) -> int:
        """Ends also records of sandboxes that have ended by themselves. What a process of another machine made is left: it may
        live, and the sandbox ends itself.
        """
        records = await self._records(state)
        left = [record for record in records if is_left(record, keep)]
        for record in left:
            await end_record(record)
        return len(left)

    @override
    async def _end(self, state: State, sandbox_id: SandboxId) -> None:
        await state.client.end_sandbox(sandbox_id)

    def _sandbox(self, state: State, machine: Machine, about: About) -> VercelSandbox:
        return VercelSandbox(
            machine,
            about,
            client=state.client,
            snapshots=state.snapshots,
            beat_s=self._settings.beat_s,
            forget=self._forget,
        )

    def _lifetime_s(self, wanted_s: float | None) -> float:
        lifetime_s = self._settings.lifetime_s if wanted_s is None else wanted_s
        if lifetime_s > MAX_LIFETIME_S:
            raise SandboxError(
                SandboxErrorCode.LIMIT_REACHED,
                f"a sandbox at Vercel lives {MAX_LIFETIME_S:g} s at most, not {lifetime_s:g} s",
            )
        return max(lifetime_s, MIN_LIFETIME_S)


def create(context: ServiceContext) -> SandboxProvider:
    """Makes the provider for a service. Raises: ValueError: a setting that it cannot have, or no credentials."""
    return VercelProvider(
        VercelSettings(
            token=context.values["VERCEL_TOKEN"],
            team_id=context.values["VERCEL_TEAM_ID"],
            project_id=context.values["VERCEL_PROJECT_ID"],
            oidc_token=context.values["VERCEL_OIDC_TOKEN"],
            api_url=context.values["ORION_VERCEL_API_URL"] or "",
            name=context.namespace,
            owner=context.owner,
            region=context.region,
            vcpus=int(context.vcpus),
            lifetime_s=max(context.run_timeout_s, MIN_LIFETIME_S),
        )
    )
