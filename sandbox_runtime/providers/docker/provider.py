"""The Docker provider: sandboxes as hardened containers, environments and workspaces as images."""

import asyncio
import re
import secrets
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from datetime import UTC, datetime

from typing_extensions import override

from sandbox_runtime.command import validate_command
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.host import check_network, open_view
from sandbox_runtime.lifecycle import Owner
from sandbox_runtime.managed_provider import Keep, ManagedProvider, remove_replaced
from sandbox_runtime.probing import FILE_BYTES, check_isolation, probing
from sandbox_runtime.provider import (
    ProgressListener,
    SandboxProvider,
    ServiceContext,
    ignore_progress,
)
from sandbox_runtime.providers.docker import DockerSettings
from sandbox_runtime.providers.docker import labels as keys
from sandbox_runtime.providers.docker.client import ContainerState, EngineInfo, open_engine
from sandbox_runtime.providers.docker.containers import (
    Hosting,
    broker_path,
    container_config,
    sandbox_env,
)
from sandbox_runtime.providers.docker.images import BaseImage, Images
from sandbox_runtime.providers.docker.labels import SandboxLabels
from sandbox_runtime.providers.docker.sandbox import DockerSandbox
from sandbox_runtime.providers.docker.snapshots import (
    PROVIDER_NAME,
    Snapshots,
    State,
    base_id,
    find_source,
)
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

_INFO_TIMEOUT_S = 8.0
_LIMITS = SandboxLimits(max_processes=24, max_file_bytes=FILE_BYTES, memory_bytes=512 * 1024 * 1024)
_FACTS = r"""
echo "privileges $(sed -n 's/^NoNewPrivs:[[:space:]]*//p' /proc/self/status)"
touch /planted 2>/dev/null && echo "root writable" || echo "root read-only"
"""
_EXPECTED = {"privileges": "1", "root": "read-only"}

_SANDBOX_ID = re.compile(r"[0-9a-f]{16}")


