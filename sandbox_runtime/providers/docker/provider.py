"""The Docker provider: sandboxes as hardened containers, environments and workspaces as images."""

import asyncio
import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Self

from typing_extensions import override

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.host import check_network, open_view
from sandbox_runtime.lifecycle import destroy_all
from sandbox_runtime.owner import Owner
from sandbox_runtime.probing import probing
from sandbox_runtime.processes import validate_command
from sandbox_runtime.provider import ProgressListener, Sandbox, SandboxProvider, ignore_progress
from sandbox_runtime.providers.docker import labels as keys
from sandbox_runtime.providers.docker.base import BaseImage
from sandbox_runtime.providers.docker.containers import (
    Hosting,
    broker_path,
    container_config,
    sandbox_env,
)
from sandbox_runtime.providers.docker.engine import ContainerState, open_engine
from sandbox_runtime.providers.docker.images import Images
from sandbox_runtime.providers.docker.labels import SandboxLabels
from sandbox_runtime.providers.docker.looking import find_info, info_of
from sandbox_runtime.providers.docker.opened import Opened
from sandbox_runtime.providers.docker.origin import base_id, find_origin
from sandbox_runtime.providers.docker.probing import INFO_TIMEOUT_S, probe
from sandbox_runtime.providers.docker.sandbox import DockerSandbox
from sandbox_runtime.providers.docker.settings import DockerSettings
from sandbox_runtime.providers.docker.snapshots import PROVIDER_NAME, Snapshots
from sandbox_runtime.providers.docker.stats import SandboxStats
from sandbox_runtime.providers.docker.sweeping import sweep
from sandbox_runtime.types import (
    OF_CLOUDS,
    Capability,
    SandboxId,
    SandboxInfo,
    SandboxSpec,
    SnapshotId,
    SnapshotRef,
)

_SANDBOX_ID = re.compile(r"[0-9a-f]{16}")


