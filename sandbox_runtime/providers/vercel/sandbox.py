"""One sandbox in a microVM: commands, files, snapshot, end."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from typing_extensions import override

from sandbox_runtime.command_sandbox import Command, CommandSandbox
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.provider import Terminal
from sandbox_runtime.providers.process_terminal import on_terminal, terminal_of
from sandbox_runtime.providers.vercel.errors import asking
from sandbox_runtime.providers.vercel.machine import ENVIRONMENT, HOME, RUN, WORK, About, Machine
from sandbox_runtime.providers.vercel.processes import Host, MachineProcess, start_process
from sandbox_runtime.providers.vercel.settings import MAX_LIFETIME_S
from sandbox_runtime.types import SandboxId, SandboxPaths, SnapshotRef, TerminalSize

_GONE = SandboxErrorCode.UNAVAILABLE


class Save(Protocol):
    """`Snapshots.save`."""

    async def __call__(self, machine: Machine, about: About, name: str | None) -> SnapshotRef: ...


class VercelSandbox(CommandSandbox):
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
        super().__init__(about.env)
        self._machine = machine
        self._about = about
        self._save = save
        self._end = end
        self._forget = forget
        self._host = Host(
            session=machine.session,
            limits=about.limits,
            beat_s=beat_s,
            is_closed=lambda: self._destroyed,
        )
        self._saved: SnapshotRef | None = None

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
    async def open_terminal(
        self, argv: Sequence[str], *, size: TerminalSize, env: Mapping[str, str] | None = None
    ) -> Terminal:
        process = await self._run(on_terminal(argv, size=size, env={**self._env, **(env or {})}))
        return terminal_of(process)

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
            if self._saved is not None and self._saved.name == name and not self._destroyed:
                return self._saved  # nothing can have changed since
            # Failed, it may be half saved, or stopped: only `destroy` is of use.
            async with self._saving(saved="was saved", failed="could not be saved"):
                await self._kill_all()
                self._saved = await self._save(self._machine, self._about, name)
            return self._saved

    @override
    async def _remove(self) -> None:
        if self._saved is None:
            await self._end(self.id)
        self._forget(self.id)
        self._removed = True
        await self._give_up_processes()

    @override
    async def _start(self, command: Command) -> MachineProcess:
        return await start_process(self._host, command)


def _remaining_s(started_ms: int | None, limit: object) -> float:
    """Of its life; 0 where the service does not say."""
    seconds = getattr(limit, "total_seconds", None)
    if started_ms is None or seconds is None:
        return 0.0
    return max(0.0, started_ms / 1000 + float(seconds()) - time.time())
