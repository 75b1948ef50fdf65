"""One sandbox in a microVM: commands, files, lifetime, snapshot, end."""

import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar

from typing_extensions import override

from sandbox_runtime.command import DEFAULT_MAX_FILE_BYTES, Command
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.providers.deno import MAX_LIFETIME_S
from sandbox_runtime.providers.deno.client import DenoClient
from sandbox_runtime.providers.deno.connection import SandboxConnection
from sandbox_runtime.providers.deno.labels import Kind
from sandbox_runtime.providers.deno.machine import (
    Machine,
    Record,
    prepare_disk,
    sandbox_env,
    sandbox_paths,
)
from sandbox_runtime.providers.deno.processes import RemoteProcess, start_process
from sandbox_runtime.providers.deno.snapshots import Snapshots
from sandbox_runtime.providers.inside_scripts import RunnerSandbox
from sandbox_runtime.types import SandboxId, SnapshotRef

_log = logging.getLogger(__name__)

_SLACK_S = 2.0
"""By which what the platform grants may differ from what was asked for."""
_T = TypeVar("_T")


class DenoSandbox(RunnerSandbox):
    """Made by `DenoProvider.create` and `DenoProvider.attach`."""

    def __init__(
        self,
        machine: Machine,
        record: Record,
        *,
        connection: SandboxConnection,
        client: DenoClient,
        snapshots: Snapshots,
        forget: Callable[[SandboxId], None],
    ) -> None:
        super().__init__(
            SandboxId(machine.id),
            paths=sandbox_paths(record.broker),
            env=sandbox_env(record.env, writable=machine.labels.environment_writable),
        )
        self._machine = machine
        self._record = record
        self._connection = connection
        self._client = client
        self._snapshots = snapshots
        self._forget = forget
        self._expires_at = machine.expires_at
        self._over = False
        """It runs no more, by our doing."""
        self._saves = 0

    @property
    def volume_id(self) -> str:
        return self._machine.volume.id

    @property
    def expires_at(self) -> datetime | None:
        """Returns when it ends by itself. Its workspace remains, and `snapshot` still saves it, until `destroy`."""
        return self._expires_at

    @override
    async def write_file(self, path: str, data: bytes, *, executable: bool = False) -> None:
        await self._again(partial(super().write_file, path, data, executable=executable))

    @override
    async def write_files(self, files: Mapping[str, bytes]) -> None:
        await self._again(partial(super().write_files, files))

    @override
    async def read_file(self, path: str, *, max_bytes: int = DEFAULT_MAX_FILE_BYTES) -> bytes:
        return await self._again(partial(super().read_file, path, max_bytes=max_bytes))

    async def _again(self, work: Callable[[], Awaitable[_T]]) -> _T:
        """Does it once more when the connection broke: a whole file is there, or not, however often it is written."""
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
        if lifetime_s > MAX_LIFETIME_S:
            raise SandboxError(
                SandboxErrorCode.LIMIT_REACHED,
                f"a Deno sandbox lives at most {MAX_LIFETIME_S:g} s from now, not {lifetime_s:g}",
            )
        wanted = datetime.now(UTC) + timedelta(seconds=lifetime_s)
        if self._expires_at is not None and self._expires_at >= wanted:
            return
        try:
            self._expires_at = await self._client.extend(self.id, lifetime_s)
        except SandboxError as exc:
            if exc.code is SandboxErrorCode.NOT_FOUND:
                raise SandboxError(SandboxErrorCode.UNAVAILABLE, str(exc)) from exc
            raise
        if self._expires_at < wanted - timedelta(seconds=_SLACK_S):
            raise SandboxError(
                SandboxErrorCode.LIMIT_REACHED,
                f"sandbox {self.id} ends at {self._expires_at:%H:%M:%S} UTC, whatever is asked for",
            )

    @override
    async def snapshot(self, *, name: str | None = None) -> SnapshotRef:
        async with self._ending:
            if self._destroyed or not self._over:
                self._require_open()
            if not self._over:
                await self._stop()
            labels = self._machine.labels
            writable = labels.environment_writable
            slug = self._snapshots.saved_slug(
                self._machine.volume,
                Kind.ENVIRONMENT if writable else Kind.SESSION,
                number=self._saves,
                name=name,
                parent=labels.base if writable else labels.environment,
            )
            ref = await self._snapshots.save(self._machine.volume, slug, name=name)
            self._saves += 1
            return ref

    async def _stop(self) -> None:
        """Makes its disk ready to be saved, and ends it: the platform saves none that is in use."""
        self._closed = "is being saved"
        try:
            try:
                await prepare_disk(await self._connection.rpc(), self._machine.labels)
            except SandboxError as exc:
                if exc.retryable or self._machine.labels.environment_writable:
                    raise
                # It has ended by itself: its disk is as the last moment left it.
                _log.info("sandbox ended before it was saved", extra={"sandbox_id": self.id})
            await self._client.end_sandbox(self.id)
            self._over = True
        finally:
            self._reopen("was saved" if self._over else None)
        await self._connection.close()

    @override
    async def _remove(self) -> None:
        if not self._over:
            await self._client.end_sandbox(self.id)
            self._over = True
        await self._connection.close()
        await self._give_up_processes()
        await self._snapshots.discard_volume(self._machine.volume, was_saved=self._saves > 0)
        if self._machine.copied is not None:
            await self._snapshots.discard_volume(self._machine.copied)
        self._removed = True
        self._forget(self.id)

    async def leave(self) -> None:
        """Disconnects; the sandbox goes on."""
        await self._connection.close()

    @override
    async def _start(self, command: Command) -> RemoteProcess:
        mark = f"{self.id}-{secrets.token_hex(16)}"
        try:
            connection = await self._connection.rpc()
            return await start_process(
                connection,
                command,
                limits=self._record.limits,
                mark=mark,
                is_closed=lambda: self._destroyed,
            )
        except SandboxError as exc:
            if not self._destroyed and exc.retryable:
                await self._connection.rpc()  # which says so if it is gone for good
            raise
