"""Snapshots as images: an environment, and on top of it, as one more layer, a saved workspace.

A workspace lies in the image where volumes are mounted later: the engine fills a new volume from there, so restoring is
its own work, and the environment below is shared by all. A small workspace is saved whole, on the environment. Of a large one
only what has changed is, on what was saved last or what its sandbox began with; after `MAX_CHANGES` of such layers it is saved
whole again, so that they do not pile up.

Source: Docker documentation, "Volumes", populate a volume using a container, read 2026-11.
"""

import logging
import posixpath
import re
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.lifecycle import Owner
from sandbox_runtime.managed_provider import remove_replaced
from sandbox_runtime.providers.docker import labels as keys
from sandbox_runtime.providers.docker.client import ContainerFiles, Engine
from sandbox_runtime.providers.docker.containers import SAVED, mirror_config
from sandbox_runtime.providers.docker.copies import Copies
from sandbox_runtime.providers.docker.images import BaseImage, Images, ImageState
from sandbox_runtime.providers.docker.labels import SandboxLabels, SnapshotLabels
from sandbox_runtime.providers.docker.processes import Host, run_script
from sandbox_runtime.task_group import together
from sandbox_runtime.types import SandboxSpec, SnapshotId, SnapshotRef

_log = logging.getLogger(__name__)

PROVIDER_NAME = "docker"
_ID = re.compile(r"[0-9a-f]{16}")
_ENVIRONMENT_SUFFIX = "-environment"
LARGE_BYTES = 16 * 1024**2
"""A smaller workspace is saved whole: no container has to be started for that."""
MAX_CHANGES = 8

# Prints something when there is anything to save.
_IS_USED = f"""
import os
print("used" if any(os.listdir(path) for path in {SAVED!r}) else "")
"""

Quiet = Callable[[], Coroutine[None, None, None]]
"""Ends what runs in a sandbox."""


async def _nothing() -> None:
    pass


