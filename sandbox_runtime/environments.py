"""Named environments: found when they exist, prepared once when they do not."""

import asyncio
from collections.abc import Callable
from weakref import WeakKeyDictionary

from sandbox_runtime.agent import Agent
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.provider import ProgressListener, SandboxProvider, ignore_progress
from sandbox_runtime.types import SnapshotRef

_preparing: WeakKeyDictionary[SandboxProvider, dict[str, asyncio.Lock]] = WeakKeyDictionary()
"""One lock per provider and name, so that concurrent callers share one preparation."""


async def ensure_environment(
    provider: SandboxProvider,
    *,
    name: str,
    fill: Callable[[Agent], object],
    progress: ProgressListener | None = None,
) -> SnapshotRef:
    """The environment of that name; if there is none, made from the provider's base by the changes that `fill` queues.

    Without changes it is the base itself.

    The name must change when the changes do: an existing one is taken as it is. Callers in one process wait for one
    preparation; after a failed one the next caller tries again. Steps of the base have `base: ` before them.

    Raises:
        SandboxError: SETUP_FAILED, and what `Agent.prepare` raises.
    """
    tell = progress or ignore_progress
    tell("checking")
    lock = _preparing.setdefault(provider, {}).setdefault(name, asyncio.Lock())
    async with lock:
        found = await provider.find_snapshot(name)
        if found is not None:
            tell("exists")
            return found
        base = await provider.ensure_ready(lambda step: tell(f"base: {step}"))
        agent = await Agent.create(name, provider=provider, snapshot_id=base.id)
        fill(agent)
        if not agent.dirty:
            return base
        await agent.prepare(name=name, progress=progress)
        made = await provider.find_snapshot(name)
    if made is None:
        raise SandboxError(
            SandboxErrorCode.SETUP_FAILED, f"environment {name!r} vanished after it was made"
        )
    return made
