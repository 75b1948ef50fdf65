"""What the local provider writes about its sandboxes and snapshots, and who owns them."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A process, told apart from a later one that got the same pid."""

    pid: int
    started: str
    """Start time in clock ticks since boot, and the id of that boot."""

    @classmethod
    def current(cls) -> Self:
        pid = os.getpid()
        return cls(pid=pid, started=_start_of(pid))

    @property
    def alive(self) -> bool:
        try:
            return _start_of(self.pid) == self.started
        except (FileNotFoundError, ProcessLookupError):
            return False


def _start_of(pid: int) -> str:
    """Source: proc(5), /proc/pid/stat, field 22; the command name may hold spaces and parentheses."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    ticks = stat.rpartition(")")[2].split()[19]
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{ticks}@{boot}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxRecord:
    """`sandbox.json` in a sandbox's directory; one without it was never finished."""

    id: str
    owner: Owner
    created_at: datetime
    labels: Mapping[str, str]
    environment: str | None
    """Id of the environment it uses, which must not be removed meanwhile."""
    host_uid: int | None

    def to_json(self) -> str:
        return json.dumps(asdict(self) | {"created_at": self.created_at.isoformat()})

    @classmethod
    def from_json(cls, text: str) -> Self:
        data = json.loads(text)
        data["owner"] = Owner(**data["owner"])
        data["created_at"] = datetime.fromisoformat(data["created_at"])
        return cls(**data)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRecord:
    """`snapshot.json` in a snapshot's directory."""

    id: str
    created_at: datetime
    environment: str | None
    superseded_at: datetime | None = None
    """When another snapshot took its name: not listed any more, and removed after a while."""

    def to_json(self) -> str:
        superseded_at = self.superseded_at and self.superseded_at.isoformat()
        times = {"created_at": self.created_at.isoformat(), "superseded_at": superseded_at}
        return json.dumps(asdict(self) | times)

    @classmethod
    def from_json(cls, text: str) -> Self:
        data = json.loads(text)
        for key in ("created_at", "superseded_at"):
            data[key] = data[key] and datetime.fromisoformat(data[key])
        return cls(**data)


@dataclass(frozen=True, slots=True, kw_only=True)
class NameRecord:
    """`names/<digest>.json`: which snapshot a name means."""

    name: str
    snapshot: str

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**json.loads(text))
