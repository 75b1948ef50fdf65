"""Saved environments and workspaces, as directories."""

import json
import secrets
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from sandbox_runtime.types import SnapshotId, SnapshotRef

_SAVED = ("work", "home")


class Snapshots:
    """In one directory: `environments/ID`, and `snapshots/ID` with the workspace and what is known of it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def environment(self, environment_id: str) -> Path:
        return self._directory / "environments" / environment_id

    def find(self, snapshot_id: str) -> tuple[Path, str] | None:
        """Returns the workspace of a snapshot and the id of its environment."""
        path = self._directory / "snapshots" / snapshot_id
        if not snapshot_id.isalnum() or not (path / "snapshot.json").is_file():
            return None
        return path, json.loads((path / "snapshot.json").read_text())["environment"]

    def save(self, directory: Path, environment_id: str, *, name: str | None) -> SnapshotRef:
        """Saves a sandbox in which nothing runs; whole, because what says so is written last."""
        made = SnapshotId(secrets.token_hex(8))
        path = self._directory / "snapshots" / made
        for kept in _SAVED:
            copy(directory / kept, path / kept)
        created = datetime.now(UTC)
        for other in self._all() if name is not None else ():
            if other.name == name:
                remove(self._directory / "snapshots" / other.id)
        told = {"name": name, "created_at": created.isoformat(), "environment": environment_id}
        (path / "snapshot.json").write_text(json.dumps(told))
        return SnapshotRef(id=made, provider="NAME", name=name, created_at=created)

    async def find_named(self, name: str) -> SnapshotRef | None:
        return next((ref for ref in self._all() if ref.name == name), None)

    async def list(self) -> Sequence[SnapshotRef]:
        refs = sorted(self._all(), key=lambda ref: ref.created_at)
        return [replace(ref, size_bytes=self._size(ref.id)) for ref in refs]

    async def delete(self, snapshot_id: str) -> None:
        if (found := self.find(snapshot_id)) is not None:
            remove(found[0])

    def _all(self) -> Sequence[SnapshotRef]:
        refs = []
        for path in (self._directory / "snapshots").glob("*/snapshot.json"):
            told = json.loads(path.read_text())
            created = datetime.fromisoformat(told["created_at"])
            made = SnapshotId(path.parent.name)
            refs.append(
                SnapshotRef(id=made, provider="NAME", name=told["name"], created_at=created)
            )
        return refs

    def _size(self, snapshot_id: str) -> int:
        found = self.find(snapshot_id)
        files = self.environment(found[1]).rglob("*") if found is not None else ()
        return sum(file.lstat().st_size for file in files if file.is_file())


def copy(source: Path, target: Path) -> None:
    """Copies a tree, whatever lies in it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(("/bin/cp", "-aT", "--", source, target), check=True)


def remove(directory: Path) -> None:
    """Removes a tree; one that is gone is fine."""
    shutil.rmtree(directory, ignore_errors=True)
