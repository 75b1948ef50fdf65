"""Copies of saved workspaces that wait for the next sandbox.

The engine fills a new volume from its image slowly: one of 15,000 files took 11 s. So volumes are filled ahead, as those of a
container that is never started; a new sandbox takes them over, and they go with it as its own would.

Source: Docker Engine API v1.41, ContainerCreate, `VolumesFrom`; moby 20.10, daemon/mounts.go: a volume without a name is
removed with the last container that has it.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sandbox_runtime.lifecycle import Owner
from sandbox_runtime.providers.docker import labels as keys
from sandbox_runtime.providers.docker.client import COPY_TIMEOUT_S, Engine
from sandbox_runtime.providers.docker.containers import SAVED, volumes


class Copies:
    """Holds the copies of one namespace: one for each snapshot, whichever process has made it."""

    def __init__(self, engine: Engine, *, name: str, owner: Owner) -> None:
        """`owner`: of a copy that was taken."""
        self._engine = engine
        self._name = name
        self._labels = keys.saving(name, owner)
        self._making = asyncio.Lock()

    async def make(self, snapshot_id: str, *, image: str) -> None:
        """Makes one of a snapshot, which `image` holds, unless there is one."""
        name = self._waiting(snapshot_id)
        labels = {**self._labels, keys.COPY: snapshot_id}
        config = {
            "Image": image,
            "Cmd": ["sh"],
            "Labels": labels,
            "HostConfig": {"Mounts": volumes(SAVED, labels)},
        }
        async with self._making:
            if await self._engine.find(name) is None:
                await self._engine.create(config, name=name, timeout_s=COPY_TIMEOUT_S)

    @asynccontextmanager
    async def take(self, snapshot_id: str | None) -> AsyncIterator[str | None]:
        """Gives the name of a container whose volumes the caller's own takes over; None = none waits. Nobody else gets it.

        The caller's own is running when this is left: until then the volumes go with the one that is given.
        """
        taken = f"orion-{self._name}-files-{secrets.token_hex(8)}"
        is_there = snapshot_id is not None and await self._engine.rename(
            self._waiting(snapshot_id), taken
        )
        try:
            yield taken if is_there else None
        finally:
            if is_there:
                await self._engine.discard(taken)

    async def discard(self, snapshot_id: str) -> None:
        """Removes the one that waits, if any does."""
        await self._engine.discard(self._waiting(snapshot_id))

    async def list(self) -> dict[str, str]:
        """Returns the snapshot of each container whose copy waits, by the container's id."""
        found = {}
        for container in await self._engine.list(
            [keys.COPY, f"{keys.NAME}={self._labels[keys.NAME]}"]
        ):
            snapshot_id = container.labels[keys.COPY]
            waiting = await self._engine.find(self._waiting(snapshot_id))
            if waiting is not None and waiting.id == container.id:
                found[container.id] = snapshot_id
        return found

    def _waiting(self, snapshot_id: str) -> str:
        return f"orion-{self._name}-copy-{snapshot_id}"
