"""What a sandbox starts from."""

from dataclasses import dataclass

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.providers.vercel.snapshots import BASE, Snapshots
from sandbox_runtime.providers.vercel.tags import SnapshotTags
from sandbox_runtime.types import SandboxSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A disk, and a workspace that has to be moved onto it."""

    source: SnapshotTags | None
    """None = the image."""
    environment: str
    """Id of the snapshot that holds the environment, or of the base."""
    workspace: SnapshotTags | None


async def find_origin(snapshots: Snapshots, spec: SandboxSpec) -> Origin:
    """Raises: SandboxError: NOT_FOUND for an unknown snapshot."""
    source, environment = None, BASE
    if spec.snapshot_id is not None and spec.snapshot_id != BASE:
        source = await _require(snapshots, spec.snapshot_id)
        environment = source.environment or spec.snapshot_id
    if spec.workspace_id is None or spec.workspace_id == spec.snapshot_id:
        return Origin(source=source, environment=environment, workspace=None)
    workspace = await _require(snapshots, spec.workspace_id)
    if workspace.environment == environment:
        # Its disk holds both: the usual case, and nothing has to be moved.
        return Origin(source=workspace, environment=environment, workspace=None)
    return Origin(source=source, environment=environment, workspace=workspace)


async def _require(snapshots: Snapshots, snapshot_id: str) -> SnapshotTags:
    found = await snapshots.find(snapshot_id)
    if found is None:
        raise SandboxError(SandboxErrorCode.NOT_FOUND, f"no snapshot {snapshot_id!r}")
    return found
