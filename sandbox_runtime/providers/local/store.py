"""The state directory: environments, snapshots and sandboxes, each found only when whole, swept when their owner died.

    environments/<id>/        immutable once a snapshot names it; bound into sandboxes, never copied
    snapshots/<id>/           snapshot.json, work/ and home/ where they were not empty
    names/<digest>.json       name -> snapshot
    sandboxes/<id>/           sandbox.json, work/, home/, run/, tmp/
    trash/                    on its way out
    system/                   files shown to every sandbox

Blocking code; several processes may share one directory.
"""

import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sandbox_runtime.providers.local.records import NameRecord, SandboxRecord, SnapshotRecord

SUPERSEDED_KEPT = timedelta(hours=1)
"""A replaced snapshot stays restorable this long, for those who have just looked it up."""
_MAX_ID_CHARS = 64


class LocalStore:
    """All reading and writing of the state directory but the contents of sandboxes."""

    def __init__(self, root: Path, *, base: str) -> None:
        """`base` says what environments depend on besides their name: the host's Python and the kind of isolation."""
        self._root = root
        self._base = base

    @property
    def system(self) -> Path:
        return self._root / "system"

    @property
    def trash(self) -> Path:
        return self._root / "trash"

    def environment(self, environment_id: str) -> Path:
        return self._root / "environments" / environment_id

    def snapshot(self, snapshot_id: str) -> Path:
        return self._root / "snapshots" / snapshot_id

    def sandbox(self, sandbox_id: str) -> Path:
        return self._root / "sandboxes" / sandbox_id

    def prepare(self, system_files: Mapping[str, str]) -> None:
        """Make the directories; nobody else on the machine may look inside."""
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in ("environments", "snapshots", "names", "sandboxes", "trash", "system"):
            (self._root / name).mkdir(mode=0o755, exist_ok=True)
        for name, text in system_files.items():
            _write_atomically(self.system / name, text, durable=False)
            (self.system / name).chmod(0o644)

    def claim(self, record: SandboxRecord, *, uids: range | None) -> SandboxRecord | None:
        """Make the sandbox's directory and its record, with a host uid from `uids` if given; None when all are taken."""
        with self._locked():
            if uids is not None:
                taken = {other.host_uid for other in self.sandboxes()}
                free = next((uid for uid in uids if uid not in taken), None)
                if free is None:
                    return None
                record = replace(record, host_uid=free)
            directory = self.sandbox(record.id)
            directory.mkdir(mode=0o755)
            _write_atomically(directory / "sandbox.json", record.to_json(), durable=False)
            return record

    def sandboxes(self) -> list[SandboxRecord]:
        records: list[SandboxRecord] = []
        for path in (self._root / "sandboxes").glob("*/sandbox.json"):
            # Not synced to the disk: after a power failure it may be empty, and its sandbox is dead anyway.
            with suppress(FileNotFoundError, json.JSONDecodeError):
                records.append(SandboxRecord.from_json(path.read_text(encoding="utf-8")))
        return records

    def snapshots(self) -> list[SnapshotRecord]:
        records: list[SnapshotRecord] = []
        for path in (self._root / "snapshots").glob("*/snapshot.json"):
            with suppress(FileNotFoundError):
                records.append(SnapshotRecord.from_json(path.read_text(encoding="utf-8")))
        return sorted(records, key=lambda record: record.created_at)

    def sizes(self) -> dict[str, int]:
        """Snapshot id -> bytes of the environment that it brought; without those that stand on another's."""
        bringers: dict[str, str] = {}
        for record in self.snapshots():
            if record.environment is not None:
                bringers.setdefault(record.environment, record.id)
        return {
            snapshot_id: _allocated_bytes(self.environment(environment))
            for environment, snapshot_id in bringers.items()
        }

    def find(self, snapshot_id: str) -> SnapshotRecord | None:
        if not snapshot_id.isalnum() or len(snapshot_id) > _MAX_ID_CHARS:
            return None
        try:
            text = (self.snapshot(snapshot_id) / "snapshot.json").read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return None
        return SnapshotRecord.from_json(text)

    def find_named(self, name: str) -> SnapshotRecord | None:
        try:
            text = self._name_path(name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        return self.find(NameRecord.from_json(text).snapshot)

    def names(self) -> dict[str, str]:
        """Snapshot id -> its name."""
        names: dict[str, str] = {}
        for path in (self._root / "names").glob("*.json"):
            with suppress(FileNotFoundError):
                record = NameRecord.from_json(path.read_text(encoding="utf-8"))
                names[record.snapshot] = record.name
        return names

    def publish(self, made: Path, record: SnapshotRecord, *, name: str | None) -> None:
        """Turn a finished directory into a snapshot: from here on, and only from here on, it is found."""
        _write_atomically(made / "snapshot.json", record.to_json())
        with self._locked():
            made.rename(self.snapshot(record.id))
            _sync_directory(self._root / "snapshots")
            if name is None:
                return
            previous = self.find_named(name)
            text = NameRecord(name=name, snapshot=record.id).to_json()
            _write_atomically(self._name_path(name), text)
            if previous is not None:
                old = replace(previous, superseded_at=datetime.now(UTC))
                _write_atomically(self.snapshot(old.id) / "snapshot.json", old.to_json())

    def discard_snapshot(self, snapshot_id: str) -> None:
        if self.find(snapshot_id) is None:
            return
        with self._locked():
            for path in (self._root / "names").glob("*.json"):
                if NameRecord.from_json(path.read_text(encoding="utf-8")).snapshot == snapshot_id:
                    path.unlink()
            self._throw_away(self.snapshot(snapshot_id))

    def discard_sandbox(self, sandbox_id: str) -> None:
        with self._locked():
            self._throw_away(self.sandbox(sandbox_id))

    def abandoned(self) -> list[str]:
        """Ids of the sandboxes that the next `sweep` throws away."""
        living = {record.id for record in self.sandboxes() if record.owner.alive}
        return [
            path.name for path in (self._root / "sandboxes").iterdir() if path.name not in living
        ]

    def sweep(self) -> None:
        """Throw away sandboxes whose owner is dead, replaced snapshots, and environments that nobody refers to."""
        with self._locked():
            living = {record.id: record for record in self.sandboxes() if record.owner.alive}
            self._throw_away_others("sandboxes", set(living))
            oldest = datetime.now(UTC) - SUPERSEDED_KEPT
            kept = {
                record.id: record
                for record in self.snapshots()
                if record.superseded_at is None or record.superseded_at > oldest
            }
            self._throw_away_others("snapshots", set(kept))
            used = {record.environment for record in living.values()}
            used |= {record.environment for record in kept.values()}
            self._throw_away_others("environments", used)

    def _throw_away_others(self, kind: str, kept: "set[str] | set[str | None]") -> None:
        for path in (self._root / kind).iterdir():
            if path.name not in kept:
                self._throw_away(path)

    def _throw_away(self, path: Path) -> None:
        """A rename, so that it is gone at once and whole; the bytes are removed from the trash later."""
        with suppress(FileNotFoundError):
            path.rename(self.trash / secrets.token_hex(8))

    def _name_path(self, name: str) -> Path:
        digest = hashlib.sha256(f"{self._base}\0{name}".encode()).hexdigest()
        return self._root / "names" / f"{digest[:32]}.json"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self._root / "lock").open("a", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _allocated_bytes(directory: Path) -> int:
    total = 0
    for parent, _directories, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):
                total += Path(parent, name).lstat().st_blocks * 512  # Source: stat(2)
    return total


def _write_atomically(path: Path, text: str, *, durable: bool = True) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        if durable:
            os.fsync(file.fileno())
    temporary.replace(path)
    if durable:
        _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
