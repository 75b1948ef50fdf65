"""One sandbox in a microVM: commands, files, snapshot, end."""

import time
from collections.abc import Callable

from typing_extensions import override

from sandbox_runtime.command import Command
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.providers.inside_scripts import RunnerSandbox
from sandbox_runtime.providers.vercel import MAX_LIFETIME_S
from sandbox_runtime.providers.vercel.client import VercelClient, map_errors
from sandbox_runtime.providers.vercel.machine import ENVIRONMENT, HOME, RUN, WORK, About, Machine
from sandbox_runtime.providers.vercel.processes import Host, MachineProcess, start_process
from sandbox_runtime.providers.vercel.snapshots import Snapshots
from sandbox_runtime.types import SandboxId, SandboxPaths, SnapshotRef

_GONE = SandboxErrorCode.UNAVAILABLE


class VercelSandbox(RunnerSandbox):
    """Made by `VercelProvider.create` and `VercelProvider.attach`."""

    def __init__(
        self,
        machine: Machine,
        about: About,
        *,
        client: VercelClient,
        snapshots: Snapshots,
        beat_s: float,
        forget: Callable[[SandboxId], None],
    ) -> None:
        super().__init__(
            SandboxId(machine.handle.name),
            paths=SandboxPaths(
                work=WORK, home=HOME, run=RUN, environment=ENVIRONMENT, broker=about.broker
            ),
            env=about.env,
            container_name=machine.handle.name,
        )
        self._machine = machine
        self._about = about
        self._client = client
        self._snapshots = snapshots
        self._forget = forget
        self._host = Host(
            session=machine.session,
            limits=about.limits,
            beat_s=beat_s,
            is_closed=lambda: self._destroyed,
        )
        self._saved: SnapshotRef | None = None

    @override
    async def extend(self, lifetime_s: float) -> None:
        await super().extend(lifetime_s)
        self._require_open()
        if lifetime_s > MAX_LIFETIME_S:
            raise SandboxError(
                SandboxErrorCode.LIMIT_REACHED,
                f"a sandbox at Vercel lives {MAX_LIFETIME_S:g} s at most, not {lifetime_s:g} s",
            )
        async with map_errors(
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
                self._saved = await self._snapshots.save(self._machine, self._about, name)
            return self._saved

    @override
    async def _remove(self) -> None:
        if self._saved is None:
            await self._client.end_sandbox(self.id)
        self._forget(self.id)
        self._removed = True
        await self._give_up_processes()

    @override
    async def _start(self, command: Command) -> MachineProcess:
        return await start_process(self._host, command)


def _remaining_s(started_ms: int | None, limit: object) -> float:
    """Returns what is left of its life; 0 where the service does not say."""
    seconds = getattr(limit, "total_seconds", None)
    if started_ms is None or seconds is None:
        return 0.0
    return max(0.0, started_ms / 1000 + float(seconds()) - time.time())
