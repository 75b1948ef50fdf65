"""One sandbox: a directory of this machine, and commands in it."""

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from typing_extensions import override

from sandbox_runtime.command import Command, CommandSandbox
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.host import search_path, user_env
from sandbox_runtime.provider import Terminal
from sandbox_runtime.providers.NAME.processes import NameProcess, start_process
from sandbox_runtime.providers.NAME.snapshots import Snapshots, remove
from sandbox_runtime.types import (
    SandboxId,
    SandboxPaths,
    SandboxSpec,
    SnapshotRef,
    TerminalSize,
    endpoint_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a sandbox lies."""

    directory: Path
    environment: str
    """Its id: an environment stays where it was made, so that paths in it hold."""
    spec: SandboxSpec


class NameSandbox(CommandSandbox):
    """Made by `NameProvider.create`."""

    def __init__(
        self, place: Place, snapshots: Snapshots, *, forget: Callable[[SandboxId], None]
    ) -> None:
        directory, spec = place.directory, place.spec
        paths = SandboxPaths(
            work=str(directory / "work"),
            home=str(directory / "home"),
            run=str(directory / "run"),
            environment=str(snapshots.environment(place.environment)),
            broker=endpoint_of(spec.network) or str(directory / "broker"),
        )
        own = user_env(paths.home, scratch=paths.run if spec.environment_writable else None)
        env = {"PATH": search_path(), **own, **spec.env}
        super().__init__(SandboxId(directory.name), paths=paths, env=env)
        self._place = place
        self._snapshots = snapshots
        self._forget = forget

    @override
    async def _start(self, command: Command) -> NameProcess:
        return await start_process(command, work=self.paths.work, limits=self._place.spec.limits)

    @override
    async def open_terminal(
        self, argv: Sequence[str], *, size: TerminalSize, env: Mapping[str, str] | None = None
    ) -> Terminal:
        raise SandboxError(SandboxErrorCode.UNSUPPORTED, "NAME sandboxes have no terminals")

    @override
    async def snapshot(self, *, name: str | None = None) -> SnapshotRef:
        saved = "was saved" if self._place.spec.environment_writable else None
        async with self._ending, self._saving(saved=saved):
            await self._kill_all()
            work = (self._place.directory, self._place.environment)
            return await asyncio.to_thread(self._snapshots.save, *work, name=name)

    @override
    async def _remove(self) -> None:
        await self._kill_all()
        await asyncio.to_thread(remove, self._place.directory)
        self._removed = True
        self._forget(self.id)


def new_id() -> str:
    """Returns an id that no other sandbox, environment or snapshot has."""
    return secrets.token_hex(8)
