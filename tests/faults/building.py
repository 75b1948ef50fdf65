"""The core on fakes: a scriptable sandbox provider, replies that keep a journal, a broker on paper."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

from agent_scripts.adapter import AgentAdapter
from app.dispatch.inline import InlineDispatcher
from app.errors import ErrorCode
from app.runs.broker_ports import AskLeave, BrokerEndpoint, ModelGrant
from app.runs.budgets import Budgets, Ledger
from app.runs.clock import SystemClock
from app.runs.costs import Price, Prices
from app.runs.environment import Additions
from app.runs.execution import AgentRunner
from app.runs.intake import Intake
from app.runs.leftovers import OpenProvider
from app.runs.live_log import LiveLogs
from app.runs.model import (
    Delivery,
    ModelCall,
    Progress,
    QueuePosition,
    Run,
    RunId,
    RunRequest,
    RunResult,
    Thread,
    ThreadMessage,
)
from app.runs.options import Wishes
from app.runs.policy import RunPolicy
from app.runs.pool import MAX_WAIT_S, WarmPool
from app.runs.runners import OpenRoom, Room, Runners
from app.runs.session import SessionId
from app.runs.starting import AgentSettings
from app.runs.stops import StopSignals
from app.runs.visits import Visits
from app.runs.workflow import RunService
from app.runs.workspaces import Workspaces
from app.store.memory import MemoryRunStore
from app.store.own_keys import MemoryOwnKeyStore
from app.tracing.null import NullTracer
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.provider import SandboxProvider
from sandbox_runtime.task_group import open_task_group
from sandbox_runtime.testing.fake import FakeProvider
from sandbox_runtime.types import SandboxLimits
from tests.building import make_request
from tests.faults.plan_agent import Plan, PlanAdapter

POLICY = RunPolicy(run_timeout_s=20, idle_timeout_s=10, announce_after_s=0)
NOTHING_ADDED = Additions()


@dataclass
class JournalReplies:
    """A ReplySink that keeps what was said, and can be told to fail."""

    placed: list[str] = field(default_factory=list)
    waiting: list[QueuePosition] = field(default_factory=list)
    shown: list[Progress] = field(default_factory=list)
    finished: list[tuple[str, RunResult]] = field(default_factory=list)
    resumed: list[bool] = field(default_factory=list)
    announced: list[str] = field(default_factory=list)
    refused: list[ErrorCode] = field(default_factory=list)
    whispered: list[tuple[str, str, str]] = field(default_factory=list)
    attached: list[tuple[str, str, str]] = field(default_factory=list)
    refuses_to_place: bool = False
    places_after_s: list[float] = field(default_factory=list)
    """How long the next posts take, in order; further ones none."""
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
        return f"9.{len(self.placed):06d}"

    @asynccontextmanager
    async def live(self, run: Run) -> AsyncIterator["JournalReplies"]:
        del run
        yield self

    def show(self, progress: Progress) -> None:
        self.shown.append(progress)

    async def finish(self, run: Run, result: RunResult, *, resumed: bool) -> Delivery:
        if self.outages > 0:
            self.outages -= 1
            return Delivery(failure="timeout", may_pass=True)
        self.resumed.append(resumed)
        self.finished.append((run.id, result))
        return Delivery(failure=self.delivery_failure)

    async def announce(self, run: Run, result: RunResult) -> None:
        del result
        self.announced.append(run.id)

    async def attach(self, run: Run, *, name: str, content: str, resumed: bool) -> None:
        del resumed
        self.attached.append((run.id, name, content))

    async def whisper(self, request: RunRequest, *, user: str, log: str) -> None:
        self.whispered.append((request.run_id, user, log))

    async def refuse(self, request: RunRequest, code: ErrorCode, *, detail: str) -> None:
        del request, detail
        self.refused.append(code)


class EmptyReader:
    async def read(self, thread: Thread, *, before_ts: str) -> Sequence[ThreadMessage]:
        del thread, before_ts
        return ()


class PaperBroker:
    """Gives tokens; nobody listens on its socket."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.grants: list[ModelGrant] = []
        self.closed: list[SessionId] = []
        self.adopted: list[tuple[SessionId, SessionId]] = []
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
        on_call: Callable[[ModelCall], None],
        on_effect: Callable[[], Awaitable[None]] | None = None,
        refusal: AskLeave | None = None,
    ) -> AsyncIterator[str]:
        del refusal
        self.grants.append(grant)
        for call in self.model_calls:
            on_call(call)
        if self.has_effects and on_effect is not None:
            await on_effect()
        yield f"token-of-{grant.run_id}"

    def adopt(self, session_id: SessionId, door: SessionId) -> None:
        self.adopted.append((session_id, door))

    def close(self, session_id: SessionId) -> None:
        self.closed.append(session_id)


def mask_password(text: str) -> str:
    return text.replace("hunter2", "[redacted]")


