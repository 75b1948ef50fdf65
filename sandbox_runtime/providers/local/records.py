"""What the local provider writes about its sandboxes and snapshots."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Self

from sandbox_runtime.owner import Owner


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
