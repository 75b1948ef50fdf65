"""The core on fakes: a scriptable sandbox provider, replies that keep a journal, a broker on paper."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import cast

from agent_scripts.adapter import AgentAdapter
from app.aio import Gate, always_open
from app.approvals.records import Approval
from app.compose.maintenance import maintain_runtime
from app.dispatch.dispatcher import RunDispatcher
from app.dispatch.lease import ProcessLease
from app.errors import ErrorCode
from app.pull_requests.records import Notice, PullRequest
from app.runs.testing import (
    MAX_WAIT_S,
    Additions,
    AgentRunner,
    AgentSettings,
    ApprovalDesk,
    AttachedFile,
    BrokerEndpoint,
    Budgets,
    ChannelChange,
    Delivery,
    GrantHooks,
    Intake,
    Judge,
    Ledger,
    LiveLogs,
    MessageContent,
    ModelCall,
    ModelGrant,
    NoJudge,
    OpenRuntime,
    Outcome,
    OwnKeyStore,
    Price,
    Prices,
    Progress,
    ProviderRuntime,
    QueuePosition,
    Run,
    RunId,
    Runners,
    RunOptions,
    RunPolicy,
    RunPorts,
    RunRequest,
    RunService,
    RunTimings,
    SessionId,
    SessionLocks,
    SharedFile,
    StopSignals,
    SystemClock,
    Thread,
    ThreadMessage,
    ThreadView,
    UnreadableFileError,
    WarmPool,
    WhyNot,
    Workspaces,
    always_usable,
)
from app.store.memory import MemoryOwnKeyStore, MemoryRunStore
from app.tracing.null import NullTracer
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.provider import SandboxProvider
from sandbox_runtime.task_group import open_task_group
from sandbox_runtime.testing.fake import FakeProvider
from sandbox_runtime.types import SandboxLimits
from tests.building import make_request
from tests.faults.plan_agent import Plan, PlanAdapter

POLICY = RunPolicy(run_timeout_s=20, idle_timeout_s=10, announce_after_s=0)
SOON = RunTimings(slack_retry_s=0.1, close_interval_s=0.05)
NOTHING_ADDED = Additions()
NO_BUDGETS = Budgets()


@dataclass
class JournalReplies:
    """A ReplySink that keeps what was said, and can be told to fail."""

    placed: list[str] = field(default_factory=list)
    waiting: list[QueuePosition] = field(default_factory=list)
    urgent: list[RunId] = field(default_factory=list)
    """Of `placed` those that did not want to wait."""
    shown: list[Progress] = field(default_factory=list)
    finished: list[tuple[str, Outcome]] = field(default_factory=list)
    resumed: list[bool] = field(default_factory=list)
    announced: list[str] = field(default_factory=list)
    shared: list[tuple[RunId, tuple[str, ...], bool]] = field(default_factory=list)
    """Of each call: the run, the names, and whether it was resumed."""
    share_failures: list[Delivery] = field(default_factory=list)
    """What becomes of the next files, in order; further ones are shared."""
    unshared: list[tuple[str, bool]] = field(default_factory=list)
    """What was told of files, and whether it was resumed."""
    refused: list[ErrorCode] = field(default_factory=list)
    ephemerals: list[tuple[str, str, str]] = field(default_factory=list)
    attached: list[tuple[str, str, str]] = field(default_factory=list)
    changes: list[tuple[ChannelChange, bool]] = field(default_factory=list)
    settled: list[tuple[RunId, RunId]] = field(default_factory=list)
    cards: list[Approval] = field(default_factory=list)
    notices: list[tuple[Notice, bool]] = field(default_factory=list)
    shows_no_card: bool = False
    card_delay_s: float = 0
    refuses_to_place: bool = False
    places_after_s: list[float] = field(default_factory=list)
    """How long the next posts take, in order; further ones none."""
    refuses_after_s: list[float] = field(default_factory=list)
    """How long the next refusals take to tell, in order; further ones none."""
    delivery_failure: str = ""
    outages: int = 0
    """So many further calls of `place` and `finish` do not reach Slack."""

    async def place(self, run: Run, *, position: QueuePosition, maybe_posted: bool) -> str | None:
        del maybe_posted
        if self.outages > 0:
            self.outages -= 1
            raise ConnectionError("slack cannot be reached")
        if self.refuses_to_place:
            return None
        if self.places_after_s:
            await asyncio.sleep(self.places_after_s.pop(0))
        self.placed.append(run.id)
        self.waiting.append(position)
        if run.request.is_urgent:
            self.urgent.append(run.id)
        return f"9.{len(self.placed):06d}"

    @asynccontextmanager
    async def live(self, run: Run) -> AsyncIterator["JournalReplies"]:
        del run
        yield self

    def show(self, progress: Progress) -> None:
        self.shown.append(progress)

    async def finish(self, run: Run, result: Outcome, *, resumed: bool) -> Delivery:
        if self.outages > 0:
            self.outages -= 1
            return Delivery(failure="timeout", may_pass=True)
        self.resumed.append(resumed)
        self.finished.append((run.id, result))
        return Delivery(failure=self.delivery_failure)

    async def announce(self, run: Run, result: Outcome) -> None:
        del result
        self.announced.append(run.id)

    async def tell_change(self, run: Run, change: ChannelChange, *, resumed: bool) -> None:
        del run
        self.changes.append((change, resumed))

    async def settle_question(self, asking: Run, follower: Run) -> None:
        self.settled.append((asking.id, follower.id))

    async def attach(self, run: Run, *, name: str, content: str, resumed: bool) -> Delivery:
        del resumed
        self.attached.append((run.id, name, content))
        return self._share()

    async def share(self, run: Run, files: Sequence[SharedFile], *, resumed: bool) -> Delivery:
        self.shared.append((run.id, tuple(file.name for file in files), resumed))
        return self._share()

    def _share(self) -> Delivery:
        return self.share_failures.pop(0) if self.share_failures else Delivery()

    async def tell_unshared(self, run: Run, text: str, *, resumed: bool) -> None:
        del run
        self.unshared.append((text, resumed))

    async def show_ephemeral(self, thread: Thread, *, user: str, text: str) -> None:
        self.ephemerals.append((thread.thread_ts, user, text))

    async def show_approval(self, run: Run, approval: Approval) -> str | None:
        del run
        await asyncio.sleep(self.card_delay_s)
        self.cards.append(approval)
        return None if self.shows_no_card else f"8.{approval.number:06d}"

    async def show_notice(
        self, run: Run, pull: PullRequest, notice: Notice, *, maybe_posted: bool
    ) -> str | None:
        del run, pull
        self.notices.append((notice, maybe_posted))
        return None if self.shows_no_card else f"7.{notice.number:06d}"

    async def refuse(self, request: RunRequest, code: ErrorCode, *, detail: str) -> None:
        del request, detail
        if self.refuses_after_s:
            await asyncio.sleep(self.refuses_after_s.pop(0))
        self.refused.append(code)


class EmptyReader:
    def __init__(self) -> None:
        self.reads = 0
        self.hangs = False
        """Slack's limits let nobody read."""
        self.goes_on = asyncio.Event()
        self.content = MessageContent()
        """What Slack shows with each message."""
        self.messages: list[ThreadMessage] = []
        self.is_cut = False
        self.deleted: set[str] = set()
        """The ts of messages that Slack shows no more."""
        self.asked_for: list[str] = []
        """The ts of messages of which it was asked whether they are there."""

    async def read(self, request: RunRequest) -> ThreadView:
        self.reads += 1
        if self.hangs:
            await self.goes_on.wait()
        content = request.content.merged(self.content)
        whole = request.model_copy(update={"content": content})
        return ThreadView(request=whole, messages=self.messages, is_cut=self.is_cut)

    async def stands(self, request: RunRequest) -> bool:
        self.asked_for.append(request.message_ts)
        return request.message_ts not in self.deleted

    async def name_of(self, user: str) -> str:
        return f"name of {user}"


