"""The Deno provider: sandboxes as microVMs of Deno Deploy, environments and workspaces as snapshots of volumes."""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Self

from typing_extensions import override

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.finishing import Unfinished
from sandbox_runtime.lifecycle import destroy_all
from sandbox_runtime.probing import probing
from sandbox_runtime.provider import ProgressListener, Sandbox, SandboxProvider, ignore_progress
from sandbox_runtime.providers.deno.base import base_recipe, ensure_base
from sandbox_runtime.providers.deno.booting import Booter, give_up
from sandbox_runtime.providers.deno.connecting import Connector
from sandbox_runtime.providers.deno.console import open_console
from sandbox_runtime.providers.deno.disks import PROVIDER_NAME, Disks
from sandbox_runtime.providers.deno.machine import Machine
from sandbox_runtime.providers.deno.making import Made, Opened, find_again, labels_for, make
from sandbox_runtime.providers.deno.names import Names
from sandbox_runtime.providers.deno.paths import allowed_hosts
from sandbox_runtime.providers.deno.rpc import RpcConnection
from sandbox_runtime.providers.deno.sandbox import DenoSandbox
from sandbox_runtime.providers.deno.settings import DenoSettings
from sandbox_runtime.providers.deno.slugs import Slug
from sandbox_runtime.providers.deno.sweeping import list_ours, sweep
from sandbox_runtime.task_group import open_task_group
from sandbox_runtime.types import (
    Capability,
    OpenNetwork,
    SandboxId,
    SandboxInfo,
    SandboxSpec,
    SnapshotId,
    SnapshotRef,
)

MAX_RUNNING = 5
"""Of an organisation. Source: Deno documentation, "Deno Sandbox", limits, read 2026-11."""

_log = logging.getLogger(__name__)