class DockerProvider(ManagedProvider[State, DockerSandbox]):
    """Linux only. Its sandboxes survive a crash of the service, and `attach` finds them again.

    What becomes of those that nobody attaches to: each ends itself at `DockerSettings.max_age_s`, and the engine removes it
    with its volumes; `sweep` removes them at once. Opening sweeps nothing, because only the caller knows which to keep.
    """

    name = PROVIDER_NAME
    capabilities = frozenset({Capability.SNAPSHOT, Capability.ATTACH, Capability.TERMINAL})

    def __init__(self, settings: DockerSettings | None = None) -> None:
        super().__init__()
        self._settings = settings or DockerSettings()
        self._name = self._settings.name
        self._mine = [f"{key}={value}" for key, value in keys.namespace(self._name).items()]
        self._owner = Owner.of(self._settings.owner)
        self._hosting: Hosting | None = None
        self._probed = False
        self._readying = asyncio.Lock()

    @property
    def namespace(self) -> str:
        """Returns `DockerSettings.name`, which all its objects on the engine carry."""
        return self._name

    @override
    async def _open(self, stack: AsyncExitStack) -> State:
        engine = await stack.enter_async_context(open_engine(self._settings.docker_host))
        base = BaseImage(Images(engine), self._settings)
        return State(
            engine=engine,
            base=base,
            snapshots=Snapshots(engine, name=self._name, base=base, owner=self._owner),
        )

    @override
    async def probe(self) -> str:
        async with probing("a sandbox"):
            finding, self._probed = await _probe(self, self._state, self._settings)
        return finding

    @override
    async def ensure_ready(self, progress: ProgressListener | None = None) -> SnapshotRef:
        async with self._readying:
            base = await self._state.base.ensure(progress or ignore_progress)
            if not self._probed:
                await self.probe()
        return SnapshotRef(
            id=base_id(base),
            provider=self.name,
            name=None,
            created_at=base.created_at,
        )

    @override
    async def _create(self, state: State, spec: SandboxSpec) -> DockerSandbox:
        check_network(spec, drops_root=True)
        hosting = await self._hosted(state)
        source = await find_source(state, spec)
        env = sandbox_env(spec, hosting)
        validate_command(["sh"], env=env, cwd=None)
        labels = SandboxLabels(
            id=secrets.token_hex(8),
            owner=self._owner,
            created_at=datetime.now(UTC),
            labels=dict(spec.labels),
            base=source.base,
            environment=source.environment,
            environment_writable=spec.environment_writable,
            broker=broker_path(spec),
            limits=spec.limits,
        )
        # An image made from the container would keep the container's variables: one that prepares an environment has none.
        written, added = ({}, env) if spec.environment_writable else (env, {})
        saved_id = None if source.workspace else spec.workspace_id
        async with state.snapshots.copies.take(saved_id) as copy:
            config = container_config(
                spec,
                hosting,
                image=source.image,
                env=written,
                labels=labels.encode(self._name),
                copy=copy,
            )
            container_id = await state.engine.create(config, name=self._container_name(labels.id))
            try:
                if source.workspace is not None:
                    await state.snapshots.move_workspace(source.workspace, container_id)
                await state.engine.start(container_id)
            except BaseException:
                await state.engine.discard(container_id)
                raise
        return self._sandbox(state, container_id, labels, env=added)

    @override
    async def _attach(self, state: State, sandbox_id: SandboxId) -> DockerSandbox:
        found = await self._inspect(state, sandbox_id)
        labels = SandboxLabels.decode(found.labels) if found is not None else None
        if found is None or labels is None or not found.running:
            raise SandboxError(SandboxErrorCode.NOT_FOUND, f"no sandbox {sandbox_id!r}")
        return self._sandbox(state, found.id, labels, env={})

    @override
    async def _end(self, state: State, sandbox_id: SandboxId) -> None:
        if (found := await self._inspect(state, sandbox_id)) is not None:
            await state.engine.remove(found.id)

    async def _inspect(self, state: State, sandbox_id: SandboxId) -> ContainerState | None:
        if not _SANDBOX_ID.fullmatch(sandbox_id):
            return None
        found = await state.engine.find(self._container_name(sandbox_id))
        return found if found is not None and found.labels.get(keys.NAME) == self._name else None

    @override
    async def _infos(self, state: State) -> Iterable[SandboxInfo]:
        found = await state.engine.list([*self._mine, keys.SANDBOX])
        decoded = ((container, SandboxLabels.decode(container.labels)) for container in found)
        return (
            _info_of(labels, running=container.running)
            for container, labels in decoded
            if labels is not None and labels.id
        )

    @override
    async def find(self, sandbox_id: SandboxId) -> SandboxInfo | None:
        if not _SANDBOX_ID.fullmatch(sandbox_id):
            return None
        state = self._state
        found = await self._inspect(state, sandbox_id)
        return await _find_info(state, sandbox_id, found, name=self._container_name(sandbox_id))

    @override
    async def stats(self, sandbox_id: SandboxId) -> SandboxStats:
        if not _SANDBOX_ID.fullmatch(sandbox_id):
            return SandboxStats()
        return await self._state.engine.stats(self._container_name(sandbox_id))

    @override
    async def _reap(self, state: State, keep: Keep) -> int:
        """Removes also volumes and images of this name that nothing uses any more."""
        reaped = 0
        copies = await state.snapshots.list_copies()
        for container in await state.engine.list(self._mine):
            sandbox_id = container.labels.get(keys.SANDBOX, "")
            if container.id not in copies and not keep.covers(
                sandbox_id, keys.owner_of(container.labels)
            ):
                await state.engine.remove(container.id)
                reaped += 1
        await state.engine.remove_volumes(self._mine)
        await state.snapshots.collect()
        return reaped

    @override
    async def keep_copy(self, snapshot_id: SnapshotId) -> None:
        await self._state.snapshots.keep_copy(snapshot_id)

    async def _hosted(self, state: State) -> Hosting:
        if self._hosting is None:
            info = await state.engine.info(timeout_s=_INFO_TIMEOUT_S)
            self._hosting = Hosting(
                runtime=self._settings.runtime,
                cpus=min(self._settings.cpus, info.cpus),
                ca_bundle=self._settings.ca_bundle,
                view=open_view(self._settings.host_env),
                max_age_s=self._settings.max_age_s,
                has_seccomp="seccomp" in info.security,
            )
        return self._hosting

    def _sandbox(
        self, state: State, container_id: str, labels: SandboxLabels, *, env: Mapping[str, str]
    ) -> DockerSandbox:
        return DockerSandbox(
            state.engine,
            container_id,
            labels=labels,
            name=self._container_name(labels.id),
            env=env,
            snapshots=state.snapshots,
            forget=self._forget_removed,
        )

    async def _forget_removed(self, sandbox_id: SandboxId) -> None:
        self._forget(sandbox_id)
        # Perhaps it was the last container of an image that was replaced or deleted; the next one tries again.
        await remove_replaced(self._state.snapshots.collect)

    def _container_name(self, sandbox_id: str) -> str:
        return f"orion-{self._name}-{sandbox_id}"


