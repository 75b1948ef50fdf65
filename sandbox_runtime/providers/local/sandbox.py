"""One local sandbox: commands, files, snapshot, end."""

import asyncio
import errno
import posixpath
from collections.abc import Awaitable, Callable, Mapping, Sequence

from typing_extensions import override

from sandbox_runtime import exec_files
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.processes import (
    NOT_EXECUTABLE,
    EndedProcess,
    collect_result,
    result_events,
    validate_command,
)
from sandbox_runtime.provider import Process, Sandbox, Terminal
from sandbox_runtime.providers.local.place import Isolation, Place, Request
from sandbox_runtime.providers.local.processes import HostProcess, start_process
from sandbox_runtime.providers.local.terminal import WITH_TERMINAL, open_terminal
from sandbox_runtime.task_group import open_task_group
from sandbox_runtime.types import (
    DEFAULT_MAX_OUTPUT_BYTES,
    ExecResult,
    SandboxId,
    SandboxPaths,
    SnapshotRef,
    TerminalSize,
)


class LocalSandbox(Sandbox):
    """Made by `LocalProvider.create`."""

    def __init__(
        self,
        sandbox_id: SandboxId,
        *,
        place: Place,
        isolation: Isolation,
        env: Mapping[str, str],
        save: Callable[[Place, str | None], Awaitable[SnapshotRef]],
        remove: Callable[[SandboxId], Awaitable[None]],
    ) -> None:
        self._id = sandbox_id
        self._place = place
        self._isolation = isolation
        self._paths = isolation.paths(place)
        self._env = {**isolation.base_env(place), "LANG": "C.UTF-8", **env}
        self._save = save
        self._remove = remove
        self._processes: set[HostProcess] = set()
        self._closed: str | None = None
        """Why nothing may run in it (any more)."""
        self._ending = asyncio.Lock()
        self._removed = False

    @property
    @override
    def id(self) -> SandboxId:
        return self._id

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
        process = self._start(argv, cwd=cwd, env=env, stdin=stdin, merge_output=merge_output)
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
        return self._start(argv, cwd=cwd, env=env, stdin=stdin, merge_output=False)

    @override
    async def open_terminal(
        self, argv: Sequence[str], *, size: TerminalSize, env: Mapping[str, str] | None = None
    ) -> Terminal:
        request = self._request([*WITH_TERMINAL, *argv], cwd=None, env=env)
        try:
            terminal = open_terminal(self._isolation.command(self._place, request), size=size)
        except OSError as exc:
            raise SandboxError(
                SandboxErrorCode.UNAVAILABLE, f"cannot open a terminal: {exc.strerror}"
            ) from exc
        self._processes.add(terminal.process)
        return terminal

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
            # Nothing may change files while they are copied, nor swap a directory for a link under the copier.
            self._closed = "is being saved"
            try:
                await self._kill_all()
                ref = await self._save(self._place, name)
            except BaseException:
                self._closed = None
                raise
            # Its environment is the snapshot's now, and must not change any more.
            self._closed = "was saved" if self._place.environment_writable else None
            return ref

    @override
    async def destroy(self) -> None:
        self._closed = "is destroyed"
        async with self._ending:
            self._closed = "is destroyed"
            if self._removed:
                return
            try:
                await self._kill_all()
            finally:
                await self._remove(self._id)
            self._removed = True

    def _start(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None,
        env: Mapping[str, str] | None,
        stdin: bytes,
        merge_output: bool,
    ) -> HostProcess | EndedProcess:
        request = self._request(argv, cwd=cwd, env=env)
        try:
            process = start_process(
                self._isolation.command(self._place, request),
                stdin=stdin,
                merge_output=merge_output,
            )
        except FileNotFoundError as exc:
            raise SandboxError(
                SandboxErrorCode.UNAVAILABLE, f"sandbox {self._id} is gone: {exc.filename}"
            ) from exc
        except OSError as exc:
            if exc.errno != errno.E2BIG:
                raise SandboxError(
                    SandboxErrorCode.UNAVAILABLE, f"cannot start a process: {exc.strerror}"
                ) from exc
            message = f"{argv[0][:200]}: argument list too long\n".encode()
            result = ExecResult(exit_code=NOT_EXECUTABLE, stdout=b"", stderr=message)
            return EndedProcess(result_events(result))
        self._processes.add(process)
        return process

    def _request(
        self, argv: Sequence[str], *, cwd: str | None, env: Mapping[str, str] | None
    ) -> Request:
        request = Request(
            argv=argv,
            env={**self._env, **(env or {})},
            cwd=None if cwd is None else posixpath.join(self._paths.work, cwd),
        )
        validate_command(request.argv, env=request.env, cwd=request.cwd)
        self._require_open()
        self._forget_ended()
        return request

    def _require_open(self) -> None:
        if self._closed is not None:
            raise SandboxError(SandboxErrorCode.UNAVAILABLE, f"sandbox {self._id} {self._closed}")
        if not self._place.work.is_dir():
            raise SandboxError(SandboxErrorCode.UNAVAILABLE, f"sandbox {self._id} is gone")

    def _forget_ended(self) -> None:
        self._processes = {process for process in self._processes if not process.ended}

    async def _kill_all(self) -> None:
        async with open_task_group() as group:
            for process in self._processes:
                group.create_task(process.kill())
        self._forget_ended()
