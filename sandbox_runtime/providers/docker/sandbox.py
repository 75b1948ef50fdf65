"""One sandbox in a container: commands, files, snapshot, end."""

import asyncio
import posixpath
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from typing_extensions import override

from sandbox_runtime import exec_files
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.finishing import finish
from sandbox_runtime.processes import EndedProcess, collect_result, validate_command
from sandbox_runtime.provider import Process, Sandbox, Terminal
from sandbox_runtime.providers.docker.containers import sandbox_paths
from sandbox_runtime.providers.docker.engine import FINISH_TIMEOUT_S, Engine
from sandbox_runtime.providers.docker.labels import SandboxLabels
from sandbox_runtime.providers.docker.processes import (
    KILLED,
    Command,
    ContainerProcess,
    Host,
    kill_all,
    start_process,
)
from sandbox_runtime.providers.docker.snapshots import Quiet
from sandbox_runtime.providers.docker.terminal import open_terminal
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

KILL_ALL_TIMEOUT_S = 5.0


class Save(Protocol):
    """`Snapshots.save`."""

    async def __call__(
        self, host: Host, source: SandboxLabels, name: str | None, *, quiet: Quiet
    ) -> SnapshotRef: ...


class DockerSandbox(Sandbox):
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
        self._labels = labels
        self._container_id = container_id
        self._name = name
        self._engine = engine
        self._env = env
        self._save = save
        self._forget = forget
        self._paths = sandbox_paths(labels.broker)
        self._host = Host(
            engine=engine, container_id=container_id, is_closed=lambda: self._destroyed
        )
        self._processes: set[ContainerProcess] = set()
        self._closed: str | None = None
        """Why nothing may run in it (any more)."""
        self._destroyed = False
        self._ending = asyncio.Lock()
        self._removed = False

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
        return await self._start(
            self._command(argv, cwd, env, stdin, merge_output=False, bound=False)
        )

    @override
    async def open_terminal(
        self, argv: Sequence[str], *, size: TerminalSize, env: Mapping[str, str] | None = None
    ) -> Terminal:
        self._require_open()
        added = {**self._env, **(env or {})}
        validate_command(argv, env=added, cwd=None)
        mark = f"{self._labels.id}-{secrets.token_hex(16)}"
        return await open_terminal(self._host, argv, env=added, size=size, mark=mark)

    @override
    async def write_file(self, path: str, data: bytes, *, executable: bool = False) -> None:
        await exec_files.write_file(
            self.exec, path, data, work=self._paths.work, executable=executable
        )

    @override
    async def write_files(self, files: Mapping[str, bytes]) -> None:
        await exec_files.write_files(self.exec, files, work=self._paths.work)

    @override
    async def read_file(
        self, path: str, *, max_bytes: int = exec_files.DEFAULT_MAX_FILE_BYTES
    ) -> bytes:
        return await exec_files.read_file(
            self.exec, path, work=self._paths.work, max_bytes=max_bytes
        )

    @override
    async def snapshot(self, *, name: str | None = None) -> SnapshotRef:
        async with self._ending:
            self._require_open()
            # Nothing may change files while they are copied.
            self._closed = "is being saved"
            try:
                ref = await self._save(self._host, self._labels, name, quiet=self._kill_all)
            except BaseException:
                self._reopen(None)
                raise
            # Its environment is the snapshot's now, and must not change any more.
            self._reopen("was saved" if self._labels.environment_writable else None)
            return ref

    @override
    async def destroy(self) -> None:
        self._destroyed = True
        self._closed = "is destroyed"
        async with self._ending:
            if not self._removed:
                await finish(self._remove(), timeout_s=FINISH_TIMEOUT_S)

    async def _remove(self) -> None:
        await self._engine.remove(self._container_id)
        self._removed = True
        for process in list(self._processes):
            await process.kill()
        self._forget_ended()
        await self._forget(self.id)

    def _reopen(self, closed: str | None) -> None:
        self._closed = "is destroyed" if self._destroyed else closed

    def _command(
        self,
        argv: Sequence[str],
        cwd: str | None,
        env: Mapping[str, str] | None,
        stdin: bytes,
        *,
        merge_output: bool,
        bound: bool,
    ) -> Command:
        added = {**self._env, **(env or {})}
        validate_command(argv, env=added, cwd=cwd)
        return Command(
            argv=argv,
            env=added,
            cwd=self._paths.work if cwd is None else posixpath.join(self._paths.work, cwd),
            stdin=stdin,
            merge_output=merge_output,
            bound=bound,
            limits=self._labels.limits,
        )

    async def _start(self, command: Command) -> ContainerProcess | EndedProcess:
        self._require_open()
        self._forget_ended()
        mark = f"{self._labels.id}-{secrets.token_hex(16)}"
        try:
            process = await start_process(self._host, command, mark=mark)
        except SandboxError:
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
            raise SandboxError(
                SandboxErrorCode.UNAVAILABLE, f"sandbox {self._labels.id} {self._closed}"
            )

    def _forget_ended(self) -> None:
        self._processes = {process for process in self._processes if not process.ended}

    async def _kill_all(self) -> None:
        """Also what an earlier process of the service started."""
        async with open_task_group() as group:
            for process in self._processes:
                group.create_task(process.kill())
        self._forget_ended()
        try:
            async with asyncio.timeout(KILL_ALL_TIMEOUT_S):
                await kill_all(self._host)
        except TimeoutError as exc:
            raise SandboxError(
                SandboxErrorCode.UNAVAILABLE,
                f"processes of sandbox {self._labels.id} still live after SIGKILL",
            ) from exc
