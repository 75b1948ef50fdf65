"""What earlier processes left on the platform."""

import logging
from collections.abc import Collection, Sequence

from sandbox_runtime.providers.deno.console import Console
from sandbox_runtime.providers.deno.disks import Disks
from sandbox_runtime.providers.deno.forms import ListedSandbox
from sandbox_runtime.providers.deno.labels import SandboxLabels

_log = logging.getLogger(__name__)

Found = tuple[ListedSandbox, SandboxLabels]


async def list_ours(console: Console, name: str) -> Sequence[Found]:
    """Those of a namespace that run."""
    decoded = (
        (sandbox, SandboxLabels.decode(sandbox.labels))
        for sandbox in await console.list_sandboxes()
        if sandbox.running
    )
    return [
        (sandbox, labels)
        for sandbox, labels in decoded
        if labels is not None and labels.namespace == name
    ]


async def sweep(
    console: Console, disks: Disks, name: str, *, keep: Collection[str], used: Collection[str]
) -> int:
    """End sandboxes whose maker is dead, but those of `keep`, and remove volumes and snapshots of no use; how many.

    `used`: ids of volumes that this process needs.
    """
    swept = 0
    living = set(used)
    for sandbox, labels in await list_ours(console, name):
        if sandbox.id in keep or labels.owner.alive:
            living.add(labels.volume)
        else:
            await console.end_sandbox(sandbox.id)
            volume = await disks.find_volume(labels.volume)
            if volume is not None:
                await disks.discard_volume(volume)
            swept += 1
    await disks.collect(living)
    if swept:
        _log.info("sandboxes swept", extra={"action": "sandbox.swept", "count": swept})
    return swept
