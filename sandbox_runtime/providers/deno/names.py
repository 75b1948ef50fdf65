"""What slugs have no room for: the full names of snapshots, and which of them shall go as soon as they can."""

import json
from pathlib import Path

from sandbox_runtime.providers.deno.slugs import name_digest


class Names:
    """A file of lines that are only ever added to, shared by all processes of a service; or memory.

    Only for people who look, and for what could not be deleted at once: without it every snapshot is still found by its
    name, and one that should have gone shows until it is replaced or deleted again.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._names: dict[str, str] = {}
        self._deleted: set[str] = set()
        self._read_bytes = 0

    def name_of(self, digest: str) -> str | None:
        """None for what another host named."""
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
        """Take in what was added since, maybe by another process; a line that is still being written waits."""
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
