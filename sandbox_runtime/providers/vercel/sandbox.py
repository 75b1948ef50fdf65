"""One sandbox in a microVM: commands, files, snapshot, end."""

import asyncio
import posixpath
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from typing_extensions import override

from sandbox_runtime import exec_files
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.processes import EndedProcess, collect_result, validate_command
from sandbox_runtime.provider import Process, Sandbox, Terminal
from sandbox_runtime.providers.vercel.errors import asking
from sandbox_runtime.providers.vercel.machine import ENVIRONMENT, HOME, RUN, WORK, About, Machine
from sandbox_runtime.providers.vercel.processes import (
    KILLED,
    Command,
    Host,
    MachineProcess,
    start_process,
)
from sandbox_runtime.providers.vercel.settings import MAX_LIFETIME_S
from sandbox_runtime.task_group import open_task_group
from sandbox_runtime.types import (
    DEFAULT_MAX_OUTPUT_BYTES,
    ExecExited,
    ExecResult,
    SandboxId,
    SandboxPaths,
    SnapshotRef,
    TerminalSize,
)

MEMORY_BYTES_PER_VCPU = 2 * 1024**3
"""Source: Vercel documentation, Sandbox pricing, read 2026-11."""
_EXTRA_LIMIT_S = 60.0
_GONE = SandboxErrorCode.UNAVAILABLE


class Save(Protocol):
    """`Snapshots.save`."""

    async def __call__(self, machine: Machine, about: About, name: str | None) -> SnapshotRef: ...


class VercelSandbox(Sandbox):
    """Made by `VercelProvider.create` and `VercelProvider.attach`."""

    def __init__(
        self,
        machine: Machine,
        about: About,
        *,
        beat_s: float,
        save: Save,
        end: Callable[[SandboxId], Awaitable[None]],
        forget: Callable[[SandboxId], None],
    ) -> None:
        self._machine = machine
        self._about = about
        self._save = save
        self._end = end
        self._forget = forget
        self._host = Host(
            session=machine.session, beat_s=beat_s, is_closed=lambda: self._is_destroyed
        )
        self._processes: set[MachineProcess] = set()
        self._closed: str | None = None
        """Why nothing may run in it (any more)."""
        self._is_destroyed = False
        self._is_over = False
        self._saved: SnapshotRef | None = None
        self._ending = asyncio.Lock()

    @property
    @override
    def id(self) -> SandboxId:
        return SandboxId(self._machine.handle.name)

    @property
    @override
    def container_name(self) -> str:
        return self._machine.handle.name

    @property
    @override
    def paths(self) -> SandboxPaths:
        return SandboxPaths(
            work=WORK, home=HOME, run=RUN, environment=ENVIRONMENT, broker=self._about.broker
        )

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
        command = self._command(
            argv,
            cwd,
            env,
            stdin,
            merge_output=merge_output,
            keep_bytes=max_output_bytes,
            limit_s=timeout_s + _EXTRA_LIMIT_S,
        )
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
        return await self._start(self._command(argv, cwd, env, stdin))

    @override
    async def open_terminal(
        self, argv: Sequence[str], *, size: TerminalSize, env: Mapping[str, str] | None = None
    ) -> Terminal:
        raise SandboxError(
            SandboxErrorCode.UNSUPPORTED, "sandboxes at Vercel have no terminals for people here"
        )

    @override
    async def write_file(self, path: str, data: bytes, *, executable: bool = False) -> None:
        await exec_files.write_file(self.exec, path, data, work=WORK, executable=executable)

    @override
    async def write_files(self, files: Mapping[str, bytes]) -> None:
        await exec_files.write_files(self.exec, files, work=WORK)

    @override
    async def read_file(
        self, path: str, *, max_bytes: int = exec_files.DEFAULT_MAX_FILE_BYTES
    ) -> bytes:
        return await exec_files.read_file(self.exec, path, work=WORK, max_bytes=max_bytes)

    @override
    async def extend(self, lifetime_s: float) -> None:
        await super().extend(lifetime_s)
        self._require_open()
        if lifetime_s > MAX_LIFETIME_S:
            raise SandboxError(
                SandboxErrorCode.LIMIT_REACHED,
                f"a sandbox at Vercel lives {MAX_LIFETIME_S:g} s at most, not {lifetime_s:g} s",
            )
        async with asking(
            "cannot extend a sandbox's life",
            otherwise=SandboxErrorCode.LIMIT_REACHED,
            missing=_GONE,
        ):
            session = await self._machine.session.refresh()
            missing_s = lifetime_s - _remaining_s(session.started_at, session.execution_time_limit)
            if missing_s >= 0:
                # The service refuses less than a second.
                await session.extend_execution_time_limit(missing_s + 1.0)

    @override
    async def snapshot(self, *, name: str | None = None) -> SnapshotRef:
        async with self._ending:
            if self._saved is not None and self._saved.name == name and not self._is_destroyed:
                return self._saved  # nothing can have changed since
            self._require_open()
            self._closed = "is being saved"
            try:
                await self._kill_all()
                self._saved = await self._save(self._machine, self._about, name)
            except BaseException:
                # It may be half saved, or stopped: only `destroy` is of use.
                self._closed = "could not be saved"
                raise
            self._closed = "was saved"
            return self._saved

    @override
    async def destroy(self) -> None:
        self._is_destroyed = True
        self._closed = "is destroyed"
        async with self._ending:
            if self._is_over:
                return
            if self._saved is None:
                await self._end(self.id)
            self._forget(self.id)
            self._is_over = True
            for process in list(self._processes):
                await process.kill()
            self._forget_ended()

    def _command(
        self,
        argv: Sequence[str],
        cwd: str | None,
        env: Mapping[str, str] | None,
        stdin: bytes,
        *,
        merge_output: bool = False,
        keep_bytes: int | None = None,
        limit_s: float | None = None,
    ) -> Command:
        added = {**self._about.env, **(env or {})}
        validate_command(argv, env=added, cwd=cwd)
        vcpus = self._machine.session.vcpus or 1
        return Command(
            argv=argv,
            env=added,
            cwd=WORK if cwd is None else posixpath.join(WORK, cwd),
            stdin=stdin,
            merge_output=merge_output,
            keep_bytes=keep_bytes,
            limit_s=limit_s,
            limits=self._about.limits,
            memory_bytes=vcpus * MEMORY_BYTES_PER_VCPU,
        )

    async def _start(self, command: Command) -> MachineProcess | EndedProcess:
        self._require_open()
        self._forget_ended()
        try:
            process = await start_process(self._host, command)
        except SandboxError:
            if not self._is_destroyed:
                raise
            # Destroyed while it started: killed, like those that had just got to run.
            return EndedProcess((ExecExited(exit_code=KILLED),))
        self._processes.add(process)
        if self._closed is not None:
            # Closed meanwhile: what closed it did not see this one.
            await process.kill()
            if not self._is_destroyed:
                self._require_open()
        return process

    def _require_open(self) -> None:
        if self._closed is not None:
            raise SandboxError(_GONE, f"sandbox {self.id} {self._closed}")

    def _forget_ended(self) -> None:
        self._processes = {process for process in self._processes if not process.ended}

    async def _kill_all(self) -> None:
        async with open_task_group() as group:
            for process in self._processes:
                group.create_task(process.kill())
        self._forget_ended()


def _remaining_s(started_ms: int | None, limit: object) -> float:
    """Of its life; 0 where the service does not say."""
    seconds = getattr(limit, "total_seconds", None)
    if started_ms is None or seconds is None:
        return 0.0
    return max(0.0, started_ms / 1000 + float(seconds()) - time.time())