class Snapshots:
    """The snapshots of one namespace on one engine."""

    def __init__(self, engine: Engine, *, name: str, base: BaseImage, owner: Owner) -> None:
        """`owner`: of the containers that are needed to save one."""
        self._base = base
        self._owner = owner
        self._engine = engine
        self._images = Images(engine)
        self._name = name
        self._mine = [f"{key}={value}" for key, value in keys.namespace(name).items()]
        self.copies = Copies(engine, name=name, owner=owner)

    async def find(self, snapshot_id: str) -> tuple[ImageState, SnapshotLabels] | None:
        if not _ID.fullmatch(snapshot_id):
            return None
        image = await self._images.find(self._reference(snapshot_id))
        labels = SnapshotLabels.decode(image.labels) if image is not None else None
        return (image, labels) if image is not None and labels is not None else None

    async def find_named(self, name: str) -> SnapshotRef | None:
        """Returns the newest of that name. One that was made for another base than today's counts only if it is a session."""
        image = await self._base.find()
        base = image.id if image is not None else None
        found = [
            labels
            for labels in await self._all(f"{keys.SNAPSHOT_NAME}={name}")
            if labels.is_session or labels.base == base
        ]
        return _ref(max(found, key=lambda labels: labels.created_at)) if found else None

    async def list(self) -> Sequence[SnapshotRef]:
        """Lists snapshots, oldest first, each with its size without what it stands on."""
        found = await self._find_all()
        sizes = {image.id: image.size_bytes for image, _ in found}
        for parent in {labels.environment or labels.base for _, labels in found} - sizes.keys():
            image = await self._images.find(parent)
            if image is not None:
                sizes[parent] = image.size_bytes
        refs = []
        for image, labels in found:
            below = sizes.get(labels.environment or labels.base)
            size_bytes = None if below is None else image.size_bytes - below
            refs.append(replace(_ref(labels), size_bytes=size_bytes))
        return tuple(sorted(refs, key=lambda ref: ref.created_at))

    async def delete(self, snapshot_id: str) -> None:
        if _ID.fullmatch(snapshot_id):
            await self.copies.discard(snapshot_id)
            reference = self._reference(snapshot_id)
            for name in (reference, reference + _ENVIRONMENT_SUFFIX):
                await self._images.remove(name)

    async def keep_copy(self, snapshot_id: str) -> None:
        """Makes a copy of its workspace for the next sandbox, unless one waits; unknown ids are fine."""
        found = await self.find(snapshot_id)
        if found is None:
            return
        await self.copies.make(snapshot_id, image=found[0].id)
        if await self.find(snapshot_id) is None:  # deleted meanwhile
            await self.copies.discard(snapshot_id)

    async def list_copies(self) -> Collection[str]:
        """Returns the ids of containers that wait with a copy of a snapshot that is there."""
        copies = await self.copies.list()
        return [found for found, source in copies.items() if await self.find(source) is not None]

    async def collect(self) -> None:
        """Removes what was replaced or deleted while a container still ran from it."""
        await self._images.remove_dangling(self._mine)

    async def save(
        self, host: Host, source: SandboxLabels, name: str | None, *, quiet: Quiet
    ) -> SnapshotRef:
        """Saves a sandbox in which nothing runs any more after `quiet`."""
        snapshot = SnapshotLabels(
            id=secrets.token_hex(8),
            name=name,
            created_at=datetime.now(UTC),
            base=source.base,
            environment="" if source.environment_writable else source.environment,
            is_session=not source.environment_writable,
            saved_from=source.id,
        )
        if source.environment_writable:
            await quiet()
            await self._save_prepared(host, snapshot)
        else:
            await self._save_session(host, snapshot, quiet=quiet)
        await self._replace(snapshot)
        return _ref(snapshot)

    async def move_workspace(self, image: str, container_id: str) -> None:
        """Fills a container that was not started yet with the workspace that an image holds."""
        async with self._unstarted(image) as source:
            for path in SAVED:
                await self._engine.copy(source, f"{path}/.", target=container_id, into=path)

    def _unstarted(
        self, image: str, *, meanwhile: Quiet = _nothing
    ) -> AbstractAsyncContextManager[str]:
        """Makes a container that is never started: only its files are of use."""
        config = {"Image": image, "Cmd": ["sh"], "Labels": keys.saving(self._name, self._owner)}
        return self._container(config, meanwhile=meanwhile)

    @asynccontextmanager
    async def _container(
        self, config: Mapping[str, object], *, meanwhile: Quiet
    ) -> AsyncIterator[str]:
        name = f"orion-{self._name}-files-{secrets.token_hex(8)}"
        try:
            await together(self._engine.create(config, name=name), meanwhile())
            yield name
        finally:
            await self._engine.discard(name)

    async def _save_prepared(self, host: Host, snapshot: SnapshotLabels) -> None:
        """Saves an environment, and the workspace if there is anything in it."""
        if not (await run_script(host, _IS_USED)).strip():
            await self._commit(host.container_id, snapshot, environment="")
            return
        unlisted = replace(snapshot, id="", name=None)
        reference = self._reference(snapshot.id) + _ENVIRONMENT_SUFFIX
        environment = await self._images.commit(
            host.container_id, reference, unlisted.encode(self._name)
        )
        try:
            await self._save_workspace(host, snapshot, environment=environment)
        except BaseException:
            await self._images.remove(reference)
            raise

    async def _save_session(self, host: Host, snapshot: SnapshotLabels, *, quiet: Quiet) -> None:
        files = await self._engine.files(host.container_id)
        earlier = await self._earlier(snapshot, files.image)
        if earlier is None or not await self._save_changes(
            host, replace(snapshot, changes=earlier[1].changes + 1), earlier[0], files, quiet=quiet
        ):
            await self._save_workspace(host, snapshot, quiet=quiet)

    async def _earlier(
        self, snapshot: SnapshotLabels, image: str
    ) -> tuple[ImageState, SnapshotLabels] | None:
        """Returns a large workspace on the same environment that most of a sandbox's is in: its last one, or what it began with as `image`. None = there is none."""
        named = f"{keys.SNAPSHOT_NAME}={snapshot.name}"
        found = await self._find_all(named) if snapshot.name is not None else ()
        own = [one for one in found if one[1].saved_from == snapshot.saved_from]
        own.sort(key=lambda one: one[1].created_at, reverse=True)
        began, environment = (
            await self._images.find(image),
            await self._images.find(snapshot.environment),
        )
        if began is None or environment is None:
            return None
        least_bytes = environment.size_bytes + LARGE_BYTES
        labels = SnapshotLabels.decode(began.labels)
        for state, about in (*own, *([(began, labels)] if labels is not None else [])):
            is_on_it = about.environment == snapshot.environment and about.changes < MAX_CHANGES
            if is_on_it and state.size_bytes >= least_bytes:
                return state, about
        return None

    async def _save_changes(
        self,
        host: Host,
        snapshot: SnapshotLabels,
        earlier: ImageState,
        files: ContainerFiles,
        *,
        quiet: Quiet,
    ) -> bool:
        """Saves what differs from an earlier workspace as one more layer on it. False: that could not be told, and nothing was saved."""
        config = mirror_config(
            earlier.id,
            files.volumes,
            labels=keys.saving(self._name, self._owner),
            memory_bytes=host.limits.memory_bytes,
        )
        async with self._container(config, meanwhile=quiet) as builder:
            code = await self._engine.run(builder)
            if code:
                _log.warning(
                    "workspace is saved whole",
                    extra={"action": "sandbox.changes_unknown", "exit_code": code},
                )
                return False
            await self._commit(builder, snapshot, environment=snapshot.environment)
            return True

    async def _save_workspace(
        self,
        host: Host,
        snapshot: SnapshotLabels,
        *,
        quiet: Quiet = _nothing,
        environment: str | None = None,
    ) -> None:
        environment = environment or snapshot.environment
        async with self._unstarted(environment, meanwhile=quiet) as builder:
            # Side by side: the engine starts a process of its own to read, and another to write.
            await together(
                *(
                    self._engine.copy(
                        host.container_id, path, target=builder, into=posixpath.dirname(path)
                    )
                    for path in SAVED
                )
            )
            await self._commit(builder, snapshot, environment=environment)

    async def _commit(
        self, container_id: str, snapshot: SnapshotLabels, *, environment: str
    ) -> None:
        written = replace(snapshot, environment=environment)
        await self._images.commit(
            container_id, self._reference(snapshot.id), written.encode(self._name)
        )

    async def _replace(self, snapshot: SnapshotLabels) -> None:
        """Removes older ones of its name: of a name there is one. What still runs from an older one keeps running."""
        if snapshot.name is None:
            return
        for other in await self._all(f"{keys.SNAPSHOT_NAME}={snapshot.name}"):
            if other.id != snapshot.id and other.created_at <= snapshot.created_at:
                await remove_replaced(partial(self.delete, other.id))

    async def _all(self, *labels: str) -> tuple[SnapshotLabels, ...]:
        return tuple(found for _, found in await self._find_all(*labels))

    async def _find_all(self, *labels: str) -> tuple[tuple[ImageState, SnapshotLabels], ...]:
        images = await self._images.list([*self._mine, keys.SNAPSHOT, *labels], dangling=False)
        decoded = ((image, SnapshotLabels.decode(image.labels)) for image in images)
        return tuple((image, found) for image, found in decoded if found is not None and found.id)

    def _reference(self, snapshot_id: str) -> str:
        return f"orion-snapshot/{self._name}:{snapshot_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    engine: Engine
    base: BaseImage
    snapshots: Snapshots


