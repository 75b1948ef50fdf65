"""One attempt of a run: environment, sandbox, agent, its events, the end of the sandbox."""

import uuid
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial

from agent_scripts.adapter import AgentAdapter, AgentPaths, AgentSession
from agent_scripts.errors import AgentErrorCode
from agent_scripts.events import TurnFinished
from agent_scripts.supervision import following
from app.errors import ErrorCode, OrionError, mapped_errors
from app.log import get_logger
from app.runs.attempt import Attempt
from app.runs.broker_ports import ModelBroker, ModelGrant
from app.runs.changes import FileWatch
from app.runs.environment import AgentEnvironment
from app.runs.model import Resumption, Run
from app.runs.opening import WorkspaceOpener
from app.runs.own_keys import HOW_TO_CHANGE, HOW_TO_GIVE
from app.runs.places import agent_paths
from app.runs.policy import RunPolicy
from app.runs.repositories import Repositories
from app.runs.repository_work import Place, RepositoryWork, find_repository
from app.runs.resumption import ANEW, find_left_agent, repository_in, run_directory
from app.runs.session import session_id_for
from app.runs.starting import (
    AgentSettings,
    AgentStart,
    AgentStarter,
    deadline,
    key_stand_in,
)
from app.runs.waiting import UnfitSandboxError
from app.runs.workspace import AgentIdentity, Workspace
from app.runs.workspaces import Workspaces
from sandbox_runtime.errors import SandboxError
from sandbox_runtime.provider import Sandbox, SandboxProvider
from sandbox_runtime.types import (
    Capability,
)

NOT_TWICE = "it may have changed something outside its sandbox, which I must not do twice"
CALLS_PER_TURN = 9
"""An SDK tries a call three times, and the agent begins a stream that broke before its first word twice more."""

_log = get_logger(__name__)