class FileShelf:
    """Has the files that a test puts there, by their names."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.fetched: list[str] = []
        self.uploaded: list[tuple[str, bytes]] = []
        self.hangs = False
        self.asked = asyncio.Event()

    async def fetch(self, file: AttachedFile, *, max_bytes: int) -> bytes:
        self.fetched.append(file.name)
        self.asked.set()
        if self.hangs:
            await asyncio.sleep(60)
        data = self.files.get(file.name)
        if data is None or len(data) > max_bytes:
            raise UnreadableFileError("it is not on the shelf")
        return data

    async def upload(self, name: str, data: bytes) -> str:
        if name.startswith("refused"):
            raise UnreadableFileError("there is no shelf for it")
        self.uploaded.append((name, data))
        return f"F{len(self.uploaded)}"


class PaperBroker:
    """Gives tokens; nobody listens on its socket."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.grants: list[ModelGrant] = []
        self.closed: list[SessionId] = []
        self.kept: list[RunId] = []
        self.rebound: list[tuple[SessionId, SessionId]] = []
        self.model_calls: list[ModelCall] = []
        """Every run makes them as soon as it may."""
        self.has_effects = False
        """Every run asks for something outside as soon as it may."""

    def endpoint_for(self, session_id: SessionId) -> BrokerEndpoint:
        del session_id
        return BrokerEndpoint(address=self.endpoint)

    @asynccontextmanager
    async def open_grant(
        self,
        grant: ModelGrant,
        hooks: GrantHooks,
    ) -> AsyncIterator[str]:
        self.grants.append(grant)
        self.hooks = hooks
        if grant.run_id in self.kept:
            self.kept.remove(grant.run_id)
            yield f"token-of-{grant.run_id}"
            return
        for call in self.model_calls:
            hooks.on_call(call)
        if self.has_effects and hooks.on_effect is not None:
            await hooks.on_effect()
        yield f"token-of-{grant.run_id}"

    def keep(self, run_id: RunId) -> None:
        self.kept.append(run_id)

    def rebind(self, session_id: SessionId, endpoint_id: SessionId) -> None:
        self.rebound.append((session_id, endpoint_id))

    def close(self, session_id: SessionId) -> None:
        self.closed.append(session_id)


