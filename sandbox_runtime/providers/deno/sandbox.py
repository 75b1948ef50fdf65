"""One sandbox of Deno's: commands, files, snapshot, lifetime, end."""

import asyncio
import logging
import posixpath
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import TypeVar

from typing_extensions import override

from sandbox_runtime import exec_files
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.finishing import finish
from sandbox_runtime.processes import EndedProcess, collect_result, validate_command
from sandbox_runtime.provider import Process, Sandbox, Terminal
from sandbox_runtime.providers.deno.console import Console
from sandbox_runtime.providers.deno.disks import Disks
from sandbox_runtime.providers.deno.lifetime import Lifetime
from sandbox_runtime.providers.deno.link import Link
from sandbox_runtime.providers.deno.machine import Machine, Record, prepare_disk
from sandbox_runtime.providers.deno.paths import sandbox_env, sandbox_paths
from sandbox_runtime.providers.deno.processes import (
    KILLED,
    Command,
    RemoteProcess,
    start_process,
)
from sandbox_runtime.providers.deno.slugs import Kind
from sandbox_runtime.providers.deno.terminal import DenoTerminal, terminal_size
from sandbox_runtime.types import (
    DEFAULT_MAX_OUTPUT_BYTES,
    ExecExited,
    ExecResult,
    SandboxId,
    SandboxPaths,
    SnapshotRef,
    TerminalSize,
)

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class DenoSandbox(Sandbox):
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
        self._machine = machine
        self._record = record
        self._link = link
        self._console = console
        self._disks = disks
        self._forget = forget
        self._lifetime = Lifetime(console, machine)
        self._processes: set[RemoteProcess] = set()
        self._closed: str | None = None
        """Why nothing may run in it (any more)."""
        self._over = False
        """It runs no more, by our doing."""
        self._saves = 0
        self._destroyed = False
        self._removed = False
        self._ending = asyncio.Lock()

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
    async def exec(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        merge_output: bool = False,
        max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
    ) -> ExecResult:
        command = self._command(argv, cwd, env, stdin, merge_output=merge_output, bound=True)
        process = await self._start(command)
        try:
            async with asyncio.timeout(timeout_s):
                return await collect_result(process, max_output_bytes=max_output_bytes)
        except TimeoutError as exc:
            raise SandboxError(
                SandboxErrorCode.EXEC_TIMEOUT, f"{argv[0]} ran longer than {timeout_s:g} s"
            ) from exc
        finally:
            await process.kill()
            self._forget_ended()

    @override
    async def spawn(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
    ) -> Process:
        return await self._start(self._command(argv, cwd, env, stdin, bound=False))

    @override
    async def open_terminal(
        self, argv: Sequence[str], *, size: TerminalSize, env: Mapping[str, str] | None = None
    ) -> Terminal:
        added = {"TERM": "xterm-256color", **(env or {})}
        command = self._command(argv, None, added, b"", bound=True, terminal=terminal_size(size))
        process = await self._start(command)
        if not isinstance(process, RemoteProcess):
            raise SandboxError(SandboxErrorCode.UNAVAILABLE, f"sandbox {self.id} is destroyed")
        return DenoTerminal(process)

    @override
    async def write_file(self, path: str, data: bytes, *, executable: bool = False) -> None:
        await self._again(
            lambda: exec_files.write_file(
                self.exec, path, data, work=self.paths.work, executable=executable
            )
        )

    @override
    async def write_files(self, files: Mapping[str, bytes]) -> None:
        await self._again(lambda: exec_files.write_files(self.exec, files, work=self.paths.work))

    @override
    async def read_file(
        self, path: str, *, max_bytes: int = exec_files.DEFAULT_MAX_FILE_BYTES
    ) -> bytes:
        return await self._again(
            lambda: exec_files.read_file(self.exec, path, work=self.paths.work, max_bytes=max_bytes)
        )

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
            if not self._over:
                self._closed = "is destroyed" if self._destroyed else None
        self._closed = "is destroyed" if self._destroyed else "was saved"
        await self._link.close()

    @override
    async def destroy(self) -> None:
        self._destroyed = True
        self._closed = "is destroyed"
        async with self._ending:
            if not self._removed:
                await finish(self._remove())

    async def _remove(self) -> None:
        if not self._over:
            await self._console.end_sandbox(self.id)
            self._over = True
        await self._link.close()
        for process in list(self._processes):
            await process.kill()
        self._forget_ended()
        await self._disks.discard_volume(self._machine.volume, was_saved=self._saves > 0)
        if self._machine.copied is not None:
            await self._disks.discard_volume(self._machine.copied)
        self._removed = True
        self._forget(self.id)

    async def leave(self) -> None:
        """Disconnect; it goes on."""
        await self._link.close()

    def _command(
        self,
        argv: Sequence[str],
        cwd: str | None,
        env: Mapping[str, str] | None,
        stdin: bytes,
        *,
        merge_output: bool = False,
        bound: bool,
        terminal: str = "",
    ) -> Command:
        writable = self._machine.labels.environment_writable
        whole = sandbox_env({**self._record.env, **(env or {})}, writable=writable)
        validate_command(argv, env=whole, cwd=cwd)
        work = self.paths.work
        return Command(
            argv=argv,
            env=whole,
            cwd=work if cwd is None else posixpath.join(work, cwd),
            stdin=stdin,
            merge_output=merge_output,
            bound=bound,
            limits=self._record.limits,
            terminal=terminal,
        )

    async def _start(self, command: Command) -> RemoteProcess | EndedProcess:
        self._require_open()
        self._forget_ended()
        mark = f"{self.id}-{secrets.token_hex(16)}"
        try:
            process = await start_process(
                await self._link.connection(), command, mark=mark, is_closed=lambda: self._destroyed
            )
        except SandboxError as exc:
            if not self._destroyed and exc.retryable:
                await self._link.connection()  # which says so if it is gone for good
            if not self._destroyed:
                raise
            # Destroyed while it started: killed, like those that had just got to run.
            return EndedProcess((ExecExited(exit_code=KILLED),))
        self._processes.add(process)
        if self._closed is not None:
            # Closed meanwhile: what closed it did not see this one.
            await process.kill()
            if not self._destroyed:
                self._require_open()
        return process

    def _require_open(self) -> None:
        if self._closed is not None:
            raise SandboxError(SandboxErrorCode.UNAVAILABLE, f"sandbox {self.id} {self._closed}")

    def _forget_ended(self) -> None:
        self._processes = {process for process in self._processes if not process.ended}
