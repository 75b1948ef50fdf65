"""What sandboxes share whose commands are processes of their own: starting and awaiting them, files, and being closed."""

import asyncio
import posixpath
from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from typing_extensions import override

from sandbox_runtime import exec_files
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.processes import KILLED, EndedProcess, collect_result, validate_command
from sandbox_runtime.provider import Process, Sandbox
from sandbox_runtime.task_group import open_task_group
from sandbox_runtime.types import DEFAULT_MAX_OUTPUT_BYTES, ExecExited, ExecResult, TerminalSize


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command in a sandbox."""

    argv: Sequence[str] = field(repr=False)
    env: Mapping[str, str] = field(repr=False)
    """The sandbox's, and the caller's own."""
    cwd: str | None = None
    """From the work directory on; None = that one."""
    stdin: bytes = field(default=b"", repr=False)
    merge_output: bool = False
    bound: bool = False
    """Dies when the service does, because nobody could collect it; otherwise it goes on."""
    timeout_s: float | None = None
    """How long somebody waits for it."""
    max_output_bytes: int | None = None
    """What is kept of each stream; None = all, at its reader's pace."""
    terminal: TerminalSize | None = None
    """Of one of its own; None = it has none."""

    def directory(self, work: str) -> str:
        """Where it runs, as seen inside."""
        return work if self.cwd is None else posixpath.join(work, self.cwd)


class StartedProcess(Process, Protocol):
    """A process that knows of its end."""

    @property
    def ended(self) -> bool: ...


class CommandSandbox(Sandbox):
    """A provider says how a command is started and how its sandbox ends, and keeps `_closed` true."""

    def __init__(self, env: Mapping[str, str]) -> None:
        """`env` is what every command finds in its environment."""
        self._env = env
        self._processes: set[StartedProcess] = set()
        self._closed: str | None = None
        """Why nothing may run in it (any more)."""
        self._destroyed = False
        self._removed = False
        self._ending = asyncio.Lock()

    @abstractmethod
    async def _start(self, command: Command) -> StartedProcess:
        """It really runs when this returns.

        Raises:
            SandboxError: UNAVAILABLE.
        """
        ...

    @abstractmethod
    async def _remove(self) -> None:
        """End it, for `destroy`, and set `_removed` when nothing of it is left to be ended."""
        ...

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
        command = Command(
            argv=argv,
            env={**self._env, **(env or {})},
            cwd=cwd,
            stdin=stdin,
            merge_output=merge_output,
            bound=True,
            timeout_s=timeout_s,
            max_output_bytes=max_output_bytes,
        )
        process = await self._run(command)
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
        whole = {**self._env, **(env or {})}
        return await self._run(Command(argv=argv, env=whole, cwd=cwd, stdin=stdin))

    async def _run(self, command: Command) -> StartedProcess:
        self._admit(command)
        try:
            process = await self._start(command)
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

    def _admit(self, command: Command) -> None:
        validate_command(command.argv, env=command.env, cwd=command.cwd)
        self._require_open()
        self._forget_ended()

    @override
    async def write_file(self, path: str, data: bytes, *, executable: bool = False) -> None:
        await exec_files.write_file(
            self.exec, path, data, work=self.paths.work, executable=executable
        )

    @override
    async def write_files(self, files: Mapping[str, bytes]) -> None:
        await exec_files.write_files(self.exec, files, work=self.paths.work)

    @override
    async def read_file(
        self, path: str, *, max_bytes: int = exec_files.DEFAULT_MAX_FILE_BYTES
    ) -> bytes:
        return await exec_files.read_file(
            self.exec, path, work=self.paths.work, max_bytes=max_bytes
        )

    @override
    async def destroy(self) -> None:
        self._destroyed = True
        self._closed = "is destroyed"
        async with self._ending:
            if not self._removed:
                await self._remove()

    @asynccontextmanager
    async def _saving(self, *, saved: str | None, failed: str | None = None) -> AsyncIterator[None]:
        """Nothing may change files while they are copied; what closes it afterwards, if anything."""
        self._require_open()
        self._closed = "is being saved"
        try:
            yield
        except BaseException:
            self._reopen(failed)
            raise
        self._reopen(saved)

    def _reopen(self, closed: str | None) -> None:
        self._closed = "is destroyed" if self._destroyed else closed

    def _require_open(self) -> None:
        if self._closed is not None:
            raise SandboxError(SandboxErrorCode.UNAVAILABLE, f"sandbox {self.id} {self._closed}")

    def _forget_ended(self) -> None:
        self._processes = {process for process in self._processes if not process.ended}

    async def _kill_all(self) -> None:
        async with open_task_group() as group:
            for process in self._processes:
                group.create_task(process.kill())
        self._forget_ended()

    async def _give_up_processes(self) -> None:
        """Its commands are dead already; whoever waits for one is told."""
        for process in list(self._processes):
            await process.kill()
        self._forget_ended()
