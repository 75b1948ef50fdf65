"""Requests of the right form only: an unknown field is an error, as is one of another type."""

import base64
import binascii
import json
import time
from collections.abc import Mapping
from typing import Any

from tests.emulators.deno.resources import MAX_LIFETIME_S, REGIONS, Refused

MIN_MEMORY, MAX_MEMORY = 768, 4096
MAX_LABELS, MAX_KEY, MAX_VALUE = 5, 64, 128

_CREATE: dict[str, type | tuple[type, ...]] = {
    "memory_mb": int,
    "stop_at_ms": int,
    "timeout": str,
    "region": str,
    "labels": dict,
    "root": dict,
    "volumes": (list, dict),
    "allow_net": list,
    "secrets": dict,
    "env": dict,
    "debug": bool,
}
RPC: dict[str, dict[str, type | tuple[type, ...]]] = {
    "spawn": {
        "command": str,
        "args": list,
        "env": dict,
        "clearEnv": bool,
        "cwd": str,
        "stdinStreamId": int,
        "stdin": str,
        "stdout": str,
        "stderr": str,
    },
    "processWait": {"pid": int},
    "processKill": {"pid": int, "signal": str},
    "envGet": {"key": str},
    "envToObject": {},
}
_REQUIRED = {
    "spawn": ("command", "stdout", "stderr"),
    "processWait": ("pid",),
    "processKill": ("pid",),
    "envGet": ("key",),
}


def fields(
    found: Any, known: Mapping[str, type | tuple[type, ...]], *required: str
) -> dict[str, Any]:
    """Raises: Refused."""
    if not isinstance(found, dict):
        raise Refused(400, "BAD_REQUEST", "not an object")
    for name, value in found.items():
        if name not in known:
            raise Refused(400, "BAD_REQUEST", f"unknown field {name}")
        if value is not None and not isinstance(value, known[name]):
            raise Refused(400, "BAD_REQUEST", f"{name} has another type")
    for name in required:
        if found.get(name) is None:
            raise Refused(400, "BAD_REQUEST", f"{name} is missing")
    return {name: value for name, value in found.items() if value is not None}


def rpc_params(method: str, found: Any) -> dict[str, Any]:
    """Raises: Refused."""
    return fields(found or {}, RPC[method], *_REQUIRED.get(method, ()))


def config(header: str, *, region: str) -> tuple[dict[str, Any], str]:
    """Of a new sandbox, both as the Python SDK and as the JavaScript one send it; and its region.

    Raises:
        Refused: 400.
    """
    try:
        found = json.loads(base64.b64decode(header, validate=True))
    except (binascii.Error, ValueError) as exc:
        raise Refused(400, "BAD_REQUEST", "x-deno-sandbox-config cannot be read") from exc
    found = fields(found, _CREATE)
    region = found.get("region", region)
    if region not in REGIONS:
        raise Refused(400, "BAD_REQUEST", f"unknown region {region}")
    if not MIN_MEMORY <= found.get("memory_mb", 1280) <= MAX_MEMORY:
        raise Refused(400, "BAD_REQUEST", f"memory_mb is not within {MIN_MEMORY} and {MAX_MEMORY}")
    labels = found.get("labels", {})
    if len(labels) > MAX_LABELS or any(
        len(k.encode()) > MAX_KEY or len(str(v).encode()) > MAX_VALUE for k, v in labels.items()
    ):
        raise Refused(400, "BAD_REQUEST", "labels: at most 5, of 64 and 128 bytes")
    for name, secret in found.get("secrets", {}).items():
        fields(secret, {"hosts": list, "value": str}, "hosts", "value")
        if not secret["hosts"]:
            raise Refused(400, "BAD_REQUEST", f"secret {name} has no host")
    volumes = found.get("volumes", {})
    if isinstance(volumes, list):
        for volume in volumes:
            fields(volume, {"volume": str, "path": str}, "volume", "path")
        volumes = {volume["path"]: volume["volume"] for volume in volumes}
    root = fields(found.get("root", {}), {"volume": str})
    checked = {
        "labels": labels,
        "volumes": volumes,
        "root": root.get("volume", ""),
        "allow_net": found.get("allow_net"),
        "secrets": found.get("secrets", {}),
        "env": found.get("env", {}),
        "memory_mb": found.get("memory_mb", 1280),
        "stop_at_ms": found.get("stop_at_ms") or _stop_at(found.get("timeout")),
    }
    return checked, region


def _stop_at(timeout: str | None) -> int:
    units = {"s": 1, "m": 60}
    if timeout is None or timeout == "session":
        return int((time.time() + MAX_LIFETIME_S) * 1000)
    if timeout[-1:] not in units or not timeout[:-1].isdigit():
        raise Refused(400, "BAD_REQUEST", f"not a timeout: {timeout}")
    return int((time.time() + int(timeout[:-1]) * units[timeout[-1]]) * 1000)
