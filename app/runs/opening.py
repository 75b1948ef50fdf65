"""Where an attempt works: the sandbox that it is given, made from the agent's environment, with its thread's workspace."""

from collections.abc import Mapping
from contextlib import AsyncExitStack

from app.log import get_logger
from app.runs.attempt import Attempt
from app.runs.broker_ports import ModelBroker
from app.runs.environment import AgentEnvironment
from app.runs.places import POOL_LABEL
from app.runs.session import SessionId, session_id_for
from app.runs.starting import SAVING_S, AgentSettings
from app.runs.workspace import AgentIdentity, Workspace
from app.runs.workspaces import Workspaces
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.provider import SandboxProvider
from sandbox_runtime.types import BrokeredNetwork, OpenNetwork, SandboxSpec, SnapshotRef

_log = get_logger(__name__)


class WorkspaceOpener:
    """Holds nothing of a run in between."""

    def __init__(
        self,
        *,
        provider: SandboxProvider,
        environment: AgentEnvironment,
        workspaces: Workspaces,
        broker: ModelBroker,
        settings: AgentSettings,
        agent: str,
    ) -> None:
        self._provider = provider
        self._environment = environment
        self._workspaces = workspaces
        self._broker = broker
        self._settings = settings
        self._agent = agent

    async def spec_to_wait(self, door: SessionId, wait_s: float) -> SandboxSpec | None:
        """Of a sandbox that may wait so long for a run of any thread, which then lets it live on; None without an environment."""
        snapshot = await self._environment.find()
        if snapshot is None:
            return None
        lifetime_s = wait_s + SAVING_S
        return self._spec(snapshot, door, lifetime_s=lifetime_s, labels={POOL_LABEL: "true"})

    async def open(
        self,
        attempt: Attempt,
        stack: AsyncExitStack,
        who: AgentIdentity,
        *,
        may_have_waited: bool,
    ) -> Workspace:
        """In the agent's environment; one that its provider has let expire is made once more.

        Raises:
            SandboxError: never UNAVAILABLE: nothing was there that could be lost.
        """
        try:
            return await self._open(attempt, stack, who, may_have_waited=may_have_waited)
        except SandboxError as exc:
            if exc.code is not SandboxErrorCode.UNAVAILABLE:
                raise
            raise SandboxError(SandboxErrorCode.CREATE_FAILED, str(exc)) from exc

    async def _open(
        self,
        attempt: Attempt,
        stack: AsyncExitStack,
        who: AgentIdentity,
        *,
        may_have_waited: bool,
    ) -> Workspace:
        snapshot = await self._environment.restore(attempt)
        try:
            return await stack.enter_async_context(
                self._workspaces.open(
                    attempt,
                    self._spec_of(attempt, snapshot),
                    who,
                    may_have_waited=may_have_waited,
                )
            )
        except SandboxError as exc:
            if exc.code is not SandboxErrorCode.NOT_FOUND:
                raise
            _log.warning("environment.lost", snapshot=snapshot.id, reason=str(exc))
        await self._provider.delete_snapshot(snapshot.id)
        snapshot = await self._environment.restore(attempt)
        return await stack.enter_async_context(
            self._workspaces.open(attempt, self._spec_of(attempt, snapshot), who)
        )

    def _spec_of(self, attempt: Attempt, snapshot: SnapshotRef) -> SandboxSpec:
        return self._spec(
            snapshot,
            session_id_for(attempt.run.thread),
            lifetime_s=attempt.remaining_s() + SAVING_S,
            labels={"orion.run": attempt.run.id},
        )

    def _spec(
        self,
        snapshot: SnapshotRef,
        session_id: SessionId,
        *,
        lifetime_s: float,
        labels: Mapping[str, str],
    ) -> SandboxSpec:
        endpoint = self._broker.endpoint_for(session_id)
        return SandboxSpec(
            snapshot_id=snapshot.id,
            work_dir=self._settings.work_dir,
            network=OpenNetwork(endpoint=endpoint.address)
            if self._settings.vendor_key
            else BrokeredNetwork(endpoint=endpoint.address, headers=endpoint.headers),
            lifetime_s=lifetime_s,
            labels={"orion.managed": "true", "orion.agent": self._agent, **labels},
            limits=self._settings.sandbox_limits,
        )