def nowhere(name: str) -> SandboxProvider:
    raise SandboxError(SandboxErrorCode.UNSUPPORTED, f"there is no provider {name!r} here")


@asynccontextmanager
async def no_room(name: str) -> AsyncIterator[Room]:
    raise SandboxError(SandboxErrorCode.UNSUPPORTED, f"there is no provider {name!r} here")
    yield


@dataclass(kw_only=True)
class Core:
    provider: FakeProvider
    replies: JournalReplies
    store: MemoryRunStore
    dispatcher: InlineDispatcher
    service: RunService
    intake: Intake
    workspaces: Workspaces
    room: Room
    broker: PaperBroker
    room_of: Callable[[SandboxProvider], Room]
    """Another one, at a provider that is open."""


@asynccontextmanager
async def open_core(
    policy: RunPolicy,
    *,
    socket: str,
    additions: Additions = NOTHING_ADDED,
    elsewhere: OpenProvider = nowhere,
    open_room: OpenRoom = no_room,
    channels: Mapping[str, Wishes] | None = None,
    pool_size: int = 0,
    pool_wait_s: float = MAX_WAIT_S,
    pool_rest_s: float = 0,
    sandboxes: FakeProvider | None = None,
    adapter: AgentAdapter | None = None,
) -> AsyncIterator[Core]:
    store, signals, clock, tracer = MemoryRunStore(), StopSignals(), SystemClock(), NullTracer()
    replies = JournalReplies()
    prices = Prices(
        {
            "priced-*": Price(
                input=Decimal(1), output=Decimal(1), cache_read=Decimal(1), cache_write=Decimal(1)
            )
        }
    )
    ledger = Ledger(prices=prices, budgets=Budgets(), store=store.spending, clock=clock)
    adapter = adapter or PlanAdapter()
    dispatcher = InlineDispatcher(capacity=policy.capacity)
    async with (
        sandboxes or FakeProvider() as provider,
        open_task_group() as group,
        AsyncExitStack() as stack,
    ):
        state = Path(socket).parent
        broker = PaperBroker(socket)

        def room_of(provider: SandboxProvider, *, pool_size: int = 0) -> Room:
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
                clock=clock,
                mask=mask_password,
                visits=Visits(state / "visits"),
                elsewhere=elsewhere,
                on_gone=broker.close,
                pool=pool,
            )
            runner = AgentRunner(
                provider=provider,
                adapter=adapter,
                broker=broker,
                workspaces=workspaces,
                settings=AgentSettings(
                    system_prompt="",
                    model="plan-1",
                    max_output_tokens=1,
                    max_turns=1,
                    sandbox_limits=SandboxLimits(memory_bytes=2**31),
                    additions=additions,
                ),
                policy=policy,
            )
            return Room(name=provider.name, runner=runner, workspaces=workspaces, pool=pool)

        room = room_of(provider, pool_size=pool_size)
        runners = Runners(
            room,
            open_room=open_room,
            policy=policy,
            group=group,
        )
        await stack.enter_async_context(room.pool.open())
        service = RunService(
            store=store,
            files=store.files,
            dispatcher=dispatcher,
            replies=replies,
            reader=EmptyReader(),
            tracer=tracer,
            runners=runners,
            defaults=store.defaults,
            sessions=store.sessions,
            channels=channels or {},
            live_logs=LiveLogs(state / "logs"),
            signals=signals,
            ledger=ledger,
            own_keys=MemoryOwnKeyStore(),
            policy=policy,
            clock=clock,
            mask=mask_password,
        )
        intake = Intake(
            dispatcher=dispatcher,
            store=store,
            files=store.files,
            replies=replies,
            signals=signals,
            tracer=tracer,
            policy=policy,
            clock=clock,
        )
        await dispatcher.start(service)
        background = [
            group.create_task(signals.listen_forever(store, service.end_stopped)),
            group.create_task(room.workspaces.close_forever()),
            group.create_task(room.pool.fill_forever(room.runner.spec_to_wait)),
        ]
        try:
            yield Core(
                provider=provider,
                broker=broker,
                replies=replies,
                store=store,
                dispatcher=dispatcher,
                service=service,
                intake=intake,
                workspaces=room.workspaces,
                room=room,
                room_of=room_of,
            )
        finally:
            for task in background:
                task.cancel()
            await dispatcher.stop(grace_s=0)
            runners.close()


@asynccontextmanager
async def core_of(
    tmp_path: Path, policy: RunPolicy = POLICY, additions: Additions = NOTHING_ADDED
) -> AsyncIterator[Core]:
    socket = str(tmp_path / "broker.sock")
    async with open_core(policy, socket=socket, additions=additions) as core:
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


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


def assert_ended_once(core: Core, run: Run) -> None:
    assert run.state.is_final
    assert core.replies.placed == [run.id]
    assert [run_id for run_id, _ in core.replies.finished] == [run.id]
    assert core.provider.alive == 0