def mask_password(text: str) -> str:
    return text.replace("hunter2", "[redacted]")


def nowhere(name: str) -> SandboxProvider:
    raise SandboxError(SandboxErrorCode.UNSUPPORTED, f"there is no provider {name!r} here")


@asynccontextmanager
async def no_space(name: str) -> AsyncIterator[ProviderRuntime]:
    raise SandboxError(SandboxErrorCode.UNSUPPORTED, f"there is no provider {name!r} here")
    yield


@dataclass(kw_only=True)
class Core:
    provider: FakeProvider
    replies: JournalReplies
    reader: EmptyReader
    shelf: FileShelf
    store: MemoryRunStore
    dispatcher: RunDispatcher
    signals: StopSignals
    service: RunService
    ports: RunPorts
    intake: Intake
    workspaces: Workspaces
    runtime: ProviderRuntime
    broker: PaperBroker
    runtime_of: Callable[[SandboxProvider], ProviderRuntime]
    """Another one, at a provider that is open."""


@asynccontextmanager
async def open_core(
    policy: RunPolicy,
    *,
    socket: str,
    additions: Additions = NOTHING_ADDED,
    open_runtime: OpenRuntime = no_space,
    channels: Mapping[str, RunOptions] | None = None,
    pool_size: int = 0,
    pool_wait_s: float = MAX_WAIT_S,
    pool_rest_s: float = 0,
    sandboxes: SandboxProvider | None = None,
    owner: str = "",
    adapter: AgentAdapter | None = None,
    store: MemoryRunStore | None = None,
    own_keys: OwnKeyStore | None = None,
    judge: Judge | None = None,
    budgets: Budgets = NO_BUDGETS,
    may_act: Gate = always_open,
    why_not: WhyNot = always_usable,
) -> AsyncIterator[Core]:
    policy = replace(policy, channels=channels or {})
    store, signals, clock, tracer = (
        store or MemoryRunStore(),
        StopSignals(),
        SystemClock(),
        NullTracer(),
    )
    replies, reader, shelf = JournalReplies(), EmptyReader(), FileShelf()
    prices = Prices(
        {
            "priced-*": Price(
                input=Decimal(1), output=Decimal(1), cache_read=Decimal(1), cache_write=Decimal(1)
            )
        }
    )
    ledger = Ledger(
        prices=prices,
        budgets=budgets,
        store=store.spending,
        clock=clock,
        permissions=policy.permissions,
    )
    adapter = adapter or PlanAdapter()
    dispatcher = RunDispatcher(
        store,
        store.leases,
        ProcessLease(store.leases),
        capacity=policy.capacity,
        waits_s=policy.queue_timeout_s,
        start_interval_s=0,
    )
    async with (
        sandboxes or FakeProvider() as opened,
        open_task_group() as group,
        AsyncExitStack() as stack,
    ):
        provider = cast("FakeProvider", opened)  # whoever brings another one does not count calls
        state = Path(socket).parent
        broker = PaperBroker(socket)

        def runtime_of(provider: SandboxProvider, *, pool_size: int = 0) -> ProviderRuntime:
            pool = WarmPool(
                provider=provider,
                adapter=adapter,
                broker=broker,
                size=pool_size,
                max_wait_s=pool_wait_s,
                rest_s=pool_rest_s,
            )
            workspaces = Workspaces(
                provider=provider,
                store=store.sessions,
                policy=policy,
                mask=mask_password,
                locks=SessionLocks(state / "visits", owner=owner),
                on_gone=broker.close,
                pool=pool,
            )
            runner = AgentRunner(
                provider=provider,
                adapter=adapter,
                broker=broker,
                workspaces=workspaces,
                settings=AgentSettings(
                    model="plan-1",
                    max_output_tokens=1,
                    max_turns=1,
                    sandbox_limits=SandboxLimits(memory_bytes=2**31),
                    additions=additions,
                ),
                policy=policy,
            )
            return ProviderRuntime(
                name=provider.name, runner=runner, workspaces=workspaces, pool=pool
            )

        runtime = runtime_of(provider, pool_size=pool_size)
        runners = Runners(
            runtime,
            open_runtime=open_runtime,
            policy=policy,
            group=group,
            why_not=why_not,
        )
        await stack.enter_async_context(runtime.pool.open())
        ports = RunPorts(
            store=store,
            files=store.files,
            sessions=store.sessions,
            defaults=store.defaults,
            channel_notes=store.channel_notes,
            own_keys=own_keys or MemoryOwnKeyStore(),
            threads=store.threads,
            approvals=store.approvals,
            audit=store.audit,
            pull_requests=store.pull_requests,
            ledger=ledger,
            replies=replies,
            reader=reader,
            exchange=shelf,
            judge=judge or NoJudge(),
            tracer=tracer,
            clock=clock,
            mask=mask_password,
            has_secret=lambda data: b"hunter2" in data,
            may_act=may_act,
        )
        desk = ApprovalDesk(ports, dispatcher=dispatcher, policy=policy)
        service = RunService(
            ports,
            dispatcher=dispatcher,
            runners=runners,
            live_logs=LiveLogs(state / "logs"),
            signals=signals,
            desk=desk,
            policy=policy,
        )
        intake = Intake(ports, dispatcher=dispatcher, signals=signals, desk=desk, policy=policy)
        await dispatcher.start(service)
        background = [
            group.create_task(signals.listen_forever(store)),
            *map(group.create_task, maintain_runtime(runtime, clock=clock, policy=policy)),
        ]
        try:
            yield Core(
                provider=provider,
                broker=broker,
                replies=replies,
                reader=reader,
                shelf=shelf,
                store=store,
                dispatcher=dispatcher,
                signals=signals,
                service=service,
                ports=ports,
                intake=intake,
                workspaces=runtime.workspaces,
                runtime=runtime,
                runtime_of=runtime_of,
            )
        finally:
            for task in background:
                task.cancel()
            await dispatcher.stop(grace_s=0)
            runners.close()


