"""One sandbox in a container: commands, files, snapshot, end."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from typing_extensions import override

from sandbox_runtime.command import Command
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.providers.docker.client import Engine
from sandbox_runtime.providers.docker.containers import sandbox_paths
from sandbox_runtime.providers.docker.labels import SandboxLabels
from sandbox_runtime.providers.docker.processes import (
    ContainerProcess,
    Host,
    kill_all,
    start_process,
)
from sandbox_runtime.providers.docker.snapshots import Snapshots
from sandbox_runtime.providers.inside_scripts import RunnerSandbox
from sandbox_runtime.types import SandboxId, SnapshotRef

KILL_ALL_TIMEOUT_S = 5.0


class DockerSandbox(RunnerSandbox):
    """Made by `DockerProvider.create` and `DockerProvider.attach`."""

    def __init__(
        self,
        engine: Engine,
        container_id: str,
        *,
        labels: SandboxLabels,
        name: str,
        env: Mapping[str, str],
        snapshots: Snapshots,
        forget: Callable[[SandboxId], Awaitable[None]],
    ) -> None:
        """`env` is what the container's own environment lacks."""
        super().__init__(
            SandboxId(labels.id), paths=sandbox_paths(labels.broker), env=env, container_name=name
        )
        self._labels = labels
        self._snapshots = snapshots
        self._forget = forget
        self._host = Host(
            engine=engine,
            container_id=container_id,
            limits=labels.limits,
            is_closed=lambda: self._destroyed,
        )

    @override
    async def snapshot(self, *, name: str | None = None) -> SnapshotRef:
        # If it can be written its environment is the snapshot's afterwards, and must not change any more.
        saved = "was saved" if self._labels.environment_writable else None
        async with self._ending, self._saving(saved=saved):
            return await self._snapshots.save(self._host, self._labels, name, quiet=self._kill_all)

    @override
    async def _remove(self) -> None:
        await self._host.engine.remove(self._host.container_id)
        self._removed = True
        await self._forget(self.id)
        await self._give_up_processes()

    @override
    async def _start(self, command: Command) -> ContainerProcess:
        mark = f"{self.id}-{secrets.token_hex(16)}"
        return await start_process(self._host, command, mark=mark)

    @override
    async def _kill_all(self) -> None:
        """Kills also what an earlier process of the service started."""
        with suppress(SandboxError):  # what follows kills it, too
            await super()._kill_all()
        try:
            async with asyncio.timeout(KILL_ALL_TIMEOUT_S):
                await kill_all(self._host)
        except TimeoutError as exc:
            raise SandboxError(
                SandboxErrorCode.UNAVAILABLE,
                f"processes of sandbox {self.id} still live after SIGKILL",
            ) from exc
