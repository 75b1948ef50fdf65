"""What is told of sandboxes, also of one whose container is gone."""

from datetime import UTC, datetime

from sandbox_runtime.providers.docker.engine import ContainerState
from sandbox_runtime.providers.docker.labels import SandboxLabels
from sandbox_runtime.providers.docker.opened import Opened
from sandbox_runtime.providers.docker.snapshots import PROVIDER_NAME
from sandbox_runtime.types import SandboxId, SandboxInfo


def info_of(labels: SandboxLabels, *, running: bool) -> SandboxInfo:
    """Of a container that is there."""
    return SandboxInfo(
        id=SandboxId(labels.id),
        provider=PROVIDER_NAME,
        running=running,
        created_at=labels.created_at,
        labels=labels.labels,
    )


async def find_info(
    opened: Opened, sandbox_id: SandboxId, state: ContainerState | None, *, name: str
) -> SandboxInfo | None:
    """Of its container, whose name and state are given; None when nothing is known, or it was ended from outside."""
    labels = SandboxLabels.decode(state.labels) if state is not None else None
    if state is not None and labels is not None and state.running:
        return info_of(labels, running=True)
    # The engine removes one that has ended, at once: only its log of events still tells of it.
    code = await opened.engine.exit_code(name)
    if code is None:
        return None
    return SandboxInfo(
        id=sandbox_id,
        provider=PROVIDER_NAME,
        running=False,
        created_at=labels.created_at if labels is not None else datetime.now(UTC),
        labels=labels.labels if labels is not None else {},
        exit_code=code,
    )
