"""What a session has at providers, today's and those that its thread had before."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from app.runs.session import Session
from sandbox_runtime.provider import SandboxProvider
from sandbox_runtime.types import SandboxId, SnapshotId

OpenProvider = Callable[[str], AbstractAsyncContextManager[SandboxProvider]]
"""A provider by its name, for the length of a block."""


async def remove_held(session: Session, open_provider: OpenProvider) -> None:
    """Remove its sandbox and all that is saved of it, wherever that is. Safe to repeat.

    Raises:
        SandboxError: a provider cannot be used now; what it has is still there.
    """
    if session.sandbox_id:
        async with open_provider(session.provider) as provider:
            await provider.remove(SandboxId(session.sandbox_id))
    for name, slug in session.snapshots.items():
        async with open_provider(name) as provider:
            await provider.delete_snapshot(SnapshotId(slug))