class DenoProvider(SandboxProvider):
    """Its sandboxes survive a crash of the service, and `attach` finds them again, by the end of their lifetime.

    Nobody pays for longer: each ends by itself after 30 minutes at most. What it leaves then are its volumes, until `sweep`.
    Close it in the task that opened it.
    """

    def __init__(self, settings: DenoSettings) -> None:
        self._settings = settings
        self._stack = AsyncExitStack()
        self._opened: Opened | None = None
        self._sandboxes: dict[SandboxId, DenoSandbox] = {}
        self._released: list[DenoSandbox] = []
        self._readying = asyncio.Lock()

    @property
    @override
    def name(self) -> str:
        return PROVIDER_NAME

    @property
    def namespace(self) -> str:
        """`DenoSettings.name`, which all its objects carry."""
        return self._settings.name

    @property
    @override
    def capabilities(self) -> frozenset[Capability]:
        return frozenset(set(Capability) - {Capability.MOUNT})

    @override
    async def __aenter__(self) -> Self:
        settings = self._settings
        console = await self._stack.enter_async_context(open_console(settings))
        group = await self._stack.enter_async_context(open_task_group())
        unfinished = Unfinished(group)
        self._stack.push_async_callback(unfinished.close)
        connector = Connector(settings)
        state = settings.state_dir
        self._opened = Opened(
            settings=settings,
            console=console,
            connector=connector,
            booter=Booter(connector, console, settings, unfinished),
            disks=Disks(
                console,
                Names(state / f"deno-{settings.name}.jsonl" if state is not None else None),
                name=settings.name,
                region=settings.region,
                recipe=base_recipe(settings),
            ),
            group=group,
        )
        return self

    @override
    async def __aexit__(self, *exc_info: object) -> None:
        try:
            await destroy_all(self._sandboxes.values())
            for sandbox in self._released:
                await sandbox.leave()
        finally:
            self._opened = None
            await self._stack.aclose()

    @override
    async def probe(self) -> str:
        """Asks, without making a sandbox: that would take longer than a probe may, and cost money."""
        opened = self._require_opened()
        async with probing("Deno"):
            running = await opened.console.count_running()
            base = await opened.disks.base()
            elsewhere = await opened.disks.count_elsewhere()
        return (
            f"Deno answers, region {self._settings.region}: {running} of {MAX_RUNNING} sandboxes run, the base "
            f"environment {'exists' if base is not None else 'is made on first use'}{_left_behind(elsewhere)}"
        )

    async def left_behind(self) -> int:
        """How many sessions were saved in another region: an operator who changed it loses them, or changes it back."""
        return await self._require_opened().disks.count_elsewhere()

    @override
    async def ensure_ready(self, progress: ProgressListener | None = None) -> SnapshotRef:
        opened = self._require_opened()

        async def boot(volume: Slug) -> tuple[str, RpcConnection]:
            found, connection, _ = await opened.booter.boot(
                root=str(volume),
                paths={},
                labels=labels_for(self._settings, SandboxSpec(), volume=volume.id),
                allow_net=allowed_hosts(OpenNetwork()),
                secrets={},
                memory_bytes=self._settings.memory_mib * 1024**2,
                lifetime_s=self._settings.lifetime_s,
            )
            opened.group.create_task(connection.run())
            return found, connection

        async with self._readying:
            base = await ensure_base(
                opened.console, opened.disks, self._settings, boot, progress or ignore_progress
            )
        return SnapshotRef(
            id=SnapshotId(str(base)), provider=self.name, name=None, created_at=base.created_at
        )

    @override
    async def create(self, spec: SandboxSpec) -> Sandbox:
        opened = self._require_opened()
        return self._own(opened, await make(opened, spec))

    @override
    async def attach(self, sandbox_id: SandboxId) -> Sandbox:
        if sandbox_id in self._sandboxes:
            return self._sandboxes[sandbox_id]
        opened = self._require_opened()
        for found, labels in await list_ours(opened.console, self._settings.name):
            if found.id == sandbox_id:
                volume = await opened.disks.find_volume(labels.volume)
                if volume is not None:
                    machine = Machine(id=found.id, labels=labels, volume=volume)
                    return self._own(opened, await find_again(opened, machine))
        raise SandboxError(SandboxErrorCode.NOT_FOUND, f"no sandbox {sandbox_id!r}")

    def _own(self, opened: Opened, made: Made) -> DenoSandbox:
        machine, record, link = made
        sandbox = DenoSandbox(
            machine,
            record,
            link=link,
            console=opened.console,
            disks=opened.disks,
            forget=self._forget,
        )
        self._sandboxes[sandbox.id] = sandbox
        return sandbox

    async def expose_ssh(self, sandbox_id: SandboxId) -> str:
        """Open a sandbox to a person, besides every other way: arguments for `ssh`. Whoever knows them gets in until it ends,
        as Deno's own user, who may do everything inside.

        Raises:
            SandboxError: NOT_FOUND, UNAVAILABLE.
        """
        return await self._require_opened().console.expose_ssh(sandbox_id)

    def _forget(self, sandbox_id: SandboxId) -> None:
        self._sandboxes.pop(sandbox_id, None)

    @override
    async def remove(self, sandbox_id: SandboxId) -> None:
        opened = self._require_opened()
        own = self._sandboxes.get(sandbox_id)
        if own is not None:
            await own.destroy()
            return
        for found, labels in await list_ours(opened.console, self._settings.name):
            if found.id == sandbox_id:
                await opened.console.end_sandbox(sandbox_id)
                volume = await opened.disks.find_volume(labels.volume)
                await give_up(opened.disks, volume)

    @override
    async def list(self, labels: Mapping[str, str] | None = None) -> Sequence[SandboxInfo]:
        wanted = (labels or {}).items()
        found = await list_ours(self._require_opened().console, self._settings.name)
        infos = [
            SandboxInfo(
                id=SandboxId(sandbox.id),
                provider=PROVIDER_NAME,
                running=sandbox.running,
                created_at=sandbox.created_at,
                labels=ours.labels,
            )
            for sandbox, ours in found
            if wanted <= ours.labels.items()
        ]
        return tuple(sorted(infos, key=lambda info: info.created_at))

    @override
    def release(self, sandbox_id: SandboxId) -> None:
        sandbox = self._sandboxes.pop(sandbox_id, None)
        if sandbox is not None:
            self._released.append(sandbox)

    @override
    async def find_snapshot(self, name: str) -> SnapshotRef | None:
        return await self._require_opened().disks.find_named(name)

    @override
    async def list_snapshots(self) -> Sequence[SnapshotRef]:
        return await self._require_opened().disks.list()

    @override
    async def delete_snapshot(self, snapshot_id: SnapshotId) -> None:
        await self._require_opened().disks.delete(snapshot_id)

    @override
    async def sweep(self, keep: Collection[SandboxId] = ()) -> int:
        """`keep` names the sandboxes that shall be attached to. A living process's stay, whoever it is; one on another machine
        looks dead from here, which is why each service needs a name of its own. Also removed: volumes of this name that
        nothing uses any more, and snapshots that could not be deleted before.
        """
        opened = self._require_opened()
        mine = (*self._sandboxes.values(), *self._released)
        return await sweep(
            opened.console,
            opened.disks,
            self._settings.name,
            keep=frozenset(keep) | self._sandboxes.keys(),
            used={sandbox.volume_id for sandbox in mine},
        )

    def _require_opened(self) -> Opened:
        if self._opened is None:
            raise RuntimeError("the provider is not open")
        return self._opened


def _left_behind(count: int) -> str:
    return f"; {count} saved sessions are in another region, out of reach" if count else ""
