"""One local sandbox: commands, files, snapshot, end."""

import errno
from collections.abc import Awaitable, Callable, Mapping, Sequence

from typing_extensions import override

from sandbox_runtime.command import (
    NOT_EXECUTABLE,
    Command,
    CommandSandbox,
    EndedProcess,
    result_events,
)
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.provider import Terminal
from sandbox_runtime.providers.local.isolation import Isolation, Place
from sandbox_runtime.providers.local.processes import (
    WITH_TERMINAL,
    HostProcess,
    open_terminal,
    start_process,
)
from sandbox_runtime.types import ExecResult, SandboxId, SnapshotRef, TerminalSize


class LocalSandbox(CommandSandbox):
    """Made by `LocalProvider.create`."""

    def __init__(
        self,
        sandbox_id: SandboxId,
        *,
        place: Place,
        isolation: Isolation,
        env: Mapping[str, str],
        save: Callable[[Place, str | None], Awaitable[SnapshotRef]],
        discard: Callable[[SandboxId], Awaitable[None]],
    ) -> None:
        whole = {**isolation.base_env(place), "LANG": "C.UTF-8", **env}
        super().__init__(sandbox_id, paths=isolation.paths(place), env=whole)
        self._place = place
        self._isolation = isolation
        self._save = save
        self._discard = discard

    @override
    async def open_terminal(
        self, argv: Sequence[str], *, size: TerminalSize, env: Mapping[str, str] | None = None
    ) -> Terminal:
        command = Command(argv=[*WITH_TERMINAL, *argv], env={**self._env, **(env or {})})
        self._admit(command)
        try:
            terminal = open_terminal(self._isolation.command(self._place, command), size=size)
        except OSError as exc:
            raise SandboxError(
                SandboxErrorCode.UNAVAILABLE, f"cannot open a terminal: {exc.strerror}"
            ) from exc
        self._processes.add(terminal.process)
        return terminal

    @override
    async def snapshot(self, *, name: str | None = None) -> SnapshotRef:
        # If it can be written its environment is the snapshot's afterwards, and must not change any more.
        saved = "was saved" if self._place.environment_writable else None
        # Nothing may swap a directory for a link under the copier, either.
        async with self._ending, self._saving(saved=saved):
            await self._kill_all()
            return await self._save(self._place, name)

    @override
    async def _remove(self) -> None:
        try:
            await self._kill_all()
        finally:
            await self._discard(self.id)
        self._removed = True

    @override
    async def _start(self, command: Command) -> HostProcess | EndedProcess:
        try:
            return start_process(
                self._isolation.command(self._place, command),
                stdin=command.stdin,
                merge_output=command.merge_output,
            )
        except FileNotFoundError as exc:
            raise SandboxError(
                SandboxErrorCode.UNAVAILABLE, f"sandbox {self.id} is gone: {exc.filename}"
            ) from exc
        except OSError as exc:
            if exc.errno != errno.E2BIG:
                raise SandboxError(
                    SandboxErrorCode.UNAVAILABLE, f"cannot start a process: {exc.strerror}"
                ) from exc
            message = f"{command.argv[0][:200]}: argument list too long\n".encode()
            result = ExecResult(exit_code=NOT_EXECUTABLE, stdout=b"", stderr=message)
            return EndedProcess(result_events(result))

    @override
    def _require_open(self) -> None:
        super()._require_open()
        if not self._place.work.is_dir():
            raise SandboxError(SandboxErrorCode.UNAVAILABLE, f"sandbox {self.id} is gone")
