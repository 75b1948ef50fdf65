"""What is written on sandboxes as labels, and on volumes and snapshots as slugs, and read back. Pure.

Deno keeps nothing else of ours with them. A slug has at most 32 characters of a-z, 0-9 and `-`, and volumes and snapshots
share one namespace (seen on the platform, 2026; longer ones are taken for ids). Ours: kind, namespace, id, name, depth, and
the id of the environment below.
"""

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Self

from typing_extensions import override

from sandbox_runtime.lifecycle import Owner

MANAGED = "orion.managed"
"""The label that is ours: namespace, maker, volume, environment, and whether the caller had a label of that name."""
MAX_LABELS, MAX_KEY_BYTES, MAX_VALUE_BYTES = 5, 64, 128
"""Source: Deno documentation, "Create a Deno Sandbox", labels, read 2026-11."""
_TRUE = "true"
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_ID_DIGITS, _NAMESPACE_DIGITS, _NAME_DIGITS = 8, 5, 6
NO_ID = "0" * _ID_DIGITS
_NO_NAME = "0" * _NAME_DIGITS
_MAX_SAVES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLabels:
    """The labels of one sandbox. Raises: ValueError: the caller's are too many, too long, or not in lower case."""

    namespace: str
    owner: Owner
    volume: str
    """Id of the volume that it has for itself."""
    environment: str
    """Id of the environment's snapshot."""
    base: str
    """Id of the base below it."""
    environment_writable: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    """The caller's own."""

    def __post_init__(self) -> None:
        others = set(self.labels) - {MANAGED}
        if len(others) >= MAX_LABELS:
            raise ValueError(
                f"a Deno sandbox has at most {MAX_LABELS - 1} labels beside {MANAGED}, not {len(others)}"
            )
        for key, value in self.labels.items():
            if key != key.lower() or not 0 < len(key.encode()) <= MAX_KEY_BYTES:
                # The SDK returns keys with another case (deno-sandbox 0.16.0, convert_to_snake_case).
                raise ValueError(f"not a label of a Deno sandbox: {key!r}")
            if len(value.encode()) > MAX_VALUE_BYTES:
                raise ValueError(f"label {key} is longer than {MAX_VALUE_BYTES} bytes")
        if self.labels.get(MANAGED, _TRUE) != _TRUE:
            raise ValueError(f"label {MANAGED} is the provider's own")

    def encode(self) -> dict[str, str]:
        mode = "w" if self.environment_writable else "r"
        mode += "m" if MANAGED in self.labels else "-"
        ticks, _, boot = self.owner.started.partition("@")
        fields = (
            self.volume,
            self.environment,
            self.base,
            mode,
            str(self.owner.pid),
            ticks,
            boot,
            self.namespace,
        )
        return {**self.labels, MANAGED: " ".join(fields)}

    @classmethod
    def decode(cls, found: Mapping[str, str]) -> Self | None:
        """Reads it back; None when it is none of ours."""
        with suppress(KeyError, ValueError):
            volume, environment, base, mode, pid, ticks, boot, namespace = found[MANAGED].split(" ")
            own = {MANAGED: _TRUE} if mode[1] == "m" else {}
            return cls(
                namespace=namespace,
                owner=Owner(pid=int(pid), started=f"{ticks}@{boot}" if boot else ticks),
                volume=volume,
                environment=environment,
                base=base,
                environment_writable=mode[0] == "w",
                labels={**{k: v for k, v in found.items() if k != MANAGED}, **own},
            )
        return None


class Kind(StrEnum):
    BASE = "b"
    """Snapshot of the system with our tools."""
    ENVIRONMENT = "e"
    """Snapshot of a root volume."""
    SESSION = "s"
    """Snapshot of a session volume."""
    SESSION_VOLUME = "v"
    ROOT_VOLUME = "r"
    COPY_VOLUME = "c"
    """Made from a session's snapshot to be copied from."""


SNAPSHOTS = frozenset({Kind.BASE, Kind.ENVIRONMENT, Kind.SESSION})
VOLUMES = frozenset({Kind.SESSION_VOLUME, Kind.ROOT_VOLUME, Kind.COPY_VOLUME})


@dataclass(frozen=True, slots=True, kw_only=True)
class Slug:
    """Holds what the slug of a volume or snapshot says."""

    kind: Kind
    namespace: str
    """`digest` of the service's name, 5 characters."""
    id: str
    """Milliseconds since 1970 in base 36: when it was made; unique in its namespace by that."""
    name: str = _NO_NAME
    """`name_digest`; zeros without a name."""
    depth: int = 0
    """How many snapshots its workspace stands on, 0 to 35: each refers to the one before."""
    parent: str = NO_ID
    """Id of the environment, or base, that it stands on."""

    @override
    def __str__(self) -> str:
        depth = _DIGITS[self.depth]
        return f"{self.kind}{self.namespace}-{self.id}-{self.name}{depth}-{self.parent}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Reads it back; None when it is none of ours."""
        parts = text.split("-")
        widths = [1 + _NAMESPACE_DIGITS, _ID_DIGITS, _NAME_DIGITS + 1, _ID_DIGITS]
        if [len(part) for part in parts] != widths or not set("".join(parts)) <= set(_DIGITS):
            return None
        head, own_id, name, parent = parts
        if head[0] not in set(Kind):
            return None
        return cls(
            kind=Kind(head[0]),
            namespace=head[1:],
            id=own_id,
            name=name[:-1],
            depth=_DIGITS.index(name[-1]),
            parent=parent,
        )

    @property
    def created_at(self) -> datetime:
        return datetime.fromtimestamp(int(self.id, 36) / 1000, UTC)

    def saved_ids(self) -> tuple[str, ...]:
        """Returns the ids of snapshots made from this volume: those that follow its own, so that they tell where they are from."""
        ids = [self.id]
        while len(ids) <= _MAX_SAVES:
            ids.append(new_id(after=ids[-1]))
        return tuple(ids[1:])

    @property
    def is_named(self) -> bool:
        return self.name != _NO_NAME


def new_id(*, after: str | None = None) -> str:
    """Returns the id of something made now, or just after another id."""
    number = int(datetime.now(UTC).timestamp() * 1000) if after is None else int(after, 36) + 1
    return _base36(number, _ID_DIGITS)


def namespace_digest(name: str) -> str:
    """Returns the five characters that stand for a service's name."""
    return _digest(name, _NAMESPACE_DIGITS)


def name_digest(name: str | None) -> str:
    """Returns the six characters that stand for a snapshot's name, 31 bits of it; zeros for None alone."""
    if name is None:
        return _NO_NAME
    return _digest(name, _NAME_DIGITS).replace(_NO_NAME, "z" * _NAME_DIGITS)


def _digest(text: str, digits: int) -> str:
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:16])
    return _base36(number % len(_DIGITS) ** digits, digits)


def _base36(number: int, digits: int) -> str:
    text = ""
    while number:
        number, digit = divmod(number, len(_DIGITS))
        text = _DIGITS[digit] + text
    return text.rjust(digits, "0")