class AgentRunner:
    """Runs attempts; holds nothing of them in between."""

    def __init__(
        self,
        *,
        provider: SandboxProvider,
        adapter: AgentAdapter,
        broker: ModelBroker,
        workspaces: Workspaces,
        settings: AgentSettings,
        policy: RunPolicy,
        repositories: Repositories | None = None,
    ) -> None:
        """`repositories`: None = there are none to work in."""
        self._repositories = repositories
        self._provider = provider
        self._adapter = adapter
        self._broker = broker
        self._workspaces = workspaces
        self._settings = settings
        self._policy = policy
        self._starter = AgentStarter(
            adapter=adapter, broker=broker, settings=settings, policy=policy
        )
        self._environment = AgentEnvironment(provider, adapter, settings.additions)
        self._opener = WorkspaceOpener(
            provider=provider,
            environment=self._environment,
            workspaces=workspaces,
            broker=broker,
            settings=settings,
            agent=adapter.name,
        )
        self.spec_to_wait = self._opener.spec_to_wait

    @property
    def identity(self) -> tuple[str, str, str]:
        """Agent, model, provider."""
        return self._adapter.name, self._settings.model, self._provider.name

    def _model(self, attempt: Attempt) -> str:
        return attempt.run.model or self._settings.model

    def _who(self, attempt: Attempt) -> AgentIdentity:
        return AgentIdentity(agent=self._adapter.name, model=self._model(attempt))

    async def prepare_environment(self) -> None:
        """Make the agent's environment, if it is not there.

        Raises:
            SandboxError: SETUP_FAILED and others; it can be tried again.
        """
        await self._environment.prepare()

    async def abandon(self, run: Run) -> None:
        """See that nothing of a run goes on that an earlier process began, and that will not be executed."""
        await self._workspaces.abandon(run)

    async def execute(self, attempt: Attempt) -> TurnFinished:
        """Run the agent on the messages until it finishes, fails, is stopped or reaches the deadline.

        Nothing of it runs when this returns, however it returns; its files are saved when it returns normally.

        Raises:
            OrionError: no sandbox, no environment, or the sandbox was lost.
            RunStoppedError: stopped before the agent had started.
        """
        with mapped_errors():
            finished = None
            await self._choose_key(attempt)
            if attempt.run.attempt > 1:
                finished = await self._follow_left_agent(attempt)
                if finished is None and attempt.run.has_outside_effect:
                    raise OrionError(ErrorCode.INTERRUPTED, NOT_TWICE)
            return finished or await self._run_turn(attempt)

    async def _choose_key(self, attempt: Attempt) -> None:
        """Raises: OrionError: REQUEST_INVALID: there is none that can be used."""
        agent, protocol = self._adapter.name, self._settings.own_key_protocol
        own = attempt.own_keys.get(protocol)
        problem = ""
        if own is None and self._settings.needs_own_key:
            problem = f"I have no key for the models of {agent}; {HOW_TO_GIVE}"
        elif own == "":
            problem = f"I cannot read your own key for {protocol} any more; {HOW_TO_CHANGE}"
        elif own and not self._has_broker(attempt):
            problem = f"your own key for {protocol} cannot be used at {self._provider.name} here, where no broker is reached; {HOW_TO_CHANGE}, or ask for another sandbox"
        if problem:
            if attempt.run.attempt > 1:
                await self.abandon(attempt.run)
            raise OrionError(ErrorCode.REQUEST_INVALID, problem)
        attempt.use_own_key(protocol if own else "")

    def _has_broker(self, attempt: Attempt) -> bool:
        """Otherwise the sandbox's network adds the operator's key by itself."""
        endpoint = self._broker.endpoint_for(session_id_for(attempt.run.thread))
        return "{relay}/broker" in endpoint.model_url

    async def _follow_left_agent(self, attempt: Attempt) -> TurnFinished | None:
        """Follow the agent that an earlier process started to its end; None = the turn must be run again."""
        finished = None
        if Capability.ATTACH in self._provider.capabilities:
            with suppress(SandboxError):  # whatever is wrong with it: there are others
                finished = await self._attach(attempt)
        attempt.resumed = Resumption.REPEATED if finished is None else Resumption.ATTACHED
        _log.info("run.resumed", attempt=attempt.run.attempt, how=attempt.resumed)
        return finished

    async def _attach(self, attempt: Attempt) -> TurnFinished | None:
        async with AsyncExitStack() as stack:
            async with attempt.stop.interrupting(), deadline(attempt):
                workspace = await stack.enter_async_context(
                    self._workspaces.attach(attempt, self._who(attempt))
                )
                if workspace is None:
                    return None
                workspace.is_usable = False  # until its agent has ended well
                sandbox = workspace.sandbox
                left = await find_left_agent(sandbox, agent_paths(sandbox.paths), attempt.run)
                if left is None:
                    return None
                work = find_repository(self._repositories, self._broker, attempt, workspace)
                directory = work.found.directory if work else ""
                watch = FileWatch(sandbox, repository=left.repository, directory=directory)
                await watch.go_on(was_empty=workspace.is_empty and not directory)
                # The token that the agent was given is good again.
                token = await stack.enter_async_context(self._open_grant(attempt, work))
                command = following(left.paths)
                await sandbox.write_files({file.path: file.data for file in command.files})
            _log.info("sandbox.attached", sandbox_id=sandbox.id)
            finished = await self._starter.execute(attempt, sandbox, left.paths, command.argv)
            if finished.error is not None and attempt.stop.user is None:
                return None  # likely what it asked the model for when the crash came
            # The end of a stopped one is not ours to see: only that of its sandbox is certain.
            workspace.is_usable = attempt.stop.user is None
            workspace.agent_session_id = finished.agent_session_id or workspace.agent_session_id
            await self._conclude(attempt, workspace, watch, finished)
            if work is not None:
                await work.publish(attempt, Place(workspace, left.paths, token), finished)
            return finished

    async def _run_turn(self, attempt: Attempt) -> TurnFinished:
        try:
            return await self._turn(attempt, may_have_waited=True)
        except UnfitSandboxError as exc:
            _log.warning("sandbox.unfit", sandbox_id=attempt.sandbox_id, reason=str(exc))
        return await self._turn(attempt, may_have_waited=False)

    async def _turn(self, attempt: Attempt, *, may_have_waited: bool) -> TurnFinished:
        async with AsyncExitStack() as stack:
            async with attempt.stop.interrupting(), deadline(attempt):
                workspace = await self._opener.open(
                    attempt, stack, self._who(attempt), may_have_waited=may_have_waited
                )
                paths = _start_paths(attempt, workspace.sandbox)
                work = find_repository(self._repositories, self._broker, attempt, workspace)
                watch = FileWatch(
                    workspace.sandbox,
                    repository=repository_in(paths.run),
                    directory=work.found.directory if work else "",
                )
                token = await stack.enter_async_context(self._open_grant(attempt, work))
                place = Place(workspace, paths, token)
                if work is not None:
                    await work.clone(attempt, place)
                if self._broker.endpoint_for(workspace.session.id).headers:
                    token = await key_stand_in(workspace.sandbox) or token
            finished = await self._run_agent(attempt, workspace, watch, token, work)
            await self._conclude(attempt, workspace, watch, finished)
            if work is not None:
                await work.publish(attempt, place, finished)
            return finished

    def _open_grant(
        self, attempt: Attempt, work: RepositoryWork | None
    ) -> AbstractAsyncContextManager[str]:
        return self._broker.open_grant(
            self._grant(attempt, work),
            attempt.count_call,
            attempt.on_effect,
            attempt.spending.refusal if attempt.spending else None,
        )

    def _grant(self, attempt: Attempt, work: RepositoryWork | None) -> ModelGrant:
        return ModelGrant(
            run_id=attempt.run.id,
            models=(self._model(attempt), *self._adapter.helper_models),
            expires_at=attempt.deadline_at + timedelta(minutes=1),
            max_output_tokens=self._settings.max_output_tokens,
            max_calls=self._settings.max_turns * CALLS_PER_TURN,
            session_id=session_id_for(attempt.run.thread),
            repository=work.found.grant if work else None,
            own_key=attempt.own_keys.get(attempt.own_key_protocol, ""),
            own_key_protocol=attempt.own_key_protocol,
        )

    async def _conclude(
        self, attempt: Attempt, workspace: Workspace, watch: FileWatch, finished: TurnFinished
    ) -> None:
        attempt.report_cost(finished.cost_usd)
        has_worked = attempt.tracker.steps > 0
        is_in_repository = bool(attempt.repo or workspace.session.repo)
        workspace.has_changed = has_worked or self._adapter.has_sessions or is_in_repository
        if has_worked:
            attempt.enter("Looking at the changes")
            attempt.difference = await watch.end()

    async def _run_agent(
        self,
        attempt: Attempt,
        workspace: Workspace,
        watch: FileWatch,
        token: str,
        work: RepositoryWork | None,
    ) -> TurnFinished:
        """Start it with its memory of the thread; where that is lost, once more with the thread's history instead."""
        known = workspace.agent_session_id
        session = None
        if self._adapter.has_sessions:
            session = AgentSession(id=known or str(uuid.uuid4()), resume=bool(known))
        paths = _start_paths(attempt, workspace.sandbox)
        waiting = workspace.waiting
        if waiting is not None:
            paths = replace(paths, waiting=waiting.directory)
        start = AgentStart(
            paths=paths,
            token=token,
            session=session,
            waiting=waiting,
            may_be_gone=workspace.may_be_gone,
            directory=work.found.directory if work else "",
            git_environment=work.git_environment(token) if work else {},
        )
        look = partial(watch.begin, is_empty=workspace.is_empty and work is None)
        finished = await self._starter.start(attempt, workspace.sandbox, start, look)
        if known and _has_no_memory(finished, attempt):
            _log.warning("agent.session_lost", agent=self._adapter.name, code=finished.error)
            known = ""
            start = replace(
                start,
                paths=replace(start.paths, run=f"{start.paths.run}{ANEW}", waiting=""),
                session=AgentSession(id=str(uuid.uuid4()), resume=False),
                waiting=None,
                may_be_gone=False,
            )
            finished = await self._starter.start(attempt, workspace.sandbox, start, _nothing)
        given = start.session.id if start.session and self._adapter.takes_session_id else ""
        workspace.agent_session_id = finished.agent_session_id or known or given
        return finished


async def _nothing() -> None:
    pass


def _has_no_memory(finished: TurnFinished, attempt: Attempt) -> bool:
    """Its session is not there; or is damaged, so that it failed before it did or said anything."""
    has_failed_at_once = (
        finished.error is AgentErrorCode.EXECUTION_FAILED
        and not finished.text
        and attempt.tracker.steps == 0
        and attempt.stop.user is None
    )
    return has_failed_at_once or finished.error is AgentErrorCode.SESSION_NOT_FOUND


def _start_paths(attempt: Attempt, sandbox: Sandbox) -> AgentPaths:
    paths = agent_paths(sandbox.paths)
    run = attempt.run
    return replace(paths, run=run_directory(paths, run, attempt=run.attempt))
