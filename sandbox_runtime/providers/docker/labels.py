"""What is written on containers, volumes and images, and read back from them."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Self

from sandbox_runtime.lifecycle import Owner
from sandbox_runtime.types import SandboxLimits

MANAGED = "orion.managed"
NAME = "orion.name"
SANDBOX = "orion.sandbox"
SNAPSHOT = "orion.snapshot"
SNAPSHOT_NAME = "orion.snapshot-name"
COPY = "orion.copy"
_CREATED_AT = "orion.created-at"
_OWNER = "orion.owner"
_LABELS = "orion.labels"
_BASE = "orion.base"
_ENVIRONMENT = "orion.environment"
_WRITABLE = "orion.environment-writable"
_CHANGES = "orion.changes"
_SAVED_FROM = "orion.saved-from"
_BROKER = "orion.broker"
_LIMITS = "orion.limits"


def namespace(name: str) -> dict[str, str]:
    """Returns labels of everything that the namespace owns."""
    return {MANAGED: "true", NAME: name}


def saving(name: str, owner: Owner) -> dict[str, str]:
    """Returns labels of a container that lives only while a snapshot is made."""
    return {**namespace(name), SANDBOX: "", _OWNER: json.dumps(asdict(owner))}


def owner_of(found: Mapping[str, str]) -> Owner | None:
    """Returns who made a container; None when nothing that can be read says it."""
    with suppress(KeyError, TypeError, ValueError):
        return Owner(**json.loads(found[_OWNER]))
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLabels:
    """Holds what is written on a container."""

    id: str
    owner: Owner
    created_at: datetime
    labels: Mapping[str, str]
    """The caller's own; also written as they are, for people who filter by them."""
    base: str
    """Id of the base image below all."""
    environment: str
    """Id of the image that holds the environment, without any workspace."""
    environment_writable: bool
    broker: str
    """Path of the broker's socket inside; empty without one."""
    limits: SandboxLimits

    def encode(self, name: str) -> dict[str, str]:
        return {
            **self.labels,
            **namespace(name),
            SANDBOX: self.id,
            _OWNER: json.dumps(asdict(self.owner)),
            _CREATED_AT: self.created_at.isoformat(),
            _LABELS: json.dumps(dict(self.labels)),
            _BASE: self.base,
            _ENVIRONMENT: self.environment,
            _WRITABLE: "true" if self.environment_writable else "",
            _BROKER: self.broker,
            _LIMITS: json.dumps(asdict(self.limits)),
        }

    @classmethod
    def decode(cls, found: Mapping[str, str]) -> Self | None:
        """Returns None when another version wrote them."""
        # A container also inherits its image's labels: only the caller's own are told.
        with suppress(KeyError, TypeError, ValueError):
            return cls(
                id=found[SANDBOX],
                owner=Owner(**json.loads(found[_OWNER])),
                created_at=datetime.fromisoformat(found[_CREATED_AT]),
                labels=json.loads(found[_LABELS]),
                base=found[_BASE],
                environment=found[_ENVIRONMENT],
                environment_writable=bool(found[_WRITABLE]),
                broker=found[_BROKER],
                limits=SandboxLimits(**json.loads(found[_LIMITS])),
            )
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotLabels:
    """Holds what is written on an image, empty where there is nothing: an image inherits its parent's."""

    id: str
    name: str | None
    created_at: datetime
    base: str
    environment: str
    """Id of the image that holds the environment; empty = this one."""
    is_session: bool
    """Saved from a working sandbox, not from one in which an environment was made."""
    changes: int = 0
    """How many layers hold its workspace beside the first one, each only what had changed."""
    saved_from: str = ""
    """Id of the sandbox."""

    def encode(self, name: str) -> dict[str, str]:
        return {
            **namespace(name),
            SANDBOX: "",
            SNAPSHOT: self.id,
            SNAPSHOT_NAME: self.name or "",
            _CREATED_AT: self.created_at.isoformat(),
            _BASE: self.base,
            _ENVIRONMENT: self.environment,
            _WRITABLE: "" if self.is_session else "true",
            _CHANGES: str(self.changes),
            _SAVED_FROM: self.saved_from,
        }

    @classmethod
    def decode(cls, found: Mapping[str, str]) -> Self | None:
        """Returns None when another version wrote them."""
        with suppress(KeyError, TypeError, ValueError):
            return cls(
                id=found[SNAPSHOT],
                name=found[SNAPSHOT_NAME] or None,
                created_at=datetime.fromisoformat(found[_CREATED_AT]),
                base=found[_BASE],
                environment=found[_ENVIRONMENT],
                is_session=not found[_WRITABLE],
                changes=int(found.get(_CHANGES) or 0),
                saved_from=found.get(_SAVED_FROM, ""),
            )
        return None
