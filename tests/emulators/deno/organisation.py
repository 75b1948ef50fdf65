"""What an organisation has at the emulated Deno: sandboxes, volumes, snapshots, and the limits of each.

Sources: Deno documentation ("Deno Sandbox", "Volumes & Snapshots", "Timeouts"), deno-sandbox 0.16.0, @deno/sandbox 0.13.2;
codes of refusals, the form of slugs and what cannot be deleted as seen on the platform by others, 2026.
"""

import asyncio
import secrets
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from tests.emulators.deno.resources import (
    BUILTIN,
    DETACH_S,
    IMAGE,
    MAX_LIFETIME_S,
    MAX_RUNNING,
    MAX_VOLUME,
    MIN_VOLUME,
    REGIONS,
    SLUG,
    Box,
    Disk,
    Refused,
    install_system,
    make_policy,
    parse_bytes,
    used_bytes,
)
from tests.emulators.machine import Machine
from tests.emulators.machine_disk import MachineImage, copy, discard
from tests.emulators.machine_network import Address


class Organisation:
    def __init__(
        self, directory: Path, *, internet: Sequence[Address], image: MachineImage = IMAGE
    ) -> None:
        self._image = image
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._internet = tuple(internet)
        self._lock = asyncio.Lock()
        self.boxes: dict[str, Box] = {}
        self.volumes: dict[str, Disk] = {}
        self.snapshots: dict[str, Disk] = {}
        self.max_running = MAX_RUNNING
        self.created = 0

    @property
    def running(self) -> list[Box]:
        return [box for box in self.boxes.values() if box.is_running]

    @property
    def slugs(self) -> set[str]:
        """Of all volumes and snapshots."""
        return {disk.slug for disk in (*self.volumes.values(), *self.snapshots.values())}

    async def create_volume(
        self, slug: str, region: str, capacity: object, source: str | None
    ) -> Disk:
        async with self._lock:
            self._check_slug(slug)
            if region not in REGIONS:
                raise Refused(400, "BAD_REQUEST", f"unknown region {region}")
            size = parse_bytes(capacity)
            if not MIN_VOLUME <= size <= MAX_VOLUME:
                raise Refused(400, "BAD_REQUEST", f"capacity {size} is not within 300 MB and 20 GB")
            snapshot = (
                None if source in {None, BUILTIN} else self._find(self.snapshots, str(source))
            )
            if snapshot is not None and snapshot.region != region:
                raise Refused(400, "REGION_MISMATCH", f"{source} is in {snapshot.region}")
            directory = self._new("volume")
            if source == BUILTIN:
                await asyncio.to_thread(install_system, self._image, directory, self._internet)
            elif snapshot is not None:
                await copy(snapshot.directory, directory)
            else:
                directory.mkdir(mode=0o755)
            disk = Disk(
                id=f"vol_{region}_{secrets.token_hex(10)}",
                slug=slug,
                region=region,
                directory=directory,
                capacity=size,
                is_bootable=source == BUILTIN or (snapshot is not None and snapshot.is_bootable),
                source=snapshot,
                own_bytes=used_bytes(directory),
            )
            self.volumes[disk.id] = disk
            return disk

    def find_volume(self, name: str) -> Disk:
        return self._find(self.volumes, name)

    def find_snapshot(self, name: str) -> Disk:
        return self._find(self.snapshots, name)

    async def delete_volume(self, name: str) -> None:
        async with self._lock:
            disk = self._find(self.volumes, name)
            self._check_detached(disk)
            cut = [s.slug for s in self.snapshots.values() if s.volume == disk.id]
            if cut:
                raise Refused(
                    409,
                    "VOLUME_HAS_SNAPSHOTS",
                    f"The requested volume has snapshots (such as '{cut[0]}'), and cannot be deleted",
                )
            del self.volumes[disk.id]
            await discard(disk.directory)

    async def snapshot(self, name: str, slug: str) -> Disk:
        async with self._lock:
            volume = self._find(self.volumes, name)
            self._check_slug(slug)
            self._check_detached(volume)
            if time.monotonic() - volume.detached_at < DETACH_S:
                raise Refused(500, "INTERNAL_SERVER_ERROR", "the volume is not ready")
            directory = self._new("snapshot")
            await copy(volume.directory, directory)
            used = used_bytes(directory)
            made = Disk(
                id=f"snp_{volume.region}_{secrets.token_hex(10)}",
                slug=slug,
                region=volume.region,
                directory=directory,
                capacity=used,
                is_bootable=volume.is_bootable,
                source=volume.source,
                volume=volume.id,
                own_bytes=max(0, used - volume.own_bytes),
            )
            self.snapshots[made.id] = made
            return made

    async def delete_snapshot(self, name: str) -> None:
        async with self._lock:
            disk = self._find(self.snapshots, name)
            derived = [v.slug for v in self.volumes.values() if v.source is disk]
            if derived or any(box.snapshot is disk for box in self.running):
                raise Refused(409, "SNAPSHOT_IN_USE", f"The snapshot is used by {derived}")
            del self.snapshots[disk.id]
            await discard(disk.directory)

    async def create(self, config: Mapping[str, object], region: str) -> Box:
        """`config` as it was checked before."""
        async with self._lock:
            if len(self.running) >= self.max_running:
                raise Refused(
                    429,
                    "SANDBOX_CONCURRENCY_LIMIT_EXCEEDED",
                    f"at most {self.max_running} sandboxes may run at once",
                )
            stop_at = float(str(config["stop_at_ms"])) / 1000
            if not time.time() < stop_at <= time.time() + MAX_LIFETIME_S + 1:
                raise Refused(400, "BAD_REQUEST", "a sandbox lives at most 30 minutes")
            root, snapshot = self._root(str(config["root"]), region)
            volumes = {
                path: self._mountable(slug, region)
                for path, slug in dict(config["volumes"]).items()  # type: ignore[call-overload]  # checked
            }
            directory = await self._system(root, snapshot)
            for path, disk in volumes.items():
                point = directory / path.lstrip("/")
                if point.is_dir():
                    point.rmdir()
                disk.directory.rename(point)
            env = {str(k): str(v) for k, v in dict(config["env"]).items()}  # type: ignore[call-overload]  # same
            machine = Machine(directory, image=self._image, internet=self._internet)
            machine.network.policy = make_policy(config, env)
            box = Box(
                id=f"sbx_{region}_{secrets.token_hex(10)}",
                region=region,
                labels=dict(config["labels"]),  # type: ignore[call-overload]  # same
                created_at=datetime.now(UTC),
                stop_at=stop_at,
                machine=machine,
                root=root,
                snapshot=snapshot,
                volumes=volumes,
                env=env,
                config=config,
            )
            self.boxes[box.id] = box
            self.created += 1
            await machine.power_on()
            return box

    async def stop(self, box: Box) -> None:
        async with self._lock:
            if not box.is_running:
                return
            box.stopped_at = datetime.now(UTC)
            box.ended.set()
            await box.machine.stop()
            for path, disk in box.volumes.items():
                point = box.machine.root / path.lstrip("/")
                point.rename(disk.directory)
                point.mkdir()
            for disk in box.disks:
                disk.detached_at = time.monotonic()
            if box.root is None:
                await discard(box.machine.root)

    async def stop_overdue(self) -> None:
        for box in self.running:
            if time.time() >= box.stop_at:
                await self.stop(box)

    async def close(self) -> None:
        for box in self.running:
            await self.stop(box)
        await discard(self._directory)

    def _root(self, name: str, region: str) -> tuple[Disk | None, Disk | None]:
        if not name:
            return None, None
        if any(name in {d.id, d.slug} for d in self.volumes.values()):
            return self._mountable(name, region, bootable=True), None
        snapshot = self._find(self.snapshots, name)
        if snapshot.region != region or not snapshot.is_bootable:
            raise Refused(400, "BAD_REQUEST", f"{name} cannot be booted in {region}")
        return None, snapshot

    def _mountable(self, name: str, region: str, *, bootable: bool = False) -> Disk:
        disk = self._find(self.volumes, name)
        if disk.region != region:
            raise Refused(
                400, "REGION_MISMATCH", f"volume {name} is in {disk.region}, not in {region}"
            )
        if bootable and not disk.is_bootable:
            raise Refused(400, "BAD_REQUEST", f"volume {name} is not bootable")
        self._check_detached(disk)
        return disk

    async def _system(self, root: Disk | None, snapshot: Disk | None) -> Path:
        if root is not None:
            return root.directory
        directory = self._new("root")
        if snapshot is not None:
            await copy(snapshot.directory, directory)
        else:
            await asyncio.to_thread(install_system, self._image, directory, self._internet)
        return directory

    def _check_detached(self, disk: Disk) -> None:
        if any(disk in box.disks for box in self.running):
            raise Refused(
                409,
                "VOLUME_IS_MOUNTED",
                "The requested volume is currently mounted to one or more sandboxes",
            )

    def _check_slug(self, slug: str) -> None:
        if not SLUG.fullmatch(slug):
            raise Refused(
                400,
                "BAD_REQUEST",
                "The request was malformed: Must be a valid regional namespaced ID with prefix 'vol_<region>_'",
            )
        if any(slug == d.slug for d in (*self.volumes.values(), *self.snapshots.values())):
            raise Refused(409, "SLUG_TAKEN", f"{slug} exists")

    def _find(self, disks: Mapping[str, Disk], name: str) -> Disk:
        for disk in disks.values():
            if name in {disk.id, disk.slug}:
                return disk
        raise Refused(404, "NOT_FOUND", f"{name} does not exist")

    def _new(self, kind: str) -> Path:
        return self._directory / f"{kind}-{secrets.token_hex(6)}"
