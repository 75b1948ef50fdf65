"""What is told of sandboxes, and what their commands find in their environment."""

from datetime import UTC, datetime
from typing import TypeGuard

import vercel.sandbox as sdk

from sandbox_runtime.owner import Owner
from sandbox_runtime.providers.vercel import tags as keys
from sandbox_runtime.providers.vercel.machine import HOME
from sandbox_runtime.providers.vercel.snapshots import PROVIDER_NAME
from sandbox_runtime.sandbox_user import user_env
from sandbox_runtime.types import SandboxId, SandboxInfo, SandboxSpec

RUNNING = frozenset({sdk.SandboxStatus.PENDING, sdk.SandboxStatus.RUNNING})


def command_env(spec: SandboxSpec) -> dict[str, str]:
    """Of every command, beside the image's PATH and the names of its CA certificates."""
    scratch = "/tmp" if spec.environment_writable else None  # noqa: S108  # the machine's own
    return {**user_env(HOME, scratch=scratch), **spec.env}


def info_of(record: sdk.Sandbox) -> SandboxInfo:
    """What a record tells."""
    return SandboxInfo(
        id=SandboxId(record.name),
        provider=PROVIDER_NAME,
        running=record.status in RUNNING,
        created_at=datetime.fromtimestamp((record.created_at or 0) / 1000, UTC),
        labels=keys.labels_of(record.tags or {}),
    )


def is_sandbox(record: sdk.Sandbox | None) -> TypeGuard[sdk.Sandbox]:
    """And not what tells of a snapshot."""
    return record is not None and (record.tags or {}).get(keys.MANAGED) == keys.SANDBOX


def is_left(record: sdk.Sandbox) -> bool:
    """Over, or of a process of this machine that lives no more."""
    if record.status not in RUNNING:
        return True
    owner = keys.owner_of(record.tags or {})
    if owner is None:
        return False
    is_here = owner.started.partition("@")[2] == Owner.current().started.partition("@")[2]
    return is_here and not owner.alive