@asynccontextmanager
async def core_of(
    tmp_path: Path,
    policy: RunPolicy = POLICY,
    additions: Additions = NOTHING_ADDED,
    *,
    store: MemoryRunStore | None = None,
    adapter: AgentAdapter | None = None,
    judge: Judge | None = None,
    judgements_day: int | None = None,
) -> AsyncIterator[Core]:
    socket = str(tmp_path / "broker.sock")
    async with open_core(
        policy,
        socket=socket,
        additions=additions,
        store=store,
        adapter=adapter,
        judge=judge,
        budgets=Budgets(judgements_day=judgements_day),
    ) as core:
        yield core


def request_of(
    plan: Plan, *, ts: str = "1795302364.000100", thread_ts: str | None = None
) -> RunRequest:
    request = make_request(ts=ts, thread_ts=thread_ts, text=json.dumps(plan))
    return request.model_copy(update={"received_at": SystemClock().now()})


async def ended(core: Core, run_id: RunId) -> Run:
    async with asyncio.timeout(25):
        while True:
            run = await core.store.get(run_id)
            if run is not None and run.state.is_final:
                return run
            await asyncio.sleep(0.01)


def assert_ended_once(core: Core, run: Run) -> None:
    assert run.state.is_final
    assert core.replies.placed == [run.id]
    assert [run_id for run_id, _ in core.replies.finished] == [run.id]
    assert core.provider.alive == 0