def _info_of(labels: SandboxLabels, *, running: bool) -> SandboxInfo:
    return SandboxInfo(
        id=SandboxId(labels.id),
        provider=PROVIDER_NAME,
        running=running,
        created_at=labels.created_at,
        labels=labels.labels,
    )


async def _find_info(
    state: State, sandbox_id: SandboxId, found: ContainerState | None, *, name: str
) -> SandboxInfo | None:
    """Returns what is known, by its container, whose name and state are given; None when it was ended from outside, too."""
    labels = SandboxLabels.decode(found.labels) if found is not None else None
    if found is not None and labels is not None and found.running:
        return _info_of(labels, running=True)
    # The engine removes one that has ended, at once: only its log of events still tells of it.
    code = await state.engine.exit_code(name)
    if code is None:
        return None
    return SandboxInfo(
        id=sandbox_id,
        provider=PROVIDER_NAME,
        running=False,
        created_at=labels.created_at if labels is not None else datetime.now(UTC),
        labels=labels.labels if labels is not None else {},
        exit_code=code,
    )


async def _probe(
    provider: SandboxProvider, state: State, settings: DockerSettings
) -> tuple[str, bool]:
    """Returns one line on what was found, and whether a sandbox proved it: without a base image none can.

    Raises:
        SandboxError: UNAVAILABLE, ISOLATION_UNAVAILABLE, with what is wrong or does not hold.
    """
    info = await state.engine.info(timeout_s=_INFO_TIMEOUT_S)
    runtime = settings.runtime
    if runtime is not None and runtime not in info.runtimes:
        raise SandboxError(
            SandboxErrorCode.ISOLATION_UNAVAILABLE,
            f"the engine has no runtime {runtime!r}: add it to the engine's configuration",
        )
    if await state.base.find() is None:
        if settings.image is not None:
            raise SandboxError(
                SandboxErrorCode.UNAVAILABLE, f"the engine has no image {settings.image}: pull it"
            )
        return f"Docker Engine {info.version} answers; the base image is built on first use", False
    sandbox = await provider.create(SandboxSpec(limits=_LIMITS))
    try:
        await check_isolation(
            sandbox,
            what="the container",
            forks=40,
            max_processes_seen=12,
            facts=_FACTS,
            expected=_EXPECTED,
        )
    finally:
        await sandbox.destroy()
    return _describe(info, runtime=runtime), True


def _describe(info: EngineInfo, *, runtime: str | None) -> str:
    kind = f" with runtime {runtime}" if runtime else ""
    missing = "" if "seccomp" in info.security else "; the engine has no seccomp profile"
    return (
        f"Docker Engine {info.version}{kind}: user 10001, no capabilities, read-only root, no network, "
        f"limits on memory, processors, processes, file size and open files enforced{missing}"
    )


def create(context: ServiceContext) -> SandboxProvider:
    """Makes the provider for a service."""
    return DockerProvider(
        DockerSettings(
            name=context.namespace,
            owner=context.owner,
            docker_host=context.values["DOCKER_HOST"] or "",
            image=context.values["ORION_DOCKER_IMAGE"],
            runtime=context.values["ORION_DOCKER_RUNTIME"],
            cpus=context.vcpus,
            git_name=context.git_name,
            git_email=context.git_email,
            ca_bundle=context.ca_bundle,
            host_env=context.host_env,
        )
    )
