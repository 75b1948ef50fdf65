"""One sandbox of Deno's: commands, files, snapshot, lifetime, end."""

import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TypeVar

from typing_extensions import override

from sandbox_runtime import exec_files
from sandbox_runtime.command_sandbox import Command, CommandSandbox
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.finishing import finish
from sandbox_runtime.provider import Terminal
from sandbox_runtime.providers.deno.console import Console
from sandbox_runtime.providers.deno.disks import Disks
from sandbox_runtime.providers.deno.lifetime import Lifetime
from sandbox_runtime.providers.deno.link import Link
from sandbox_runtime.providers.deno.machine import Machine, Record, prepare_disk
from sandbox_runtime.providers.deno.paths import sandbox_env, sandbox_paths
from sandbox_runtime.providers.deno.processes import Host, RemoteProcess, start_process
from sandbox_runtime.providers.deno.slugs import Kind
from sandbox_runtime.providers.process_terminal import on_terminal, terminal_of
from sandbox_runtime.types import SandboxId, SandboxPaths, SnapshotRef, TerminalSize

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class DenoSandbox(CommandSandbox):
    """Made by `DenoProvider.create` and `DenoProvider.attach`."""

    def __init__(
        self,
        machine: Machine,
        record: Record,
        *,
        link: Link,
        console: Console,
        disks: Disks,
        forget: Callable[[SandboxId], None],
    ) -> None:
        super().__init__(sandbox_env(record.env, writable=machine.labels.environment_writable))
        self._machine = machine
        self._record = record
        self._link = link
        self._console = console
        self._disks = disks
        self._forget = forget
        self._lifetime = Lifetime(console, machine)
        self._host = Host(limits=record.limits, is_closed=lambda: self._destroyed)
        self._over = False
        """It runs no more, by our doing."""
        self._saves = 0

    @property
    @override
    def id(self) -> SandboxId:
        return SandboxId(self._machine.id)

    @property
    @override
    def paths(self) -> SandboxPaths:
        return sandbox_paths(self._record.broker)

    @property
    def volume_id(self) -> str:
        """Of the volume that it has for itself."""
        return self._machine.volume.id

    @property
    def expires_at(self) -> datetime | None:
        """When it ends by itself. Its workspace remains, and `snapshot` still saves it, until `destroy`."""
        return self._lifetime.expires_at

    @override
    async def open_terminal(
        self, argv: Sequence[str], *, size: TerminalSize, env: Mapping[str, str] | None = None
    ) -> Terminal:
        process = await self._run(on_terminal(argv, size=size, env={**self._env, **(env or {})}))
        return terminal_of(process)

    @override
    async def write_file(self, path: str, data: bytes, *, executable: bool = False) -> None:
        await self._again(partial(super().write_file, path, data, executable=executable))

    @override
    async def write_files(self, files: Mapping[str, bytes]) -> None:
        await self._again(partial(super().write_files, files))

    @override
    async def read_file(
        self, path: str, *, max_bytes: int = exec_files.DEFAULT_MAX_FILE_BYTES
    ) -> bytes:
        return await self._again(partial(super().read_file, path, max_bytes=max_bytes))

    async def _again(self, work: Callable[[], Awaitable[_T]]) -> _T:
        """Once more when the connection broke: a whole file is there, or not, however often it is written."""
        try:
            return await work()
        except SandboxError as exc:
            if exc.code is not SandboxErrorCode.UNAVAILABLE or self._closed is not None:
                raise
            return await work()

    @override
    async def extend(self, lifetime_s: float) -> None:
        await super().extend(lifetime_s)
        self._require_open()
        await self._lifetime.extend(lifetime_s)

    @override
    async def snapshot(self, *, name: str | None = None) -> SnapshotRef:
        async with self._ending:
            if self._destroyed or not self._over:
                self._require_open()
            if not self._over:
                await self._stop()
            labels = self._machine.labels
            writable = labels.environment_writable
            slug = self._disks.saved_slug(
                self._machine.volume,
                Kind.ENVIRONMENT if writable else Kind.SESSION,
                number=self._saves,
                name=name,
                parent=labels.base if writable else labels.environment,
            )
            ref = await self._disks.save(self._machine.volume, slug, name=name)
            self._saves += 1
            return ref

    async def _stop(self) -> None:
        """Make its disk ready to be saved, and end it: the platform saves none that is in use."""
        self._closed = "is being saved"
        try:
            try:
                await prepare_disk(await self._link.connection(), self._machine.labels)
            except SandboxError as exc:
                if exc.retryable or self._machine.labels.environment_writable:
                    raise
                # It has ended by itself: its disk is as the last moment left it.
                _log.info("sandbox ended before it was saved", extra={"sandbox_id": self.id})
            await self._console.end_sandbox(self.id)
            self._over = True
        finally:
            self._reopen("was saved" if self._over else None)
        await self._link.close()

    @override
    async def _remove(self) -> None:
        await finish(self._remove_machine())

    async def _remove_machine(self) -> None:
        if not self._over:
            await self._console.end_sandbox(self.id)
            self._over = True
        await self._link.close()
        await self._give_up_processes()
        await self._disks.discard_volume(self._machine.volume, was_saved=self._saves > 0)
        if self._machine.copied is not None:
            await self._disks.discard_volume(self._machine.copied)
        self._removed = True
        self._forget(self.id)

    async def leave(self) -> None:
        """Disconnect; it goes on."""
        await self._link.close()

    @override
    async def _start(self, command: Command) -> RemoteProcess:
        mark = f"{self.id}-{secrets.token_hex(16)}"
        try:
            connection = await self._link.connection()
            return await start_process(self._host, connection, command, mark=mark)
        except SandboxError as exc:
            if not self._destroyed and exc.retryable:
                await self._link.connection()  # which says so if it is gone for good
            raise