class DockerProvider(SandboxProvider):
    """Linux only. Its sandboxes survive a crash of the service, and `attach` finds them again.

    What becomes of those that nobody attaches to: each ends itself at `DockerSettings.max_age_s`, and the engine removes it
    with its volumes; `sweep` removes them at once. Opening sweeps nothing, because only the caller knows which to keep.
    """

    def __init__(self, settings: DockerSettings | None = None) -> None:
        self._settings = settings or DockerSettings()
        self._name = self._settings.name
        self._mine = [f"{key}={value}" for key, value in keys.namespace(self._name).items()]
        self._stack = AsyncExitStack()
        self._opened: Opened | None = None
        self._hosting: Hosting | None = None
        self._sandboxes: dict[SandboxId, DockerSandbox] = {}
        self._probed = False
        self._readying = asyncio.Lock()

    @property
    @override
    def name(self) -> str:
        return PROVIDER_NAME

    @property
    def namespace(self) -> str:
        """`DockerSettings.name`, which all its objects on the engine carry."""
        return self._name

    @property
    @override
    def capabilities(self) -> frozenset[Capability]:
        return frozenset(set(Capability) - OF_CLOUDS - {Capability.MOUNT})

    @override
    async def __aenter__(self) -> Self:
        engine = await self._stack.enter_async_context(open_engine(self._settings.docker_host))
        images = Images(engine)
        self._opened = Opened(
            engine=engine,
            base=BaseImage(images, self._settings),
            snapshots=Snapshots(engine, name=self._name),
        )
        return self

    @override
    async def __aexit__(self, *exc_info: object) -> None:
        try:
            await destroy_all(self._sandboxes.values())
        finally:
            self._opened = None
            await self._stack.aclose()

    @override
    async def probe(self) -> str:
        async with probing("a sandbox"):
            finding, self._probed = await probe(self, self._require_opened(), self._settings)
        return finding

    @override
    async def ensure_ready(self, progress: ProgressListener | None = None) -> SnapshotRef:
        async with self._readying:
            base = await self._require_opened().base.ensure(progress or ignore_progress)
            if not self._probed:
                await self.probe()
        return SnapshotRef(
            id=base_id(base),
            provider=self.name,
            name=None,
            created_at=base.created_at,
        )

    @override
    async def create(self, spec: SandboxSpec) -> Sandbox:
        check_network(spec, drops_root=True)
        if spec.work_dir is not None:
            raise SandboxError(
                SandboxErrorCode.UNSUPPORTED,
                "docker sandboxes do not work in a directory of the host",
            )
        opened = self._require_opened()
        hosting = await self._hosted(opened)
        origin = await find_origin(opened, spec)
        env = sandbox_env(spec, hosting)
        validate_command(["sh"], env=env, cwd=None)
        labels = SandboxLabels(
            id=secrets.token_hex(8),
            owner=Owner.current(),
            created_at=datetime.now(UTC),
            labels=dict(spec.labels),
            base=origin.base,
            environment=origin.environment,
            environment_writable=spec.environment_writable,
            broker=broker_path(spec),
            limits=spec.limits,
        )
        # An image made from the container would keep the container's variables: one that prepares an environment has none.
        written, added = ({}, env) if spec.environment_writable else (env, {})
        config = container_config(
            spec, hosting, image=origin.image, env=written, labels=labels.encode(self._name)
        )
        container_id = await opened.engine.create(config, name=self._container_name(labels.id))
        try:
            if origin.workspace is not None:
                await opened.snapshots.move_workspace(origin.workspace, container_id)
            await opened.engine.start(container_id)
        except BaseException:
            await opened.engine.discard(container_id)
            raise
        return self._own(opened, container_id, labels, env=added)

    @override
    async def attach(self, sandbox_id: SandboxId) -> Sandbox:
        if sandbox_id in self._sandboxes:
            return self._sandboxes[sandbox_id]
        opened = self._require_opened()
        state = await self._inspect(opened, sandbox_id)
        labels = SandboxLabels.decode(state.labels) if state is not None else None
        if state is None or labels is None or not state.running:
            raise SandboxError(SandboxErrorCode.NOT_FOUND, f"no sandbox {sandbox_id!r}")
        return self._own(opened, state.id, labels, env={})

    @override
    async def remove(self, sandbox_id: SandboxId) -> None:
        opened = self._require_opened()
        own = self._sandboxes.get(sandbox_id)
        if own is not None:
            await own.destroy()
        elif (state := await self._inspect(opened, sandbox_id)) is not None:
            await opened.engine.remove(state.id)

    async def _inspect(self, opened: Opened, sandbox_id: SandboxId) -> ContainerState | None:
        if not _SANDBOX_ID.fullmatch(sandbox_id):
            return None
        state = await opened.engine.find(self._container_name(sandbox_id))
        return state if state is not None and state.labels.get(keys.NAME) == self._name else None

    @override
    async def list(self, labels: Mapping[str, str] | None = None) -> Sequence[SandboxInfo]:
        wanted = (labels or {}).items()
        found = await self._require_opened().engine.list([*self._mine, keys.SANDBOX])
        decoded = ((state, SandboxLabels.decode(state.labels)) for state in found)
        infos = (
            info_of(mine, running=state.running)
            for state, mine in decoded
            if mine is not None and mine.id and wanted <= mine.labels.items()
        )
        return tuple(sorted(infos, key=lambda info: info.created_at))

    @override
    async def find(self, sandbox_id: SandboxId) -> SandboxInfo | None:
        if not _SANDBOX_ID.fullmatch(sandbox_id):
            return None
        opened = self._require_opened()
        state = await self._inspect(opened, sandbox_id)
        return await find_info(opened, sandbox_id, state, name=self._container_name(sandbox_id))

    @override
    def release(self, sandbox_id: SandboxId) -> None:
        self._sandboxes.pop(sandbox_id, None)

    @override
    async def find_snapshot(self, name: str) -> SnapshotRef | None:
        opened = self._require_opened()
        base = await opened.base.find()
        return await opened.snapshots.find_named(name, base=base.id if base else None)

    @override
    async def list_snapshots(self) -> Sequence[SnapshotRef]:
        return await self._require_opened().snapshots.list()

    @override
    async def delete_snapshot(self, snapshot_id: SnapshotId) -> None:
        await self._require_opened().snapshots.delete(snapshot_id)

    @override
    async def sweep(self, keep: Collection[SandboxId] = ()) -> int:
        """Remove what processes that live no more have left under this name; how many containers.

        `keep` names the sandboxes that shall be attached to. A living process's stay, whoever it is; one on another machine
        or in a container of its own looks dead from here, which is why each service needs a name of its own. Also removed:
        volumes and images of this name that nothing uses any more.
        """
        opened = self._require_opened()
        return await sweep(opened, self._mine, keep=frozenset(keep) | self._sandboxes.keys())

    async def stats(self, sandbox_id: SandboxId) -> SandboxStats:
        """What it uses just now. The engine takes a second or two to say.

        Raises:
            SandboxError: NOT_FOUND.
        """
        return await self._require_opened().engine.stats(self._container_name(sandbox_id))

    async def _hosted(self, opened: Opened) -> Hosting:
        if self._hosting is None:
            info = await opened.engine.info(timeout_s=INFO_TIMEOUT_S)
            self._hosting = Hosting(
                runtime=self._settings.runtime,
                cpus=min(self._settings.cpus, info.cpus),
                ca_bundle=self._settings.ca_bundle,
                view=open_view(self._settings.host_env),
                max_age_s=self._settings.max_age_s,
            )
        return self._hosting

    def _own(
        self,
        opened: Opened,
        container_id: str,
        labels: SandboxLabels,
        *,
        env: Mapping[str, str],
    ) -> DockerSandbox:
        sandbox = DockerSandbox(
            opened.engine,
            container_id,
            labels=labels,
            name=self._container_name(labels.id),
            env=env,
            save=opened.snapshots.save,
            forget=self._forget,
        )
        self._sandboxes[sandbox.id] = sandbox
        return sandbox

    async def _forget(self, sandbox_id: SandboxId) -> None:
        self._sandboxes.pop(sandbox_id, None)
        await self._require_opened().snapshots.collect_logged()

    def _container_name(self, sandbox_id: str) -> str:
        return f"orion-{self._name}-{sandbox_id}"

    def _require_opened(self) -> Opened:
        if self._opened is None:
            raise RuntimeError("the provider is not open")
        return self._opened
