"""What is written on a sandbox's record as name and tags, and read back.

A record has five tags at most, without a limit on their values that is published; they are kept short and plain all the
same. Source: Vercel documentation, "Tags", read 2026-11.
"""

import hashlib
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self
from urllib.parse import quote, unquote

from sandbox_runtime.lifecycle import Owner

MANAGED, OWNER, RUN = "orion.managed", "orion.owner", "orion.run"
SANDBOX, SNAPSHOT = "true", "snapshot"
"""Values of `orion.managed`."""
NAME, STATE, ENVIRONMENT = "orion.name", "orion.snapshot", "orion.environment"
MAX_TAGS = 5
MAX_VALUE_CHARS = 256
_FIRST = ("orion.run", "orion.session", "orion.agent", "orion.repo")
_DIGEST_CHARS = 16


def sandbox_name(namespace: str, labels: Mapping[str, str], number: int) -> str:
    """Returns a name, the same for the same run and number of its sandbox, so that one made without our knowing is found."""
    run = labels.get(RUN)
    if run is None:
        return f"orion-{namespace}-{secrets.token_hex(8)}"
    digest = hashlib.sha256(f"{namespace}/{run}/{number}".encode()).hexdigest()
    return f"orion-{namespace}-{digest[:_DIGEST_CHARS]}"


def encode(text: str) -> str:
    """Returns a text as a tag's value: reversible as long as it is not too long; then it still tells texts apart."""
    value = quote(text, safe="-._~/")
    if len(value) <= MAX_VALUE_CHARS:
        return value
    digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARS]
    return f"{value[: MAX_VALUE_CHARS - _DIGEST_CHARS - 1]}~{digest}"


def decode(value: str) -> str:
    """Returns what `encode` was given, if it was not too long."""
    return unquote(value)


def sandbox_tags(owner: Owner, labels: Mapping[str, str]) -> dict[str, str]:
    """Returns who made it, and of the labels as many as there is room for, the most telling ones first."""
    rest = sorted(
        labels.keys() - {MANAGED, OWNER},
        key=lambda key: (_FIRST.index(key) if key in _FIRST else len(_FIRST), key),
    )
    tags = {MANAGED: SANDBOX, OWNER: f"{owner.pid}.{owner.started}"}
    return tags | {key: encode(labels[key]) for key in rest[: MAX_TAGS - len(tags)]}


def labels_of(tags: Mapping[str, str]) -> dict[str, str]:
    """Returns the caller's labels."""
    return {key: decode(value) for key, value in tags.items() if key != OWNER}


def owner_of(tags: Mapping[str, str]) -> Owner | None:
    """Returns who made it."""
    pid, _, started = tags.get(OWNER, "").partition(".")
    return Owner(pid=int(pid), started=started) if pid.isdigit() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotTags:
    """The tags on the record of a sandbox that was saved: it stays, stopped, and tells of the snapshot."""

    vercel_id: str
    """Of the snapshot at Vercel."""
    name: str | None
    size_bytes: int
    created_at: datetime
    environment: str
    """Snapshot id of the environment below it; empty = it is one."""

    def encode(self) -> dict[str, str]:
        created_ms = round(self.created_at.timestamp() * 1000)
        return {
            MANAGED: SNAPSHOT,
            STATE: f"{self.vercel_id}.{self.size_bytes}.{created_ms}",
            NAME: encode(self.name or ""),
            ENVIRONMENT: encode(self.environment),
        }

    @classmethod
    def decode(cls, tags: Mapping[str, str]) -> Self | None:
        """Reads them back; None when it is no snapshot, or another version wrote them."""
        if tags.get(MANAGED) != SNAPSHOT:
            return None
        with suppress(KeyError, ValueError):
            vercel_id, size_bytes, created_ms = tags[STATE].rsplit(".", 2)
            return cls(
                vercel_id=vercel_id,
                name=decode(tags[NAME]) or None,
                size_bytes=int(size_bytes),
                created_at=datetime.fromtimestamp(int(created_ms) / 1000, UTC),
                environment=decode(tags[ENVIRONMENT]),
            )
        return None
