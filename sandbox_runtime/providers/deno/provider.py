"""The Deno provider: sandboxes as microVMs of Deno Deploy, environments and workspaces as snapshots of volumes."""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack

from typing_extensions import override

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.lifecycle import Orphans
from sandbox_runtime.managed_provider import Keep, ManagedProvider
from sandbox_runtime.probing import probing
from sandbox_runtime.provider import (
    ProgressListener,
    SandboxProvider,
    ServiceContext,
    ignore_progress,
)
from sandbox_runtime.providers.deno import DenoSettings
from sandbox_runtime.providers.deno.client import ListedSandbox, open_client
from sandbox_runtime.providers.deno.connection import Connector
from sandbox_runtime.providers.deno.create import (
    Created,
    State,
    attach_sandbox,
    base_recipe,
    create_sandbox,
    discard_volumes,
    ensure_base,
)
from sandbox_runtime.providers.deno.labels import SandboxLabels
from sandbox_runtime.providers.deno.machine import Machine
from sandbox_runtime.providers.deno.sandbox import DenoSandbox
from sandbox_runtime.providers.deno.snapshots import PROVIDER_NAME, Names, Snapshots
from sandbox_runtime.task_group import open_task_group
from sandbox_runtime.types import (
    Capability,
    SandboxId,
    SandboxInfo,
    SandboxSpec,
    SnapshotId,
    SnapshotRef,
)

MAX_RUNNING = 5
"""Of an organisation. Source: Deno documentation, "Deno Sandbox", limits, read 2026-11."""


class DenoProvider(ManagedProvider[State, DenoSandbox]):
    """Makes sandboxes at Deno. They survive a crash of the service, and `attach` finds them again, by the end of their lifetime.

    Nobody pays for longer: each ends by itself after 30 minutes at most. What it leaves then are its volumes, until `sweep`,
    which also removes what nothing uses any more, and snapshots that could not be deleted before. Close it in the task that
    opened it.
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

    def __init__(self, settings: DenoSettings) -> None:
        super().__init__()
        self._settings = settings
        self._released: dict[SandboxId, DenoSandbox] = {}
        self._readying = asyncio.Lock()

    @property
    @override
    def region(self) -> str:
        return self._settings.region

    @override
    async def _open(self, stack: AsyncExitStack) -> State:
        settings = self._settings
        client = await stack.enter_async_context(open_client(settings))
        group = await stack.enter_async_context(open_task_group())
        orphans = Orphans(group)
        stack.push_async_callback(orphans.close)
        stack.push_async_callback(self._leave_released)
        directory = settings.state_dir
        return State(
            settings=settings,
            client=client,
            connector=Connector(settings),
            snapshots=Snapshots(
                client,
                Names(directory / f"deno-{settings.name}.jsonl" if directory is not None else None),
                name=settings.name,
                region=settings.region,
                recipe=base_recipe(settings),
            ),
            orphans=orphans,
            group=group,
        )

    async def _leave_released(self) -> None:
        # What could not be destroyed goes on, too, until the platform ends it.
        for sandbox in (*self._released.values(), *self._sandboxes.values()):
            await sandbox.leave()

    @override
    async def probe(self) -> str:
        """Asks Deno without making a sandbox: that would take longer than a probe may, and cost money."""
        state = self._state
        async with probing("Deno"):
            running = await state.client.count_running()
            base = await state.snapshots.find_base()
            elsewhere = await state.snapshots.count_elsewhere()
        return (
            f"Deno answers, region {self._settings.region}: {running} of {MAX_RUNNING} sandboxes run, the base "
            f"environment {'exists' if base is not None else 'is made on first use'}{_left_behind(elsewhere)}"
        )

    @override
    async def ensure_ready(self, progress: ProgressListener | None = None) -> SnapshotRef:
        async with self._readying:
            base = await ensure_base(self._state, progress or ignore_progress)
        return SnapshotRef(
            id=SnapshotId(str(base)), provider=self.name, name=None, created_at=base.created_at
        )

    @override
    async def _create(self, state: State, spec: SandboxSpec) -> DenoSandbox:
        return self._sandbox(state, await create_sandbox(state, spec))

    @override
    async def _attach(self, state: State, sandbox_id: SandboxId) -> DenoSandbox:
        if (before := self._released.pop(sandbox_id, None)) is not None:
            await before.leave()  # else each slice of a run would have a connection of its own
        for found, labels in await self._list_ours(state):
            if found.id == sandbox_id:
                volume = await state.snapshots.find_volume(labels.volume)
                if volume is not None:
                    machine = Machine(id=found.id, labels=labels, volume=volume)
                    return self._sandbox(state, await attach_sandbox(state, machine))
        raise SandboxError(SandboxErrorCode.NOT_FOUND, f"no sandbox {sandbox_id!r}")

    def _sandbox(self, state: State, created: Created) -> DenoSandbox:
        machine, record, connection = created
        return DenoSandbox(
            machine,
            record,
            connection=connection,
            client=state.client,
            snapshots=state.snapshots,
            forget=self._forget,
        )

    @override
    def release(self, sandbox_id: SandboxId) -> None:
        if sandbox_id in self._sandboxes:
            self._released[sandbox_id] = self._sandboxes[sandbox_id]
        super().release(sandbox_id)

    @override
    async def _end(self, state: State, sandbox_id: SandboxId) -> None:
        for found, labels in await self._list_ours(state):
            if found.id == sandbox_id:
                await state.client.end_sandbox(sandbox_id)
                volume = await state.snapshots.find_volume(labels.volume)
                await discard_volumes(state.snapshots, volume)

    async def _list_ours(self, state: State) -> Sequence[tuple[ListedSandbox, SandboxLabels]]:
        """Lists the sandboxes of the namespace that run."""
        listed = await state.client.list_sandboxes()
        decoded = ((found, SandboxLabels.decode(found.labels)) for found in listed if found.running)
        return [
            (found, labels)
            for found, labels in decoded
            if labels is not None and labels.namespace == self._settings.name
        ]

    @override
    async def _infos(self, state: State) -> Iterable[SandboxInfo]:
        return [
            SandboxInfo(
                id=SandboxId(found.id),
                provider=PROVIDER_NAME,
                running=found.running,
                created_at=found.created_at,
                labels=labels.labels,
                region=found.region,
            )
            for found, labels in await self._list_ours(state)
        ]

    @override
    async def _reap(self, state: State, keep: Keep) -> int:
        ours = (*self._sandboxes.values(), *self._released.values())
        living = {sandbox.volume_id for sandbox in ours}
        reaped = 0
        for found, labels in await self._list_ours(state):
            if keep.covers(found.id, labels.owner):
                living.add(labels.volume)
                continue
            await state.client.end_sandbox(found.id)
            volume = await state.snapshots.find_volume(labels.volume)
            if volume is not None:
                await state.snapshots.discard_volume(volume)
            reaped += 1
        await state.snapshots.collect(living)
        return reaped


def _left_behind(count: int) -> str:
    return f"; {count} saved sessions are in another region, out of reach" if count else ""


def create(context: ServiceContext) -> SandboxProvider:
    """Makes the provider for a service. Raises: ValueError: a setting that it cannot have, or no token."""
    return DenoProvider(
        DenoSettings(
            token=context.values["DENO_DEPLOY_TOKEN"] or "",
            region=context.region,
            name=context.namespace,
            owner=context.owner,
            api_url=context.values["ORION_DENO_API_URL"],
            state_dir=context.state_dir / "deno",
            git_name=context.git_name,
            git_email=context.git_email,
        )
    )
