"""Named environments: found when they exist, prepared once when they do not."""

import asyncio
from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

from sandbox_runtime.agent import Agent
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.provider import ProgressListener, SandboxProvider
from sandbox_runtime.types import SnapshotRef

_preparing: WeakKeyDictionary[SandboxProvider, dict[str, asyncio.Lock]] = WeakKeyDictionary()
"""One lock per provider and name, so that concurrent callers share one preparation."""


async def ensure_environment(
    provider: SandboxProvider,
    *,
    name: str,
    files: Mapping[str, bytes],
    commands: Sequence[Sequence[str]],
    retries: int = 0,
    progress: ProgressListener | None = None,
) -> SnapshotRef:
    """The environment of that name; if there is none, made from the provider's base by `files`, then `commands`.

    Without files and commands it is the base itself.

    The name must change when files or commands do: an existing one is taken as it is. `agent.SYMBOLIC_PATHS` may stand
    in paths and arguments. Callers in one process wait for one preparation; after a failed one the next caller tries again.

    Raises:
        SandboxError: SETUP_FAILED, and what `Agent.prepare` raises.
    """
    tell = progress or _ignore
    tell("checking")
    lock = _preparing.setdefault(provider, {}).setdefault(name, asyncio.Lock())
    async with lock:
        found = await provider.find_snapshot(name)
        if found is not None:
            tell("exists")
            return found
        agent = await Agent.create(name, provider=provider)
        agent.add_files(files).run_commands(commands, retries=retries)
        if not agent.dirty:
            return await provider.ensure_ready(progress)
        await agent.prepare(name=name, progress=progress)
        made = await provider.find_snapshot(name)
    if made is None:
        raise SandboxError(
            SandboxErrorCode.SETUP_FAILED, f"environment {name!r} vanished after it was made"
        )
    return made


def _ignore(_step: str) -> None:
    pass
