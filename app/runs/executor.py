"""One attempt of a run: environment, sandbox, agent, its events, the end of the sandbox."""

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial

from agent_scripts.adapter import AgentAdapter, AgentPaths
from agent_scripts.events import AgentError, TurnFinished
from app.egress.hosts import HostEntry
from app.errors import ErrorCode, OrionError, mapped_errors
from app.log import get_logger
from app.runs.agent_process import (
    ANEW,
    AgentProcess,
    AgentStart,
    Recall,
    deadline,
    find_running_agent,
    key_stand_in,
    remember,
    repository_in,
    start_paths,
)
from app.runs.approvals import ask_for_own_key
from app.runs.attempt import Attempt, RecalledStart
from app.runs.broker import ModelBroker, ModelGrant
from app.runs.environment import (
    SAVING_S,
    AgentEnvironment,
    AgentSettings,
    NetworkFact,
    RunFacts,
    render_prompt,
)
from app.runs.files import OUTBOX, FileWatch, bring_files, people_directory, share_files
from app.runs.model import Assignment, Checkpoint, Resumption, Run
from app.runs.policy import RunPolicy
from app.runs.ports import HOW_TO_CHANGE, HOW_TO_GIVE
from app.runs.repository.checkout import Checkout, GitContext, Repositories, find_checkout
from app.runs.repository.preparation import Ground
from app.runs.sandboxes import POOL_LABEL, RUN_LABEL, agent_paths
from app.runs.session import SessionId, session_id_for
from app.runs.stop import RunStoppedError
from app.runs.warm_pool import UnhealthySandboxError, WaitingAgent
from app.runs.workspace import Workspace, Workspaces
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.provider import SandboxProvider
from sandbox_runtime.types import Capability, SandboxSpec, SnapshotId, SnapshotRef

_log = get_logger(__name__)
NOT_TWICE = "it may have changed something outside its sandbox, which I must not do twice"
ATTACH_TIMEOUT_S = 30.0
"""For a later slice to find its sandbox."""
CALLS_PER_TURN = 9
"""An SDK tries a call three times, and the agent begins a stream that broke before its first word twice more."""