def _ref(labels: SnapshotLabels) -> SnapshotRef:
    return SnapshotRef(
        id=SnapshotId(labels.id),
        provider=PROVIDER_NAME,
        name=labels.name,
        created_at=labels.created_at,
    )


_PREFIX = "base-"
_BASE_ID = re.compile(rf"{_PREFIX}[0-9a-f]{{12}}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Ids of images."""

    image: str
    environment: str
    """The same, without any workspace."""
    base: str
    workspace: str | None = None
    """Another image to take the workspace from."""


def base_id(image: ImageState) -> SnapshotId:
    """Returns the base image's id as that of a snapshot."""
    return SnapshotId(f"{_PREFIX}{image.id.removeprefix('sha256:')[:12]}")


async def find_source(state: State, spec: SandboxSpec) -> Source:
    """Finds what a sandbox starts from. Raises: SandboxError: NOT_FOUND; CREATE_FAILED when the base image was not made yet."""
    source = await _find(state, spec.snapshot_id)
    if spec.workspace_id is None:
        return source
    saved = await _find(state, spec.workspace_id)
    if saved.environment == source.environment:
        return saved  # the usual case: one image holds both
    return replace(source, image=source.environment, workspace=saved.image)


async def _find(state: State, wanted: SnapshotId | None) -> Source:
    if wanted is None:
        base = await state.base.find()
        if base is None:
            raise SandboxError(
                SandboxErrorCode.CREATE_FAILED,
                f"there is no image {state.base.reference} yet: it is made with the first environment of an agent",
            )
        return Source(image=base.id, environment=base.id, base=base.id)
    if _BASE_ID.fullmatch(wanted):
        base = await state.base.find(wanted.removeprefix(_PREFIX))
        if base is not None:
            return Source(image=base.id, environment=base.id, base=base.id)
    elif (found := await state.snapshots.find(wanted)) is not None:
        image, labels = found
        return Source(image=image.id, environment=labels.environment or image.id, base=labels.base)
    raise SandboxError(SandboxErrorCode.NOT_FOUND, f"no snapshot {wanted!r}")
