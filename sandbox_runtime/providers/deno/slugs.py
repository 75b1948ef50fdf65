"""What the slugs of volumes and snapshots say: Deno keeps nothing else of ours with them. Pure.

A slug has at most 32 characters of a-z, 0-9 and `-`, and volumes and snapshots share one namespace (seen on the platform,
2026; longer ones are taken for ids). Ours: kind, namespace, id, name, depth, and the id of the environment below.
"""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Self

from typing_extensions import override

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_ID_DIGITS, _NAMESPACE_DIGITS, _NAME_DIGITS = 8, 5, 6
NO_ID = "0" * _ID_DIGITS
_NO_NAME = "0" * _NAME_DIGITS
MAX_SLUG = 32
_MAX_SAVES = 8


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
    """Of one volume or snapshot."""

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
        """None when it is none of ours."""
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
        """Of the snapshots that are made from this volume: those that follow its own, so that they tell where they are from."""
        ids = [self.id]
        while len(ids) <= _MAX_SAVES:
            ids.append(new_id(after=ids[-1]))
        return tuple(ids[1:])

    @property
    def is_named(self) -> bool:
        return self.name != _NO_NAME


def new_id(*, after: str | None = None) -> str:
    """Of something made now, or just after another id."""
    number = int(datetime.now(UTC).timestamp() * 1000) if after is None else int(after, 36) + 1
    return _base36(number, _ID_DIGITS)


def namespace_digest(name: str) -> str:
    """Of a service's name."""
    return _digest(name, _NAMESPACE_DIGITS)


def name_digest(name: str | None) -> str:
    """Of a snapshot's name: 31 bits, and never that of another name's lack."""
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