class AgentRunner:
    """Runs attempts of one agent at one provider."""

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
        self._process = AgentProcess(
            adapter=adapter, broker=broker, settings=settings, policy=policy
        )
        self._environment = AgentEnvironment(provider, adapter, settings.additions)

    @property
    def assignment(self) -> Assignment:
        """Returns who answers a run that names nothing else."""
        return Assignment(
            provider=self._provider.name, agent=self._adapter.name, model=self._settings.model
        )

    def _who(self, attempt: Attempt) -> Assignment:
        return replace(
            self.assignment,
            model=self._process.model(attempt),
            is_chosen=bool(attempt.choice.chosen_model),
        )

    async def prepare_environment(self) -> None:
        """Makes the agent's environment, if it is not there. Raises: SandboxError: SETUP_FAILED and others; it can be tried again."""
        await self._environment.prepare()

    async def abandon(self, run: Run) -> None:
        await self._workspaces.abandon(run)

    async def execute(self, attempt: Attempt) -> TurnFinished | Checkpoint | None:
        """Runs the agent on the messages until it finishes, fails, is stopped or reaches the deadline.

        Nothing of it runs when this returns a turn, or raises; its files are saved when it returns normally. A checkpoint:
        the slice has ended, and it works on. None: what an earlier slice left is lost.

        Raises:
            OrionError: no sandbox, no environment, or the sandbox was lost.
            RunStoppedError: stopped before the agent had started.
        """
        with mapped_errors():
            finished: TurnFinished | Checkpoint | None = None
            if Capability.ATTACH not in self._provider.capabilities:
                attempt.hand_over = asyncio.Event()  # nobody else could go on with it
            try:
                await self._choose_key(attempt)
                if attempt.checkpoint is not None:
                    return await self._go_on(attempt, attempt.checkpoint)
                if attempt.run.attempt > 1:
                    finished = await self._follow_running_agent(attempt)
            except (RunStoppedError, OrionError, SandboxError, TimeoutError):
                if attempt.run.attempt > 1 or attempt.checkpoint is not None:
                    await attempt.may_act()
                    await self.abandon(attempt.run)  # it ends here, and may not have been reached
                raise
            if finished is None and attempt.run.attempt > 1 and attempt.run.has_outside_effect:
                raise OrionError(ErrorCode.INTERRUPTED, NOT_TWICE)
            if finished is not None:
                return finished
            try:
                return await self._turn(attempt, may_have_waited=True)
            except UnhealthySandboxError as exc:
                _log.warning("sandbox.unfit", sandbox_id=attempt.sandbox_id, reason=str(exc))
            return await self._turn(attempt, may_have_waited=False)

    async def _choose_key(self, attempt: Attempt) -> None:
        """Raises: OrionError: REQUEST_INVALID: there is none that can be used."""
        agent, protocol = self._adapter.name, self._settings.own_key_protocol
        own, problem = attempt.asker.own_keys.get(protocol), ""
        if own is None and self._settings.needs_own_key:
            problem = f"I have no key for the models of {agent}; {HOW_TO_GIVE}"
        elif own == "":
            problem = f"I cannot read your own key for {protocol} any more; {HOW_TO_CHANGE}"
        elif own and not self._has_broker(attempt):
            problem = f"your own key for {protocol} cannot be used at {self._provider.name} here, where no broker is reached; {HOW_TO_CHANGE}, or ask for another sandbox"
        if problem:
            raise OrionError(ErrorCode.REQUEST_INVALID, problem)
        await ask_for_own_key(attempt, protocol if own else "")
        attempt.cost.use_own_key(protocol if own else "")

    def _has_broker(self, attempt: Attempt) -> bool:
        """Whether a broker is reached; otherwise the sandbox's network adds the operator's key by itself."""
        return self._broker.endpoint_for(session_id_for(attempt.run.thread)).has_broker

    async def _follow_running_agent(self, attempt: Attempt) -> TurnFinished | Checkpoint | None:
        """Follows the agent that an earlier process started to its end; None = the turn must be run again."""
        finished = None
        attempt.resumed = Resumption.ATTACHED
        if Capability.ATTACH in self._provider.capabilities:
            try:
                finished = await self._attach(attempt)
            except SandboxError as exc:  # whatever is wrong with it: there are others
                _log.info("run.not_attached", reason=str(exc))
        if finished is None:
            attempt.resumed = Resumption.REPEATED
            await self._workspaces.end_earlier(attempt.run)
        _log.info("run.resumed", attempt=attempt.run.attempt, how=attempt.resumed)
        return finished

    async def _attach(self, attempt: Attempt) -> TurnFinished | Checkpoint | None:
        async with AsyncExitStack() as stack:
            async with attempt.stop.interrupt_on_stop(), deadline(attempt):
                workspace = await stack.enter_async_context(
                    self._workspaces.attach(attempt, self._who(attempt))
                )
                if workspace is None:
                    return None
                workspace.is_usable = False  # until its agent has ended well
                sandbox = workspace.sandbox
                running = await find_running_agent(sandbox, agent_paths(sandbox.paths), attempt.run)
                if running is None:
                    return None
                # The token that the agent was given is good again.
                turn = await self._take_up(attempt, stack, workspace, running.repository)
            _log.info("sandbox.attached", sandbox_id=sandbox.id)
            attempt.enter("Thinking")
            attempt.agent_started_at = attempt.time.now
            attempt.cost.begin_start()
            return await self._follow_attached(attempt, turn, running.paths)

    async def _follow_attached(
        self, attempt: Attempt, turn: "_Turn", paths: AgentPaths
    ) -> TurnFinished | Checkpoint | None:
        """Follows an agent whose host crashed; None = the turn must be run again."""
        workspace = turn.workspace
        finished = await self._process.follow(attempt, workspace.sandbox, paths)
        if finished is None:
            start = RecalledStart(paths=paths, is_last=True, session_id=None, problem="")
            return self._leave(attempt, turn, start)
        if finished.error is not None and attempt.stop.user is None:
            workspace.is_usable = False
            return None  # likely what it asked the model for when the crash came
        # The end of a stopped one is not ours to see: only that of its sandbox is certain.
        workspace.is_usable = attempt.stop.user is None
        remember(workspace, attempt, finished)
        await turn.watch.go_on(was_empty=workspace.is_empty and turn.work is None)
        return await self._end_turn(attempt, turn, finished, paths)

    async def _go_on(
        self, attempt: Attempt, checkpoint: Checkpoint
    ) -> TurnFinished | Checkpoint | None:
        """Goes on with the agent that an earlier slice left; None = its sandbox is gone, or it failed as its broker went: the turn must be run again."""
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(ATTACH_TIMEOUT_S):
                    workspace = await stack.enter_async_context(
                        self._workspaces.attach(attempt, self._who(attempt))
                    )
            except (SandboxError, TimeoutError) as exc:
                if attempt.remaining_s <= 0 or attempt.stop.user is not None:
                    raise
                _log.warning("agent.connection_lost", reason=str(exc))
                return checkpoint
            if workspace is None:
                return None
            paths = replace(
                agent_paths(workspace.sandbox.paths),
                run=checkpoint.directory,
                waiting=checkpoint.scripts,
            )
            repository = repository_in(checkpoint.directory.removesuffix(ANEW))
            turn = await self._take_up(attempt, stack, workspace, repository)
            if checkpoint.resumed is Resumption.ATTACHED:
                return await self._follow_attached(attempt, turn, paths)
            turn.recall.restore(checkpoint)
            return await self._go_on_with(attempt, turn, paths, checkpoint)

    async def _go_on_with(
        self, attempt: Attempt, turn: "_Turn", paths: AgentPaths, checkpoint: Checkpoint
    ) -> TurnFinished | Checkpoint | None:
        workspace = turn.workspace
        finished = await self._process.follow(attempt, workspace.sandbox, paths)
        start = self._start(attempt, turn, paths)
        if finished is None:
            return self._leave(attempt, turn, turn.recall.recalled(start))
        if finished.error is not None and checkpoint.was_handed_over and attempt.stop.user is None:
            workspace.is_usable = False
            return None  # likely what it asked the model for when that process ended
        # The end of one that was not seen to end is not certain: only that of its sandbox is.
        workspace.is_usable = attempt.has_exited
        turn.recall.take(finished)
        token = turn.token
        if not turn.recall.is_over:
            await attempt.complete_conversation()
            async with attempt.stop.interrupt_on_stop(), deadline(attempt):
                await self._bring_files(attempt, workspace, turn.work)
            turn.token = await self._token_inside(workspace, token)
            start = self._start(attempt, turn, paths)
        left = await self._run_starts(attempt, turn, turn.recall.further_starts(start))
        if left is not None:
            return left
        turn.token = token
        await turn.watch.go_on(was_empty=workspace.is_empty and turn.work is None)
        return await self._end_turn(attempt, turn, turn.recall.finished, paths)

    async def _take_up(
        self, attempt: Attempt, stack: AsyncExitStack, workspace: Workspace, repository: str
    ) -> "_Turn":
        """Takes up a turn that was begun earlier, in the same sandbox, with the grant that it had."""
        work = find_checkout(
            self._repositories, attempt, workspace, self._ground(workspace.environment_id)
        )
        directory = work.found.directory if work else ""
        return _Turn(
            workspace=workspace,
            work=work,
            watch=FileWatch(
                workspace.sandbox,
                repository=repository,
                directory=directory,
                people=self._people_directory(workspace, work),
            ),
            recall=Recall(attempt, workspace, self._adapter),
            token=await stack.enter_async_context(self._open_grant(attempt, work)),
        )

    async def _turn(self, attempt: Attempt, *, may_have_waited: bool) -> TurnFinished | Checkpoint:
        async with AsyncExitStack() as stack:
            async with attempt.stop.interrupt_on_stop(), deadline(attempt):
                workspace = await self._open_workspace(
                    attempt, stack, may_have_waited=may_have_waited
                )
                paths = start_paths(attempt, workspace.sandbox)
                work = find_checkout(
                    self._repositories, attempt, workspace, self._ground(workspace.environment_id)
                )
                watch = FileWatch(
                    workspace.sandbox,
                    repository=repository_in(paths.run),
                    directory=work.found.directory if work else "",
                    people=self._people_directory(workspace, work),
                )
                has_files = await self._bring_files(attempt, workspace, work)
                if work is not None:  # which decides what the agent may write there
                    async with self._open_grant(attempt, work) as token:
                        context = GitContext(workspace=workspace, paths=paths, token=token)
                        await work.clone(attempt, context)
                turn = _Turn(
                    workspace=workspace,
                    work=work,
                    watch=watch,
                    has_files=has_files,
                    recall=Recall(attempt, workspace, self._adapter),
                    token=await stack.enter_async_context(self._open_grant(attempt, work)),
                )
                token = turn.token
                turn.token = await self._token_inside(workspace, token)
            if workspace.waiting is not None:
                paths = replace(paths, waiting=workspace.waiting.directory)
            start = self._start(attempt, turn, paths, waiting=workspace.waiting)
            left = await self._run_starts(attempt, turn, turn.recall.starts(start))
            if left is not None:
                return left
            turn.token = token
            return await self._end_turn(attempt, turn, turn.recall.finished, paths)

    async def _run_starts(
        self, attempt: Attempt, turn: "_Turn", starts: Iterable[AgentStart]
    ) -> Checkpoint | None:
        """Starts the agent until it has run the turn, with or without its memory; a checkpoint = the slice ended before."""
        workspace = turn.workspace
        is_empty = workspace.is_empty and turn.work is None and not turn.has_files
        is_cloned = turn.work is not None and turn.work.is_new
        look = partial(turn.watch.begin, is_empty=is_empty, is_cloned=is_cloned)
        for start in starts:
            try:
                argv = await self._process.prepare(attempt, workspace.sandbox, start, look)
            except AgentError as exc:  # nothing was started
                turn.recall.take_refusal(exc)
                continue
            finished = await self._process.follow(
                attempt, workspace.sandbox, start.paths, argv, start.waiting
            )
            if finished is None:
                return self._leave(attempt, turn, turn.recall.recalled(start))
            turn.recall.take(finished)
        return None

    def _leave(self, attempt: Attempt, turn: "_Turn", start: RecalledStart) -> Checkpoint:
        """Leaves the agent at work, with sandbox and grant, to the next slice."""
        workspace = turn.workspace
        workspace.is_left = True
        self._broker.keep(attempt.run.id)
        return attempt.leave(
            start, environment_id=workspace.environment_id, is_new=workspace.is_new
        )

    async def _end_turn(
        self,
        attempt: Attempt,
        turn: "_Turn",
        finished: TurnFinished,
        paths: AgentPaths | None = None,
    ) -> TurnFinished:
        workspace, work = turn.workspace, turn.work
        await self._conclude(attempt, workspace, turn.watch)
        if work is not None:
            paths = paths or start_paths(attempt, workspace.sandbox)
            context = GitContext(workspace=workspace, paths=paths, token=turn.token)
            await work.publish(attempt, context, finished)
        if finished.error is None and attempt.stop.user is None:
            cwd = work.found.directory if work else workspace.sandbox.paths.work
            people = self._people_directory(workspace, work)
            finished = await share_files(
                attempt, workspace.sandbox, finished, work=people, cwd=cwd, limits=self._policy
            )
        return finished

    async def _bring_files(
        self, attempt: Attempt, workspace: Workspace, work: Checkout | None
    ) -> bool:
        directory = self._people_directory(workspace, work)
        return await bring_files(attempt, workspace.sandbox, work=directory, limits=self._policy)

    def _people_directory(self, workspace: Workspace, work: Checkout | None) -> str:
        is_mounted = bool(self._settings.work_dir or workspace.session.mount_dir)
        checkout = work.found.directory if work else ""
        return people_directory(workspace.sandbox.paths, is_mounted=is_mounted, checkout=checkout)

    async def _token_inside(self, workspace: Workspace, token: str) -> str:
        """Returns what the agent is given as its token: where the network adds the key, the text that it replaces."""
        if self._broker.endpoint_for(workspace.session.id).headers:
            return await key_stand_in(workspace.sandbox) or token
        return token

    async def spec_to_wait(self, endpoint_id: SessionId, wait_s: float) -> SandboxSpec | None:
        """Describes a sandbox that may wait so long for a run of any thread, which then lets it live on; None without an environment."""
        snapshot = await self._environment.find()
        if snapshot is None:
            return None
        lifetime_s = wait_s + SAVING_S
        hosts, labels = self._policy.hosts.everywhere, {POOL_LABEL: "true"}
        return self._spec(snapshot, endpoint_id, hosts, lifetime_s=lifetime_s, labels=labels)

    async def _open_workspace(
        self, attempt: Attempt, stack: AsyncExitStack, *, may_have_waited: bool
    ) -> Workspace:
        """Opens one in the agent's environment, which is made once more when its provider has let it expire. Raises: SandboxError: never UNAVAILABLE: nothing was there that could be lost."""
        try:
            snapshot = await self._environment.restore(attempt)
            try:
                return await stack.enter_async_context(
                    self._open_above(snapshot, attempt, may_have_waited=may_have_waited)
                )
            except SandboxError as exc:
                if exc.code is not SandboxErrorCode.NOT_FOUND:
                    raise
                _log.warning("environment.lost", snapshot=snapshot.id, reason=str(exc))
            await self._provider.delete_snapshot(snapshot.id)
            snapshot = await self._environment.restore(attempt)
            return await stack.enter_async_context(
                self._open_above(snapshot, attempt, may_have_waited=False)
            )
        except SandboxError as exc:
            if exc.code is not SandboxErrorCode.UNAVAILABLE:
                raise
            raise SandboxError(SandboxErrorCode.CREATE_FAILED, str(exc)) from exc

    def _open_above(
        self, snapshot: SnapshotRef, attempt: Attempt, *, may_have_waited: bool
    ) -> AbstractAsyncContextManager[Workspace]:
        spec = self._spec(
            snapshot,
            session_id_for(attempt.run.thread),
            self._hosts(attempt),
            lifetime_s=attempt.remaining_s + SAVING_S,
            labels={RUN_LABEL: attempt.run.id},
        )
        found, who = None, self._who(attempt)
        if self._repositories is not None:
            found = self._repositories.find_preparation(attempt, self._ground(snapshot.id))
        find = found.find if found else None
        return self._workspaces.open(
            attempt, spec, who, find_prepared=find, may_have_waited=may_have_waited
        )

    def _ground(self, environment_id: SnapshotId | None) -> Ground:
        limits = self._settings.sandbox_limits
        return Ground(environment_id=environment_id, broker=self._broker, limits=limits)

    def _spec(
        self,
        snapshot: SnapshotRef,
        session_id: SessionId,
        hosts: Iterable[HostEntry],
        *,
        lifetime_s: float,
        labels: Mapping[str, str],
    ) -> SandboxSpec:
        endpoint, is_open = self._broker.endpoint_for(session_id), bool(self._settings.vendor_key)
        return SandboxSpec(
            snapshot_id=snapshot.id,
            work_dir=self._settings.work_dir,
            network=endpoint.network(hosts, is_open=is_open),
            lifetime_s=lifetime_s,
            labels={"orion.managed": "true", "orion.agent": self._adapter.name, **labels},
            limits=self._settings.sandbox_limits,
        )

    def _open_grant(
        self, attempt: Attempt, work: Checkout | None
    ) -> AbstractAsyncContextManager[str]:
        grant = ModelGrant(
            run_id=attempt.run.id,
            models=(self._process.model(attempt), *self._adapter.spec.helper_models),
            expires_at=attempt.time.latest_at + timedelta(minutes=1),
            max_output_tokens=self._settings.max_output_tokens,
            max_calls=self._settings.max_turns * CALLS_PER_TURN,
            session_id=session_id_for(attempt.run.thread),
            repository=work.found.grant if work else None,
            own_key=attempt.asker.own_keys.get(attempt.cost.own_key_protocol, ""),
            own_key_protocol=attempt.cost.own_key_protocol,
            hosts=self._hosts(attempt),
            asker=attempt.run.request.owner,
        )
        return self._broker.open_grant(grant, attempt.hooks)

    def _hosts(self, attempt: Attempt) -> tuple[HostEntry, ...]:
        """Returns what its sandbox reaches beside the broker."""
        return self._policy.hosts.of(attempt.run.request.channel, attempt.choice.repo.value)

    async def _conclude(self, attempt: Attempt, workspace: Workspace, watch: FileWatch) -> None:
        has_worked = attempt.tracker.steps > 0
        is_in_repository = bool(attempt.choice.repo.value or workspace.session.repo)
        workspace.has_changed = has_worked or self._adapter.spec.has_sessions or is_in_repository
        if has_worked:
            attempt.enter("Looking at the changes")
            attempt.difference = await watch.end()

    def _start(
        self,
        attempt: Attempt,
        turn: "_Turn",
        paths: AgentPaths,
        *,
        waiting: WaitingAgent | None = None,
    ) -> AgentStart:
        workspace, work, token = turn.workspace, turn.work, turn.token
        return AgentStart(
            paths=paths,
            token=token,
            waiting=waiting,
            may_be_gone=workspace.may_be_gone,
            directory=work.found.directory if work else "",
            system_prompt=self._system_prompt(attempt, workspace, work),
            git_environment=work.git_environment(token) if work else {},
        )

    def _system_prompt(self, attempt: Attempt, workspace: Workspace, work: Checkout | None) -> str:
        settings, takes_servers = self._settings, self._adapter.spec.takes_mcp_servers
        has_broker = self._has_broker(attempt)
        network = NetworkFact.BROKERED if has_broker else NetworkFact.CLOSED
        return render_prompt(
            RunFacts(
                files=workspace.files(is_mounted=bool(settings.work_dir)),
                are_files_saved=Capability.SNAPSHOT in self._provider.capabilities,
                repository=work.fact(attempt) if work else None,
                network=NetworkFact.OPEN if settings.vendor_key else network,
                hosts=[entry.pattern for entry in self._hosts(attempt)],
                time_s=attempt.remaining_s,
                disk_bytes=self._policy.max_disk_bytes,
                memory_bytes=settings.sandbox_limits.memory_bytes,
                mcp_servers=settings.servers(has_broker=has_broker) if takes_servers else (),
                asks_people=has_broker and takes_servers and attempt.asks_people,
                outbox=f"{self._people_directory(workspace, work)}/{OUTBOX}",
            ),
            own=settings.system_prompt,
            channel=attempt.about_channel,
        )


@dataclass(slots=True, kw_only=True)
class _Turn:
    """What the steps of one turn share while this process works on its run, until the slice (`ORION_SLICE_S`) is over."""

    workspace: Workspace
    work: Checkout | None
    watch: FileWatch
    recall: Recall
    has_files: bool = False
    """Of messages, put in the workspace."""
    token: str = field(repr=False)
