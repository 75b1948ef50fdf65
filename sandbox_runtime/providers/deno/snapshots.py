"""Snapshots of environments and workspaces, the volumes that they are made from, and what becomes of both.

An environment is a snapshot of a root volume; a workspace one of a session volume, made from the one before, so that only
what changed takes room. The platform keeps a volume as long as a snapshot of it exists, and a snapshot as long as a volume
made from it does: chains of both, which go from their young end. What cannot go yet is marked, and `collect` tries again.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.managed_provider import remove_replaced
from sandbox_runtime.providers.deno.client import ROOT_BYTES, SESSION_BYTES, DenoClient, StoredDisk
from sandbox_runtime.providers.deno.labels import (
    NO_ID,
    SNAPSHOTS,
    VOLUMES,
    Kind,
    Slug,
    name_digest,
    namespace_digest,
    new_id,
)
from sandbox_runtime.types import SandboxSpec, SnapshotId, SnapshotRef

PROVIDER_NAME = "deno"
MAX_DEPTH = 12
"""Of a chain: then a workspace is copied once, and its past can go."""
_YOUNG_S = 1800.0
"""A volume whose sandbox another process may just be booting."""


class Names:
    """The full names of snapshots, for which slugs have no room, and which snapshots shall go as soon as they can.

    A file of lines that are only ever added to, shared by all processes of a service; or memory.

    Only for people who look, and for what could not be deleted at once: without it every snapshot is still found by its
    name, and one that should have gone shows until it is replaced or deleted again.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._names: dict[str, str] = {}
        self._deleted: set[str] = set()
        self._read_bytes = 0

    def name_of(self, digest: str) -> str | None:
        """Returns a snapshot's name; None for what another host named."""
        self._refresh()
        return self._names.get(digest)

    def is_deleted(self, slug: str) -> bool:
        self._refresh()
        return slug in self._deleted

    def add(self, name: str) -> None:
        if self.name_of(name_digest(name)) != name:
            self._names[name_digest(name)] = name
            self._append({"name": name})

    def mark_deleted(self, slug: str) -> None:
        if not self.is_deleted(slug):
            self._deleted.add(slug)
            self._append({"deleted": slug})

    def _append(self, entry: dict[str, str]) -> None:
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def _refresh(self) -> None:
        """Takes in what was added since, maybe by another process; a line that is still being written waits."""
        if self._path is None or not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read_bytes)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        for line in whole.splitlines():
            entry = json.loads(line)
            if "name" in entry:
                self._names[name_digest(entry["name"])] = entry["name"]
            else:
                self._deleted.add(entry["deleted"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Says what a sandbox starts from."""

    environment: Slug
    workspace: Slug | None = None
    """None = what the environment has of one."""
    is_emptied: bool = False
    """Not even that."""

    @property
    def base_id(self) -> str:
        return (
            self.environment.id if self.environment.kind is Kind.BASE else self.environment.parent
        )


class Snapshots:
    """The snapshots and volumes of one namespace in one region."""

    def __init__(
        self, client: DenoClient, names: Names, *, name: str, region: str, recipe: str
    ) -> None:
        """`recipe` is what the base is made by."""
        self._client = client
        self._names = names
        self._namespace = namespace_digest(name)
        self._region = region
        self._recipe = name_digest(recipe)
        self._last_id = NO_ID
        self._given_up: set[str] = set()

    def new_slug(
        self, kind: Kind, *, name: str | None = None, depth: int = 0, parent: str = NO_ID
    ) -> Slug:
        """Returns the slug of something made now; its id is that of nothing else of this process."""
        own_id = new_id()
        if own_id <= self._last_id:
            own_id = new_id(after=self._last_id)
        self._last_id = own_id
        digest = self._recipe if kind is Kind.BASE else name_digest(name)
        return Slug(
            kind=kind, namespace=self._namespace, id=own_id, name=digest, depth=depth, parent=parent
        )

    def saved_slug(
        self, volume: Slug, kind: Kind, *, number: int, name: str | None = None, parent: str = NO_ID
    ) -> Slug:
        """Returns the slug of the snapshot of a volume that is saved for the `number`-th time, from 0. Its time is the volume's."""
        slug = self.new_slug(kind, name=name, depth=volume.depth, parent=parent)
        ids = volume.saved_ids()
        return replace(slug, id=ids[number]) if number < len(ids) else slug

    async def find_base(self) -> Slug | None:
        """Returns the base made by the present recipe, if there is one; the first, when two services made it at once."""
        found = [
            s for s, _ in await self._snapshots() if s.kind is Kind.BASE and s.name == self._recipe
        ]
        return min(found, key=lambda slug: slug.id) if found else None

    async def find_source(self, spec: SandboxSpec) -> Source:
        """Finds what a sandbox starts from. Raises: SandboxError: NOT_FOUND; CREATE_FAILED when the base was not made yet."""
        if spec.snapshot_id is None:
            base = await self.find_base()
            if base is None:
                raise SandboxError(
                    SandboxErrorCode.CREATE_FAILED,
                    f"there is no base environment in region {self._region} yet: it is made with the first environment of an agent",
                )
            source = Source(environment=base)
        else:
            source = await self._source_of(spec.snapshot_id)
        if spec.workspace_id is None:
            return source
        saved = (await self._source_of(spec.workspace_id)).workspace
        return replace(source, workspace=saved, is_emptied=saved is None)

    async def _source_of(self, snapshot_id: SnapshotId) -> Source:
        wanted = self._parse(snapshot_id, SNAPSHOTS)
        found = await self._all_snapshots() if wanted is not None else []
        elsewhere = next((disk.region for slug, disk in found if slug == wanted), self._region)
        if elsewhere != self._region:
            raise SandboxError(
                SandboxErrorCode.NOT_FOUND,
                f"snapshot {snapshot_id} is in region {elsewhere}, not in {self._region}",
            )
        if wanted is None or self._names.is_deleted(snapshot_id) or wanted not in dict(found):
            raise SandboxError(SandboxErrorCode.NOT_FOUND, f"no snapshot {snapshot_id!r}")
        if wanted.kind is not Kind.SESSION:
            return Source(environment=wanted)
        for slug, disk in found:
            if (
                slug.id == wanted.parent
                and slug.kind is not Kind.SESSION
                and disk.region == self._region
            ):
                return Source(environment=slug, workspace=wanted)
        raise SandboxError(
            SandboxErrorCode.NOT_FOUND, f"the environment of snapshot {snapshot_id} is gone"
        )

    async def create_volume(self, slug: Slug, *, source: Slug | str | None) -> None:
        """Makes a volume, from a snapshot or empty. Raises: SandboxError: NOT_FOUND, CREATE_FAILED, LIMIT_REACHED."""
        size = ROOT_BYTES if slug.kind is Kind.ROOT_VOLUME else SESSION_BYTES
        await self._client.create_volume(
            str(slug), size_bytes=size, source=None if source is None else str(source)
        )

    async def find_volume(self, volume_id: str) -> Slug | None:
        """Returns the volume of a sandbox, by its id."""
        for disk in await self._client.volumes():
            slug = self._parse(disk.slug, VOLUMES - {Kind.COPY_VOLUME})
            if slug is not None and slug.id == volume_id:
                return slug
        return None

    async def save(self, volume: Slug, slug: Slug, *, name: str | None) -> SnapshotRef:
        """Saves a volume whose sandbox has ended as the snapshot `slug`. Of a name there is one: earlier ones go.

        Raises:
            SandboxError: UNAVAILABLE.
        """
        if name is not None:
            self._names.add(name)
        await self._client.snapshot_volume(str(volume), str(slug))
        if name is not None:
            for other, _ in await self._snapshots():
                is_older = other.name == slug.name and other.id < slug.id
                if is_older and other.kind is not Kind.BASE:
                    await self._replace(other)
        return self._ref(slug)

    async def find_named(self, name: str) -> SnapshotRef | None:
        """Returns the newest snapshot of that name. An environment that was made on another base does not count."""
        base = await self.find_base()
        wanted = name_digest(name)
        found = [
            slug
            for slug, _ in await self._snapshots()
            if slug.name == wanted
            and (
                slug.kind is Kind.SESSION
                or (slug.kind is Kind.ENVIRONMENT and base is not None and slug.parent == base.id)
            )
        ]
        if not found:
            return None
        return replace(self._ref(max(found, key=lambda slug: slug.id)), name=name)

    async def list(self) -> Sequence[SnapshotRef]:
        """Lists snapshots, oldest first, without the base, each with what it takes beside what it stands on."""
        refs = [
            replace(self._ref(slug), size_bytes=disk.allocated_bytes)
            for slug, disk in await self._snapshots()
            if slug.kind is not Kind.BASE
        ]
        return tuple(sorted(refs, key=lambda ref: ref.created_at))

    async def count_elsewhere(self) -> int:
        """Counts the sessions saved in other regions, where sandboxes of this one cannot have them."""
        return sum(
            slug.kind is Kind.SESSION and disk.region != self._region
            for slug, disk in await self._all_snapshots()
        )

    async def delete(self, snapshot_id: str) -> None:
        """Deletes a snapshot, at once or as soon as that can be. Raises: SandboxError: UNAVAILABLE."""
        slug = self._parse(snapshot_id, SNAPSHOTS)
        if slug is not None and not await self._client.delete_snapshot(str(slug)):
            self._names.mark_deleted(str(slug))

    async def discard_volume(self, slug: Slug, *, was_saved: bool = False) -> None:
        """Deletes a volume whose sandbox has ended. One that was saved stays, until `collect` finds that its snapshots are gone.

        Raises:
            SandboxError: UNAVAILABLE.
        """
        self._given_up.add(slug.id)
        if not was_saved:
            await self._client.delete_volume(str(slug))

    async def collect(self, used: Collection[str]) -> None:
        """Deletes volumes that no sandbox uses, whose ids are not in `used`, and snapshots marked before, as far as they go.

        Raises:
            SandboxError: UNAVAILABLE.
        """
        volumes = {
            slug: disk.base
            for disk in await self._client.volumes()
            if (slug := self._parse(disk.slug, VOLUMES)) is not None
        }
        snapshots = {slug for slug, _ in await self._all_snapshots()}
        ids, bases = {slug.id for slug in snapshots}, list(volumes.values())
        now = int(new_id(), 36)
        # From the young end, and only what nothing that is left refers to: the platform would refuse the others.
        for slug in sorted((*volumes, *snapshots), key=lambda slug: slug.id, reverse=True):
            text = str(slug)
            if slug.kind in SNAPSHOTS:
                is_free = self._names.is_deleted(text) and text not in bases
                if is_free and await self._client.delete_snapshot(text):
                    ids.discard(slug.id)
                continue
            is_old = slug.id in self._given_up or now - int(slug.id, 36) > _YOUNG_S * 1000
            is_free = slug.id not in used and ids.isdisjoint(slug.saved_ids())
            if is_old and is_free and await self._client.delete_volume(text):
                bases.remove(volumes[slug])

    async def _replace(self, older: Slug) -> None:
        if not await remove_replaced(partial(self.delete, str(older))):
            self._names.mark_deleted(str(older))

    async def _snapshots(self) -> Sequence[tuple[Slug, StoredDisk]]:
        """Lists snapshots in this region, without those that shall go."""
        return [
            (slug, disk)
            for slug, disk in await self._all_snapshots()
            if disk.region == self._region and not self._names.is_deleted(disk.slug)
        ]

    async def _all_snapshots(self) -> Sequence[tuple[Slug, StoredDisk]]:
        parsed = [(self._parse(d.slug, SNAPSHOTS), d) for d in await self._client.snapshots()]
        return [(slug, disk) for slug, disk in parsed if slug is not None]

    def _parse(self, text: str, kinds: Collection[Kind]) -> Slug | None:
        slug = Slug.parse(text)
        is_ours = slug is not None and slug.namespace == self._namespace and slug.kind in kinds
        return slug if is_ours else None

    def _ref(self, slug: Slug) -> SnapshotRef:
        return SnapshotRef(
            id=SnapshotId(str(slug)),
            provider=PROVIDER_NAME,
            name=self._names.name_of(slug.name)
            if slug.is_named and slug.kind is not Kind.BASE
            else None,
            created_at=slug.created_at,
        )
