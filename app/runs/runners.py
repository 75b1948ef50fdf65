"""Who answers a run and where: the room of its provider, and there the runner of its agent."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from agent_scripts.events import TurnFinished
from app.errors import mapped_errors
from app.log import get_logger
from app.runs.attempt import Attempt
from app.runs.choice import AgentOffer, Choice, Offers
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
    """Of the default agent."""
    runner_of: Callable[[str], AgentRunner] | None = None
    """Of any agent that may be asked for, made on first use; None = there is but the default one."""
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
        group: TaskGroup,
    ) -> None:
        """`group` outlives this."""
        self._default = default
        self._open_room = open_room
        self._policy = policy
        self._group = group
        self._others: dict[str, _Other] = {}
        self._closing = asyncio.Event()

    def pools(self) -> Sequence[PoolFigures]:
        """Of the rooms that are open and have one."""
        rooms = (self._default, *(other.room for other in self._others.values()))
        return [room.pool.figures for room in rooms if room is not None and room.pool.size > 0]

    @property
    def offers(self) -> Offers:
        """What may be asked for; the default room's agent and provider are among it."""
        agent, model, provider = self._default.runner.identity
        agents = self._policy.agents
        if agent not in agents:
            agents = {agent: AgentOffer(model=model)}
        return Offers(
            agents=agents,
            agent=agent,
            sandboxes=self._policy.sandboxes,
            provider=provider,
            is_agent_set=self._policy.is_agent_set,
            is_provider_set=self._policy.is_provider_set,
        )

    def identity(self, run: Run, choice: Choice) -> tuple[str, str, str]:
        """Agent, model and provider of a run; an attempt after a crash stays what and where it was."""
        offers = self.offers
        agent, model, provider = choice.agent.value, choice.model.value, choice.sandbox.value
        if run.provider in (offers.provider, *offers.sandboxes.values()):
            provider = run.provider
        if run.agent in offers.agents and run.model:
            agent, model = run.agent, run.model
        return agent, model, provider

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
        runner = room.runner
        if room.runner_of is not None and attempt.run.agent:
            runner = room.runner_of(attempt.run.agent)
        return await runner.execute(attempt)

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
