"""The core, made from its policy and the adapters that are open; with a runtime of each provider that is asked for."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Protocol

from agent_scripts.adapter import AgentAdapter
from agent_scripts.registry import create_adapter
from app.aio import background, open_task_group
from app.brokerage.credentials import GitCredentials
from app.brokerage.endpoints import SocketBroker
from app.compose.adapters import Outside
from app.compose.brokers import broker_for, share_grants
from app.compose.budgets import find_problems, open_ledger
from app.compose.factories import (
    create_preparations,
    create_pull_watch,
    create_repositories,
    create_runner,
    pool_size,
)
from app.compose.maintenance import Retention, Watchdog, maintain_runtime, repeat_forever
from app.compose.permissions import PermissionWatch
from app.compose.providers import ProviderChoice, create_named
from app.log import get_logger
from app.pull_requests.records import PullRequestStore
from app.redaction import Masker
from app.runs.approvals import ApprovalDesk
from app.runs.budget import Ledger
from app.runs.executor import AgentRunner
from app.runs.intake import Intake
from app.runs.model import Clock, RunState, SystemClock
from app.runs.policy import RunPolicy
from app.runs.ports import RunPorts
from app.runs.progress import LiveLogs
from app.runs.repository.watch import LOOK_INTERVAL_S, PullRequestWatch
from app.runs.runners import ProviderRuntime, Runners
from app.runs.sandboxes import SessionLocks
from app.runs.service import RunService
from app.runs.session import Session, SessionId, SessionStore, session_id_for
from app.runs.stop import StopSignals
from app.runs.warm_pool import WarmPool
from app.runs.workspace import Workspaces
from app.settings.settings import Settings
from app.slack.catch_up import KNOWN_RUNS, CatchUp
from app.store.engine import StateDirectory
from app.store.runs import SqlRunStore
from sandbox_runtime.errors import SandboxError
from sandbox_runtime.provider import SandboxProvider
from sandbox_runtime.registry import provider_spec
from sandbox_runtime.types import Capability, SandboxId

_log = get_logger(__name__)

SWEEP_INTERVAL_S = 300.0
"""Between two looks for what workers have left that were killed while others go on."""
BOUND = "its sandboxes end with their process: only this one can go on with a run after a slice"


class FindLeft(Protocol):
    """Returns the sessions in whose sandboxes a run of another process may go on, or that somebody left for the next one."""

    async def __call__(self, *, living: Collection[str]) -> Sequence[Session]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeFactory:
    """Builds the runtimes of providers from what they share."""

    settings: Settings
    sessions: SessionStore
    policy: RunPolicy
    clock: Clock
    masker: Masker
    broker: SocketBroker
    adapter: AgentAdapter | None
    """In place of all others."""
    find_left: FindLeft
    works_ahead: bool
    """Sandboxes may wait in pools, and repositories be prepared; else neither, whatever the settings say."""
    owner: str
    """`Outside.owner`."""
    credentials: GitCredentials
    pull_requests: PullRequestStore
    living: Callable[[], Awaitable[Collection[str]]]
    """Tells whose sandboxes are in use; see `SandboxProvider.sweep`."""

    def build(self, provider: SandboxProvider) -> ProviderRuntime:
        is_remote = Capability.REMOTE in provider.capabilities
        adapter = self._adapter(self.settings.agents.default)
        broker = broker_for(self.settings, self.broker, adapter.spec.protocol, is_remote=is_remote)
        pool = WarmPool(
            provider=provider,
            adapter=adapter,
            broker=broker,
            size=pool_size(self.settings, is_billed=Capability.BILLED in provider.capabilities)
            if self.works_ahead
            else 0,
        )
        workspaces = Workspaces(
            provider=provider,
            store=self.sessions,
            policy=self.policy,
            mask=self.masker.mask,
            locks=SessionLocks(self.settings.session_locks_dir, owner=self.owner),
            on_gone=self.broker.close,
            pool=pool,
        )
        mask = self.masker.mask
        preparations = create_preparations(self.settings, provider, mask=mask)
        repositories = create_repositories(
            self.settings,
            sessions=self.sessions,
            mask=mask,
            preparations=preparations,
            credentials=self.credentials,
            pull_requests=self.pull_requests,
        )
        runners: dict[str, AgentRunner] = {}

        def runner_of(agent: str) -> AgentRunner:
            if agent not in runners:
                own = self._adapter(agent)
                runners[agent] = create_runner(
                    self.settings,
                    provider=provider,
                    broker=broker_for(
                        self.settings, self.broker, own.spec.protocol, is_remote=is_remote
                    ),
                    workspaces=workspaces,
                    policy=self.policy,
                    adapter=own,
                    repositories=repositories,
                )
            return runners[agent]

        return ProviderRuntime(
            name=provider.name,
            runner=runner_of(self.settings.agents.default),
            runner_of=runner_of,
            workspaces=workspaces,
            pool=pool,
            preparations=preparations if self.works_ahead else None,
        )

    def _adapter(self, agent: str) -> AgentAdapter:
        return self.adapter or create_adapter(agent)

    @asynccontextmanager
    async def open(self, name: str) -> AsyncIterator[ProviderRuntime]:
        """Opens the runtime of another provider, for the length of the block.

        Raises:
            SandboxError: it cannot be used.
        """
        async with create_named(self.settings, name, self.owner) as provider:
            living = await self.living()
            await sweep(provider, await self.find_left(living=living), living=living)
            runtime = self.build(provider)
            going_on = maintain_runtime(runtime, clock=self.clock, policy=self.policy)
            async with runtime.open(), background(*going_on):
                yield runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """Holds who does the runs, and what goes on beside them."""

    ports: RunPorts
    service: RunService
    desk: ApprovalDesk
    intake: Intake
    runners: Runners
    runtime: ProviderRuntime
    """The default one."""
    signals: StopSignals
    watchdog: Watchdog
    retention: Retention
    pulls: PullRequestWatch
    elsewhere: Sequence[str]
    """Other providers where sandboxes of sessions may be."""
    policy: RunPolicy
    permissions: PermissionWatch
    sweep_left: Callable[[], Awaitable[None]]
    """Removes what dead processes have left at the default provider on this host, if this process does that for all."""
    is_working: bool
    """It advances runs; see `Role`."""
    is_brief: bool

    def hearing(self) -> Sequence[Coroutine[None, None, None]]:
        """Returns what has to go on as long as runs do, also while they are handed over."""
        works = self.is_working and not self.is_brief
        return (self.signals.listen_forever(self.ports.store),) if works else ()

    def background(self) -> Sequence[Coroutine[None, None, None]]:
        """Returns what has to go on as long as the service works."""
        if self.is_brief:
            return ()
        ledger = self.ports.ledger
        for_all = (
            ledger.write_forever(),
            ledger.load_forever(),
            self.desk.keep_forever(),
            self.permissions.watch_file_forever(),
            self.permissions.count_forever(),
            self.permissions.ask_forever(),
        )
        if not self.is_working:
            return for_all
        return (
            *for_all,
            self.watchdog.run_forever(),
            self.retention.run_forever(),
            repeat_forever(
                self.pulls.look,
                clock=self.ports.clock,
                pause_s=lambda: LOOK_INTERVAL_S,
                failed="pull_request.unwatched",
                delay_s=LOOK_INTERVAL_S,
            ),
            repeat_forever(
                self.sweep_left,
                clock=self.ports.clock,
                pause_s=lambda: SWEEP_INTERVAL_S,
                failed="sandbox.sweep_failed",
                delay_s=SWEEP_INTERVAL_S,
            ),
            _prepare_quietly(self.runtime),
            *maintain_runtime(self.runtime, clock=self.ports.clock, policy=self.policy),
            *(self.runners.open_quietly(name) for name in self.elsewhere),
        )


@asynccontextmanager
async def open_core(
    settings: Settings,
    outside: Outside,
    *,
    directory: StateDirectory,
    policy: RunPolicy,
    masker: Masker,
    adapter: AgentAdapter | None = None,
) -> AsyncIterator[Core]:
    """Makes the core, and takes over what processes have left that are no more: sandboxes, endpoints, files.

    `directory`: of the settings; others are let in when it is tidy. `adapter`: in place of all agents.

    Raises:
        SettingsError: a budget cannot be kept.
    """
    adapters, clock = outside.adapters, SystemClock(outside.adapters.store.leases.skew_s)
    provider, dispatcher, signals = adapters.provider, adapters.dispatcher, StopSignals()
    is_working, is_brief = outside.role.is_working, outside.role.is_brief
    takes_over = is_working and not is_brief
    living = partial(living_owners, adapters.store)
    left = await sessions_to_keep(adapters.store, living=await living()) if takes_over else ()
    if directory.is_alone:
        outside.broker.close_others([session.id for session in left])
    if takes_over:
        await sweep(provider, left, living=await living())
        await _tell_sandbox(settings, provider, outside.choice)
    watch = PermissionWatch(
        policy.permissions,
        settings.toml,
        members_of=(outside.remembered or outside.slack).members_of,
        count_rules=adapters.store.approvals.count,
        find_problems=partial(find_problems, settings),
    )
    await watch.load()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(watch.count)
        ledger = await stack.enter_async_context(
            open_ledger(settings, adapters.spending, clock, permissions=policy.permissions)
        )
        ports = _join_ports(outside, ledger=ledger, masker=masker, clock=clock)
        desk = ApprovalDesk(ports, dispatcher=dispatcher, policy=policy)
        await stack.enter_async_context(
            share_grants(
                settings, outside.broker, adapters.store.grants, ports, approvals_of=desk.of
            )
        )
        runtimes = RuntimeFactory(
            settings=settings,
            sessions=adapters.sessions,
            policy=policy,
            clock=clock,
            masker=masker,
            broker=outside.broker,
            adapter=adapter,
            find_left=partial(sessions_to_keep, adapters.store),
            works_ahead=takes_over,
            owner=outside.owner,
            credentials=outside.credentials,
            pull_requests=adapters.pull_requests,
            living=living,
        )
        runtime = runtimes.build(provider)
        await stack.enter_async_context(runtime.open())
        group = await stack.enter_async_context(open_task_group())
        runners = Runners(
            runtime,
            open_runtime=runtimes.open,
            policy=policy,
            group=group,
            why_not=partial(why_not_here, adapters.store),
        )
        stack.callback(runners.close)
        live_logs = LiveLogs(settings.live_logs_dir)
        if directory.is_alone:
            live_logs.clear()
        if adapters.store.leases.is_shared:
            directory.share()
        service = RunService(
            ports,
            dispatcher=dispatcher,
            runners=runners,
            live_logs=live_logs,
            signals=signals,
            desk=desk,
            policy=policy,
        )
        intake = Intake(
            ports,
            dispatcher=dispatcher,
            signals=signals,
            desk=desk,
            policy=policy,
            skew_s=adapters.store.leases.skew_s,
        )
        removal = runtime.workspaces.removal(partial(create_named, settings))
        leads = adapters.store.leases.leads
        yield Core(
            ports=ports,
            service=service,
            desk=desk,
            intake=intake,
            runners=runners,
            runtime=runtime,
            signals=signals,
            watchdog=Watchdog(service=service, policy=policy, signals=signals, clock=clock),
            retention=Retention(
                store=ports.store,
                audit=ports.audit,
                leads=leads,
                remove_sessions=removal.remove_unused,
                keep_for=timedelta(days=settings.service.retention_days),
                keep_audit_for=timedelta(days=settings.service.audit_days),
                clock=clock,
            ),
            pulls=create_pull_watch(
                settings,
                ports,
                leads=_always if is_brief else leads,
                accept=intake.accept,
                empty=removal.empty,
                credentials=outside.credentials,
            ),
            elsewhere=sorted({one.provider for one in left if one.sandbox_id} - {provider.name}),
            policy=policy,
            permissions=watch,
            sweep_left=partial(
                sweep_if_leading, adapters.store, provider, runtime.workspaces.is_in_use
            ),
            is_working=is_working,
            is_brief=is_brief,
        )


def create_catch_up(settings: Settings, outside: Outside, intake: Intake) -> CatchUp | None:
    """Returns what looks for questions that nobody heard, where any are wanted."""
    if not settings.service.catch_up_h:
        return None
    adapters = outside.adapters
    return outside.slack.catch_up(
        intake,
        store=adapters.heard,
        recent=partial(adapters.store.recent, limit=KNOWN_RUNS),
        window=timedelta(hours=settings.service.catch_up_h),
        allowed_bots=settings.access.allowed_bots,
    )


def _join_ports(
    outside: Outside, *, ledger: Ledger, masker: Masker, clock: SystemClock
) -> RunPorts:
    adapters = outside.adapters
    return RunPorts(
        store=adapters.store,
        files=adapters.files,
        sessions=adapters.sessions,
        defaults=adapters.defaults,
        channel_notes=adapters.channel_notes,
        own_keys=adapters.own_keys,
        threads=adapters.threads,
        approvals=adapters.approvals,
        audit=adapters.audit,
        pull_requests=adapters.pull_requests,
        ledger=ledger,
        replies=adapters.replies,
        reader=adapters.reader,
        exchange=adapters.exchange,
        judge=adapters.judge,
        tracer=outside.tracer,
        clock=clock,
        mask=masker.mask,
        has_secret=masker.has_secret,
        may_act=outside.may_act,
    )


async def living_owners(store: SqlRunStore) -> Collection[str]:
    """Returns the names of the processes whose sandboxes are in use."""
    return [process.owner for process in await store.leases.living()]


async def why_not_here(store: SqlRunStore, provider: str) -> str:
    """Implements WhyNot: sandboxes of a host keep threads' files there, and a thread's next run may go to any process that works."""
    if not store.leases.is_shared or provider_spec(provider).is_cloud:
        return ""
    own = store.leases.process
    elsewhere = [
        other.name
        for other in await store.leases.living()
        if other.is_working and other.host is not None and other.host != own.host
    ]
    if not elsewhere:
        return ""
    return f"its sandboxes keep threads' files where they run, and {', '.join(elsewhere)} works on another host, or with another ORION_STATE_DIR"


async def sweep(
    provider: SandboxProvider, left: Sequence[Session], *, living: Collection[str]
) -> None:
    """Removes what processes have left at a provider that are no more."""
    keep = [SandboxId(session.sandbox_id) for session in left]
    await provider.sweep(keep, living=living)


async def _tell_sandbox(
    settings: Settings, provider: SandboxProvider, choice: ProviderChoice
) -> None:
    try:
        finding = await provider.probe()
    except SandboxError as exc:
        if settings.sandbox.provider != "auto":
            raise
        why = f"ORION_SANDBOX=auto took {choice.name}: {choice.reason}"
        raise SandboxError(exc.code, f"{exc} ({why})") from exc
    _log.info("sandbox.selected", provider=provider.name, reason=choice.reason, finding=finding)
    if settings.limits.slice_s and Capability.ATTACH not in provider.capabilities:
        _log.info("sandbox.bound", provider=provider.name, says=BOUND)
    if settings.mount is not None:
        _log.warning("sandbox.mounted", says=settings.mount.sentence)


async def sessions_to_keep(
    store: SqlRunStore, *, living: Collection[str] = ()
) -> Sequence[Session]:
    """Returns the sessions in whose sandboxes a run that the last process left may go on, or that a person, or a process that lives, left for the next run.

    A run that waits has begun in none, and one whose outcome is decided is only told: nobody would end what is kept for them.
    """
    found = [
        session
        for session in await store.sessions.all()
        if session.detached_environment or session.kept_by in living
    ]
    for run in await store.unfinished():
        if run.state is not RunState.RUNNING:
            continue
        session = await store.sessions.get(session_id_for(run.thread))
        if session is not None and session.sandbox_id:
            found.append(session)
    return found


async def sweep_if_leading(
    store: SqlRunStore, provider: SandboxProvider, is_in_use: Callable[[SessionId], bool]
) -> None:
    """Removes what dead processes have left; clouds end sandboxes by themselves, and none by whom another one may be saving just now. `is_in_use`: by a person."""
    if not store.leases.is_shared or Capability.REMOTE in provider.capabilities:
        return
    # After an outage of the database all are late, and the first that is not seems to lead.
    if await store.leases.late() or not await store.leases.leads():
        return
    before = await living_owners(store)
    keep = list(await sessions_to_keep(store, living=before))
    keep += [one for one in await store.sessions.all() if is_in_use(one.id)]
    await sweep(provider, keep, living={*before, *await living_owners(store)})


async def _always() -> bool:
    """Is `leads` of who lives for one request, and was called to do what one of all does."""
    return True


async def _prepare_quietly(runtime: ProviderRuntime) -> None:
    """Has the environment ready before the first question; a failure is logged, and shows with its code in that run."""
    with suppress(SandboxError):
        await runtime.runner.prepare_environment()
        runtime.pool.wake()
