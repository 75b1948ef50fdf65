"""What the control plane says, parsed. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx

from sandbox_runtime.providers.deno.errors import UnexpectedAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedSandbox:
    """As the control plane lists it."""

    id: str
    running: bool
    created_at: datetime
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDisk:
    """A volume or a snapshot."""

    slug: str
    region: str
    base: str | None
    """Slug of the snapshot that it was made from."""
    allocated_bytes: int | None
    """What it takes beside what it was made from; an estimate."""


def parse_cursor(found: str | None) -> str | None:
    """The SDK takes the whole link for the cursor (0.16.0, console.py); the platform wants what is in its query."""
    if found is None or "cursor=" not in found:
        return found
    cursor: str | None = httpx.URL(found).params.get("cursor")
    return cursor


def parse_sandbox(item: dict[str, Any]) -> ListedSandbox:
    """Raises: UnexpectedAnswer."""
    try:
        return ListedSandbox(
            id=item["id"],
            running=item["status"] == "running",
            created_at=_time(item["created_at"]),
            labels=item.get("labels") or {},
        )
    except (KeyError, TypeError, ValueError) as exc:
        raise _odd(item) from exc


def parse_disk(item: Mapping[str, Any], *, allocated: str) -> StoredDisk:
    """`allocated` names the field of its own size. Raises: UnexpectedAnswer."""
    try:
        base = item.get("base_snapshot") or {}
        return StoredDisk(
            slug=item["slug"],
            region=item["region"],
            base=base.get("slug"),
            allocated_bytes=item.get(allocated),
        )
    except (KeyError, TypeError, AttributeError) as exc:
        raise _odd(item) from exc


def _time(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _odd(item: object) -> UnexpectedAnswer:
    return UnexpectedAnswer(str(item)[:200])
