"""Joins a provider with what runs agents in its sandboxes: for the default one, and for those that messages ask for."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from agent_scripts.adapter import AgentAdapter
from agent_scripts.registry import create_adapter
from app.brokerage.doors import DoorBroker
from app.brokers import broker_for
from app.config import Settings
from app.parts import create_repositories, create_runner, pool_size
from app.providers import create_named
from app.redaction import Masker
from app.runs.execution import AgentRunner
from app.runs.policy import RunPolicy
from app.runs.pool import WarmPool
from app.runs.ports import Clock
from app.runs.runners import Room
from app.runs.session import Session, SessionStore
from app.runs.visits import Visits
from app.runs.workspaces import Workspaces
from sandbox_runtime.provider import SandboxProvider
from sandbox_runtime.task_group import open_task_group
from sandbox_runtime.types import Capability, SandboxId


@dataclass(frozen=True, slots=True, kw_only=True)
class Rooms:
    """What all rooms share."""

    settings: Settings
    sessions: SessionStore
    policy: RunPolicy
    clock: Clock
    masker: Masker
    broker: DoorBroker
    adapter: AgentAdapter | None
    """In place of all others."""
    left: Sequence[Session]
    """In whose sandboxes a run of an earlier process may go on."""

    def furnish(self, provider: SandboxProvider) -> Room:
        """A room at a provider that is open."""
        is_remote = Capability.REMOTE in provider.capabilities
        adapter = self._adapter(self.settings.orion_agent)
        broker = broker_for(self.settings, self.broker, adapter.protocol, is_remote=is_remote)
        pool = WarmPool(
            provider=provider,
            adapter=adapter,
            broker=broker,
            size=pool_size(self.settings, is_remote=is_remote),
        )
        workspaces = Workspaces(
            provider=provider,
            store=self.sessions,
            policy=self.policy,
            clock=self.clock,
            mask=self.masker.mask,
            visits=Visits(self.settings.visits_dir),
            mount=self.settings.mount,
            elsewhere=partial(create_named, self.settings),
            on_gone=self.broker.close,
            pool=pool,
        )
        repositories = create_repositories(
            self.settings, sessions=self.sessions, mask=self.masker.mask
        )
        runners: dict[str, AgentRunner] = {}

        def runner_of(agent: str) -> AgentRunner:
            if agent not in runners:
                own = self._adapter(agent)
                runners[agent] = create_runner(
                    self.settings,
                    provider=provider,
                    broker=broker_for(
                        self.settings, self.broker, own.protocol, is_remote=is_remote
                    ),
                    workspaces=workspaces,
                    adapter=own,
                    repositories=repositories,
                )
            return runners[agent]

        return Room(
            name=provider.name,
            runner=runner_of(self.settings.orion_agent),
            runner_of=runner_of,
            workspaces=workspaces,
            pool=pool,
        )

    def _adapter(self, agent: str) -> AgentAdapter:
        return self.adapter or create_adapter(agent)

    @asynccontextmanager
    async def open(self, name: str) -> AsyncIterator[Room]:
        """A room at another provider, for the length of the block.

        Raises:
            SandboxError: it cannot be used.
        """
        async with create_named(self.settings, name) as provider, open_task_group() as group:
            await provider.sweep([SandboxId(session.sandbox_id) for session in self.left])
            room = self.furnish(provider)
            work = (
                room.workspaces.close_forever(),
                room.pool.fill_forever(room.runner.spec_to_wait),
            )
            async with room.pool.open():
                tasks = [group.create_task(one, name=f"room-{name}") for one in work]
                try:
                    yield room
                finally:
                    for task in tasks:
                        task.cancel()
