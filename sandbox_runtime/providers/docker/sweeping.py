"""What earlier processes left on the engine."""

import logging
from collections.abc import Collection, Sequence

from sandbox_runtime.providers.docker import labels as keys
from sandbox_runtime.providers.docker.opened import Opened

_log = logging.getLogger(__name__)


async def sweep(opened: Opened, mine: Sequence[str], *, keep: Collection[str]) -> int:
    """Remove containers with the labels `mine` whose maker is dead, and volumes and images of no use; how many."""
    swept = 0
    for state in await opened.engine.list(mine):
        if state.labels.get(keys.SANDBOX) in keep:
            continue
        owner = keys.owner_of(state.labels)
        if owner is None or not owner.alive:
            await opened.engine.remove(state.id)
            swept += 1
    await opened.engine.remove_volumes(mine)
    await opened.snapshots.collect()
    if swept:
        _log.info("sandboxes swept", extra={"action": "sandbox.swept", "count": swept})
    return swept
