"""One sandbox in a container: commands, files, snapshot, end."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from typing_extensions import override

from sandbox_runtime.command_sandbox import Command, CommandSandbox
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.finishing import finish
from sandbox_runtime.provider import Terminal
from sandbox_runtime.providers.docker.containers import sandbox_paths
from sandbox_runtime.providers.docker.engine import FINISH_TIMEOUT_S, Engine
from sandbox_runtime.providers.docker.labels import SandboxLabels
from sandbox_runtime.providers.docker.processes import (
    ContainerProcess,
    Host,
    kill_all,
    start_process,
)
from sandbox_runtime.providers.docker.snapshots import Quiet
from sandbox_runtime.providers.docker.terminal import open_terminal
from sandbox_runtime.types import SandboxId, SandboxPaths, SnapshotRef, TerminalSize

KILL_ALL_TIMEOUT_S = 5.0


class Save(Protocol):
    """`Snapshots.save`."""

    async def __call__(
        self, host: Host, source: SandboxLabels, name: str | None, *, quiet: Quiet
    ) -> SnapshotRef: ...


class DockerSandbox(CommandSandbox):
    """Made by `DockerProvider.create` and `DockerProvider.attach`."""

    def __init__(
        self,
        engine: Engine,
        container_id: str,
        *,
        labels: SandboxLabels,
        name: str,
        env: Mapping[str, str],
        save: Save,
        forget: Callable[[SandboxId], Awaitable[None]],
    ) -> None:
        """`env` is what the container's own environment lacks."""
        super().__init__(env)
        self._labels = labels
        self._container_id = container_id
        self._name = name
        self._engine = engine
        self._save = save
        self._forget = forget
        self._paths = sandbox_paths(labels.broker)
        self._host = Host(
            engine=engine,
            container_id=container_id,
            limits=labels.limits,
            is_closed=lambda: self._destroyed,
        )

    @property
    @override
    def id(self) -> SandboxId:
        return SandboxId(self._labels.id)

    @property
    @override
    def container_name(self) -> str:
        return self._name

    @property
    @override
    def paths(self) -> SandboxPaths:
        return self._paths

    @override
    async def open_terminal(
        self, argv: Sequence[str], *, size: TerminalSize, env: Mapping[str, str] | None = None
    ) -> Terminal:
        command = Command(argv=argv, env={**self._env, **(env or {})})
        self._admit(command)
        return await open_terminal(self._host, command, size=size, mark=self._new_mark())

    @override
    async def snapshot(self, *, name: str | None = None) -> SnapshotRef:
        # If it can be written its environment is the snapshot's afterwards, and must not change any more.
        saved = "was saved" if self._labels.environment_writable else None
        async with self._ending, self._saving(saved=saved):
            return await self._save(self._host, self._labels, name, quiet=self._kill_all)

    @override
    async def _remove(self) -> None:
        await finish(self._remove_container(), timeout_s=FINISH_TIMEOUT_S)

    async def _remove_container(self) -> None:
        await self._engine.remove(self._container_id)
        self._removed = True
        await self._give_up_processes()
        await self._forget(self.id)

    @override
    async def _start(self, command: Command) -> ContainerProcess:
        return await start_process(self._host, command, mark=self._new_mark())

    def _new_mark(self) -> str:
        return f"{self._labels.id}-{secrets.token_hex(16)}"

    @override
    async def _kill_all(self) -> None:
        """Also what an earlier process of the service started."""
        await super()._kill_all()
        try:
            async with asyncio.timeout(KILL_ALL_TIMEOUT_S):
                await kill_all(self._host)
        except TimeoutError as exc:
            raise SandboxError(
                SandboxErrorCode.UNAVAILABLE,
                f"processes of sandbox {self._labels.id} still live after SIGKILL",
            ) from exc
