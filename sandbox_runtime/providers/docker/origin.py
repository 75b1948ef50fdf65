"""Which image a sandbox starts from."""

import re
from dataclasses import dataclass, replace

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.providers.docker.images import ImageState
from sandbox_runtime.providers.docker.opened import Opened
from sandbox_runtime.types import SandboxSpec, SnapshotId

_PREFIX = "base-"
_BASE_ID = re.compile(rf"{_PREFIX}[0-9a-f]{{12}}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Ids of images."""

    image: str
    environment: str
    """The same, without any workspace."""
    base: str
    workspace: str | None = None
    """Another image to take the workspace from."""


def base_id(image: ImageState) -> SnapshotId:
    """The base image as a snapshot."""
    return SnapshotId(f"{_PREFIX}{image.id.removeprefix('sha256:')[:12]}")


async def find_origin(opened: Opened, spec: SandboxSpec) -> Origin:
    """Raises: SandboxError: NOT_FOUND; CREATE_FAILED when the base image was not made yet."""
    origin = await _find(opened, spec.snapshot_id)
    if spec.workspace_id is None:
        return origin
    saved = await _find(opened, spec.workspace_id)
    if saved.environment == origin.environment:
        return saved  # the usual case: one image holds both
    return replace(origin, image=origin.environment, workspace=saved.image)


async def _find(opened: Opened, wanted: SnapshotId | None) -> Origin:
    if wanted is None:
        base = await opened.base.find()
        if base is None:
            raise SandboxError(
                SandboxErrorCode.CREATE_FAILED,
                f"there is no image {opened.base.reference} yet: ensure_ready() makes it",
            )
        return Origin(image=base.id, environment=base.id, base=base.id)
    if _BASE_ID.fullmatch(wanted):
        base = await opened.base.find(wanted.removeprefix(_PREFIX))
        if base is not None:
            return Origin(image=base.id, environment=base.id, base=base.id)
    elif (found := await opened.snapshots.find(wanted)) is not None:
        image, labels = found
        return Origin(image=image.id, environment=labels.environment or image.id, base=labels.base)
    raise SandboxError(SandboxErrorCode.NOT_FOUND, f"no snapshot {wanted!r}")
