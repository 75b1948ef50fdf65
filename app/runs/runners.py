"""Which sandboxes a run is given: the message's wish, else the thread's earlier one, else the channel's, else the default."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from agent_scripts.events import TurnFinished
from app.errors import mapped_errors
from app.log import get_logger
from app.runs.attempt import Attempt
from app.runs.execution import AgentRunner
from app.runs.model import Run
from app.runs.policy import RunPolicy
from app.runs.pool import WarmPool
from app.runs.pool_figures import PoolFigures
from app.runs.session import session_id_for
from app.runs.workspaces import Workspaces
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.task_group import TaskGroup

OPEN_TIMEOUT_S = 60.0
"""For a provider to be opened, what earlier processes left there removed."""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """One provider, open, with what runs agents there."""

    name: str
    runner: AgentRunner
    workspaces: Workspaces
    pool: WarmPool


OpenRoom = Callable[[str], AbstractAsyncContextManager[Room]]
"""By the provider's name; SandboxError when it cannot be used."""


@dataclass(slots=True)
class _Other:
    """A room besides the default one; each attempt to open it has a task that owns it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    room: Room | None = None


class Runners:
    """The default room is open as long as this is; the others from their first run on, until `close`."""

    def __init__(
        self,
        default: Room,
        *,
        open_room: OpenRoom,
        policy: RunPolicy,
        channels: Mapping[str, str],
        group: TaskGroup,
    ) -> None:
        """`channels`: words of `options.SANDBOX_WORDS` by the ids of channels. `group` outlives this."""
        self._default = default
        self._open_room = open_room
        self._policy = policy
        self._channels = channels
        self._group = group
        self._others: dict[str, _Other] = {}
        self._closing = asyncio.Event()

    def pools(self) -> Sequence[PoolFigures]:
        """Of the rooms that are open and have one."""
        rooms = (self._default, *(other.room for other in self._others.values()))
        return [room.pool.figures for room in rooms if room is not None and room.pool.size > 0]

    def identity(self, run: Run, *, earlier: Sequence[Run]) -> tuple[str, str, str]:
        """Agent, model and provider of a run; `earlier`: those of its thread, in order. An attempt after a crash stays where it was."""
        agent, model, default = self._default.runner.identity
        if run.provider in (default, *self._policy.sandboxes.values()):
            return agent, model, run.provider
        wishes = [other.request.options.sandbox for other in reversed(earlier)]
        channel = self._channels.get(run.request.channel, "")
        for word in (run.request.options.sandbox, *wishes, channel):
            if word in self._policy.sandboxes:
                return agent, model, self._policy.sandboxes[word]
        return agent, model, default

    async def execute(self, attempt: Attempt) -> TurnFinished:
        """`AgentRunner.execute` in the room that the run's record names.

        Raises:
            OrionError: also when that provider cannot be used.
            RunStoppedError
        """
        with mapped_errors():
            room = await self._get(attempt.run.provider)
            session_id = session_id_for(attempt.run.thread)
            for other in (self._default, *(one.room for one in self._others.values())):
                if other is not None and other is not room:
                    await other.workspaces.leave(session_id)
        return await room.runner.execute(attempt)

    async def abandon(self, run: Run) -> None:
        """See that nothing of a run goes on that an earlier process began; a failure to is logged."""
        try:
            room = await self._get(run.provider)
        except SandboxError as exc:
            _log.warning("sandbox.stop_failed", run_id=run.id, reason=str(exc))
        else:
            await room.runner.abandon(run)

    async def open_quietly(self, name: str) -> None:
        """Open a room before its first run, for what was left there; a failure is logged."""
        try:
            await self._get(name)
        except SandboxError as exc:
            _log.warning("sandbox.unusable", provider=name, reason=str(exc))

    def close(self) -> None:
        """Let go of all rooms but the default one; their tasks end when their sandboxes have."""
        self._closing.set()

    async def _get(self, name: str) -> Room:
        if name in ("", self._default.name):
            return self._default
        other = self._others.setdefault(name, _Other())
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S), other.lock:
                if other.room is None:
                    other.room = await self._open(name)
                return other.room
        except SandboxError as exc:
            raise SandboxError(
                SandboxErrorCode.CREATE_FAILED, f"{name} cannot be used: {exc}"
            ) from exc
        except TimeoutError as exc:
            raise SandboxError(
                SandboxErrorCode.CREATE_FAILED,
                f"{name} cannot be used: not open within {OPEN_TIMEOUT_S:g} s",
            ) from exc

    async def _open(self, name: str) -> Room:
        opened: asyncio.Future[Room] = asyncio.get_running_loop().create_future()
        task = self._group.create_task(self._keep(name, opened), name=f"room-{name}")
        try:
            return await opened
        except BaseException:
            task.cancel()
            raise

    async def _keep(self, name: str, opened: asyncio.Future[Room]) -> None:
        """Open a room and own it: it is closed by the task that opened it."""
        try:
            async with self._open_room(name) as room:
                opened.set_result(room)
                _log.info("sandbox.opened", provider=name)
                await self._closing.wait()
        except Exception as exc:
            if opened.done():
                raise
            opened.set_exception(exc)
