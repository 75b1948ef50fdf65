"""Which fields each request may have; the recorded shapes come from the real SDK 0.10.0."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parents[2] / "data" / "vercel" / "requests.json"

QUERY: Mapping[str, Collection[str]] = {
    "get": ("projectId", "resume"),
    "list": ("project", "limit", "cursor", "sortBy", "sortOrder", "namePrefix", "tags"),
    "update": ("projectId",),
    "destroy": ("projectId", "deleteOrphanSnapshots"),
    "sessions": ("project", "name", "limit", "cursor", "sortOrder"),
    "snapshots": ("project", "name", "limit", "cursor", "sortOrder"),
    "run": ("wait", "logs"),
    "command": ("wait",),
}
BODY: Mapping[str, Collection[str]] = {
    "create": (
        "projectId",
        "name",
        "image",
        "source",
        "ports",
        "timeout",
        "resources",
        "persistent",
        "networkPolicy",
        "env",
        "tags",
        "mounts",
        "snapshotExpiration",
        "keepLastSnapshots",
        "region",
        "failoverRegions",
    ),
    "update": (
        "timeout",
        "resources",
        "persistent",
        "networkPolicy",
        "env",
        "tags",
        "ports",
        "region",
    ),
    "stop": (),
    "extend": ("duration",),
    "policy": ("mode", "allow", "subnets"),
    "snapshot": ("expiration",),
    "run": ("command", "args", "cwd", "env", "sudo", "timeout", "attachStdin", "wait", "logs"),
    "start": ("command", "args", "cwd", "env", "sudo", "timeout", "attachStdin"),
    "kill": ("signal",),
    "stdin": ("data", "offset", "close"),
    "read": ("path", "cwd"),
    "mkdir": ("path", "cwd", "recursive"),
}
_TEAM = frozenset({"teamId"})


def unknown_fields(
    endpoint: str, query: Collection[str], body: Mapping[str, Any] | None
) -> set[str]:
    """What the service would not know."""
    unknown = set(query) - _TEAM - set(QUERY.get(endpoint, ()))
    return unknown | (set(body or ()) - set(BODY.get(endpoint, ())))


def shape_of(value: object) -> object:
    """Kinds of JSON in the place of values; of a map with free keys one entry."""
    if isinstance(value, dict):
        return {key: shape_of(item) for key, item in sorted(value.items())}
    if isinstance(value, list):
        return [shape_of(value[0])] if value else []
    return {bool: "boolean", int: "number", float: "number", str: "string"}.get(type(value), "null")


def recorded() -> dict[str, list[object]]:
    """Endpoint -> the shapes that the real SDK has sent."""
    found: dict[str, list[object]] = json.loads(RECORDED.read_text("utf-8"))
    return found
