"""What the core stands on: the adapters behind its ports, opened from the settings."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import partial
from typing import Protocol, TypeVar

from agent_scripts.adapter import AgentAdapter, ModelProtocol
from agent_scripts.registry import agent_names, agent_spec
from app.accounts.records import AccountStore
from app.aio import Gate, open_task_group
from app.approvals.records import ApprovalStore
from app.audit.records import AuditLog
from app.brokerage.credentials import GitCredentials
from app.brokerage.endpoints import SocketBroker
from app.brokerage.registry import load_signing_key
from app.compose.accounts import create_accounts, create_tokens, git_credentials
from app.compose.brokers import open_broker, open_judge
from app.compose.factories import open_tracer, slack_options
from app.compose.models import key_field
from app.compose.providers import ProviderChoice, choose_provider, create_provider
from app.compose.slack_facts import RememberedSlack
from app.dispatch.dispatcher import RunDispatcher
from app.dispatch.lease import Leases, ProcessLease, open_lease
from app.dispatch.slices import SliceDispatcher, WakeUps
from app.log import get_logger
from app.metrics import Meters
from app.pull_requests.records import PullRequestStore
from app.redaction import Masker
from app.runs.budget import SpendingStore
from app.runs.history import FileExchange, Judge, ThreadReader
from app.runs.model import ChannelNoteStore, SystemClock
from app.runs.policy import RunPolicy
from app.runs.ports import (
    DefaultStore,
    Dispatcher,
    NoOwnKeys,
    OwnKeyStore,
    ReplySink,
    RunFiles,
    Tracer,
)
from app.runs.request import RunId
from app.runs.session import SessionStore, ThreadStore
from app.settings.agreement import find_differences, fingerprints
from app.settings.permissions import is_slack_group
from app.settings.settings import Settings
from app.slack.catch_up import HeardStore
from app.slack.connection import SlackConnection, open_slack
from app.slack.home import WelcomeStore
from app.slack.key_modal import KeyModal, Vendor
from app.store.runs import SqlRunStore
from app.store.seal import read_secrets
from app.tracing.measured import MeasuredTracer
from app.tracing.steps import StepKeeper
from sandbox_runtime.provider import SandboxProvider
from sandbox_runtime.types import Capability

_log = get_logger(__name__)

_NAMES: Mapping[ModelProtocol, str] = {
    ModelProtocol.ANTHROPIC: "Anthropic",
    ModelProtocol.OPENAI: "OpenAI",
    ModelProtocol.GEMINI: "Google Gemini",
}


def create_own_keys(settings: Settings, store: SqlRunStore) -> OwnKeyStore:
    """Returns where people's keys are kept; where nobody may have any, there are none."""
    if settings.models.own_keys_secret is None:
        return NoOwnKeys()
    return store.own_keys(read_secrets(settings.models.own_keys_secret.get_secret_value()))


def create_key_modal(
    settings: Settings, slack: SlackConnection, store: OwnKeyStore, audit: AuditLog
) -> KeyModal | None:
    """Returns the form in which people give keys, where they may."""
    if settings.models.own_keys_secret is None:
        return None
    vendors = {protocol.value: _vendor(settings, protocol) for protocol in _NAMES}
    return slack.key_modal(store, vendors, audit=audit)


def _vendor(settings: Settings, protocol: ModelProtocol) -> Vendor:
    specs = [agent_spec(name) for name in agent_names()]
    agents = ", ".join(one.name for one in specs if one.protocol is protocol)
    return Vendor(
        name=f"{_NAMES[protocol]} ({agents})",
        find_problem=partial(settings.models.find_key_problem, key_field(protocol)),
    )


async def check_own_keys(settings: Settings, store: SqlRunStore, *, adopts: bool) -> None:
    """Sees that no other process on the database seals people's keys with another secret; `adopts`: from now on with the first of ours.

    Raises:
        UnreadableStoreError: one does.
    """
    secret = settings.models.own_keys_secret
    if isinstance(settings.database, str):
        texts = read_secrets(secret.get_secret_value()) if secret is not None else ()
        await store.installation.check_own_keys(texts, adopts=adopts)


async def fingerprints_of(
    settings: Settings, store: SqlRunStore, *, hears: bool
) -> Mapping[str, str]:
    """Returns hashes of the settings that all processes on the database must have alike; see `fingerprints`."""
    key = (await store.installation.load()).signing_key
    return await asyncio.to_thread(fingerprints, settings, key=key, hears=hears)


async def _load_signing_key(settings: Settings, store: SqlRunStore) -> bytes:
    """Returns the key of run tokens: of all processes on a database, or in the state directory of the one that there is."""
    if isinstance(settings.database, str):
        return (await store.installation.load()).signing_key
    return load_signing_key(settings.service.state_dir / "broker.key")


PartT = TypeVar("PartT")


class Wrap(Protocol):
    """Is told of each adapter by its port's name, and returns what takes its place."""

    def __call__(self, port: str, part: PartT, /) -> PartT: ...


def _as_it_is(_port: str, part: PartT, /) -> PartT:
    return part


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters:
    """The adapters behind the core's ports, each by its port's name."""

    store: SqlRunStore
    files: RunFiles
    sessions: SessionStore
    defaults: DefaultStore
    channel_notes: ChannelNoteStore
    spending: SpendingStore
    own_keys: OwnKeyStore
    welcomes: WelcomeStore
    threads: ThreadStore
    approvals: ApprovalStore
    audit: AuditLog
    pull_requests: PullRequestStore
    dispatcher: Dispatcher
    provider: SandboxProvider
    """Not open yet."""
    replies: ReplySink
    reader: ThreadReader
    exchange: FileExchange
    judge: Judge
    heard: HeardStore

    def wrapped(self, wrap: Wrap) -> "Adapters":
        return replace(
            self,
            **{port.name: wrap(port.name, getattr(self, port.name)) for port in fields(self)},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """Parts that tests and the bench put in place of the real ones, or around them."""

    provider: SandboxProvider | None = None
    adapter: AgentAdapter | None = None
    wrap: Wrap = _as_it_is


class Role(StrEnum):
    """What one Orion process does. Each role but `WHOLE` needs a database that several processes can use (PostgreSQL)."""

    WHOLE = "serve"
    """Hears of messages, places them and advances them."""
    FRONT = "serve --no-work"
    """Hears of messages and places them; others advance them."""
    WORKER = "worker"
    """Advances runs, and hears of nothing."""
    HOOK = "function that hears"
    """A front for the length of a request: nothing goes on in the background."""
    SLICE = "function that works"
    """A worker for the length of a message."""

    @property
    def is_working(self) -> bool:
        return self in (Role.WHOLE, Role.WORKER, Role.SLICE)

    @property
    def hears(self) -> bool:
        return self in (Role.WHOLE, Role.FRONT, Role.HOOK)

    @property
    def is_brief(self) -> bool:
        """Whether it lives for one request or message."""
        return self in (Role.HOOK, Role.SLICE)


class OtherPlaceError(Exception):
    """Another process keeps threads' files elsewhere. One sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    role: Role
    adapters: Adapters
    slices: SliceDispatcher | None
    """The dispatcher of a role that is brief, as it is called for a message."""
    slack: SlackConnection
    remembered: RememberedSlack | None
    """Who the bot is and who is in a user group, as any process has asked; None = this one, which stays, asks Slack itself."""
    broker: SocketBroker
    tracer: Tracer
    meters: Meters
    choice: ProviderChoice
    """Of the provider."""
    may_act: Gate
    """Before effects for runs: this process's lease."""
    owner: str
    """The name by which this process owns sandboxes, new at each start; see `SandboxProvider.sweep`."""
    accounts: AccountStore | None
    """That people have linked; None = they cannot."""
    credentials: GitCredentials
    """By which git servers are reached, people's among them."""


@asynccontextmanager
async def open_outside(
    settings: Settings,
    store: SqlRunStore,
    *,
    role: Role,
    place: str,
    policy: RunPolicy,
    masker: Masker,
    overrides: Overrides,
    wake_ups: WakeUps | None = None,
) -> AsyncIterator[Outside]:
    """Opens the adapters beside the store, with what `overrides` puts in their place or around them.

    `place`: see `StateDirectory.place`. `wake_ups`: of a role that is brief.

    Raises:
        OtherPlaceError
        UnreadableStoreError: the database is not one that this Orion can use.
        SandboxError: no sandbox can be made on this machine.
    """
    async with AsyncExitStack() as stack:
        if not role.is_brief:
            await store.examine()
        await check_own_keys(settings, store, adopts=True)
        accounts = create_accounts(settings, store)
        group = await stack.enter_async_context(open_task_group())
        meters = Meters()
        tracer = MeasuredTracer(
            await stack.enter_async_context(open_tracer(settings, masker)),
            meters,
            StepKeeper(store.files, group=group),
        )
        tokens = create_tokens(settings, accounts, group=group)
        credentials = git_credentials(settings, tokens)
        broker = await stack.enter_async_context(
            open_broker(
                settings,
                settings.broker_directory,
                signing_key=await _load_signing_key(settings, store),
                credentials=credentials,
                tokens=tokens,
                clock=SystemClock(store.leases.skew_s),
            )
        )
        choice = ProviderChoice(name="override", reason="")
        if not role.is_working:
            choice = ProviderChoice(name="local", reason="it is not used here")
        elif overrides.provider is None:
            choice = await choose_provider(settings)
        owner = store.leases.process.owner
        provider = overrides.provider or create_provider(settings, choice, owner)
        is_local = role.is_working and Capability.REMOTE not in provider.capabilities
        told: Mapping[str, str] | None = None
        if store.leases.is_shared and not role.is_brief:
            told = await fingerprints_of(settings, store, hears=role.hears)
        store.leases.describe(
            place=f"{place} {provider.name}" if is_local else "",
            is_working=role.is_working,
            host=None if role.is_brief else place,
            settings=told,
        )
        leases = overrides.wrap("leases", store.leases)
        lease = await stack.enter_async_context(open_lease(leases, is_brief=role.is_brief))
        await _refuse_other_places(store, provider.name)
        others = await store.leases.settings_of_others() if told else {}
        if differences := find_differences(told or {}, others):
            _log.warning("settings.differ", says=differences)
        slack = await stack.enter_async_context(
            open_slack(
                slack_options(settings, tracer),
                may_write=lease.confirm,
                is_over=partial(_is_over, store),
                on_call=meters.slack_called,
            )
        )
        lease.tell(slack.share_limits)
        dispatcher = _create_dispatcher(
            store, leases, lease, role=role, policy=policy, wake_ups=wake_ups
        )
        adapters = Adapters(
            store=store,
            files=store.files,
            sessions=store.sessions,
            defaults=store.defaults,
            channel_notes=store.channel_notes,
            spending=store.spending,
            own_keys=create_own_keys(settings, store),
            welcomes=store.welcomes,
            threads=store.threads,
            approvals=store.approvals,
            audit=store.audit,
            pull_requests=store.pull_requests,
            dispatcher=dispatcher,
            provider=provider,
            replies=slack.replies,
            reader=slack.reader,
            exchange=slack.files,
            judge=await stack.enter_async_context(open_judge(settings)),
            heard=store.heard,
        ).wrapped(overrides.wrap)
        if role.is_working:
            provider = await stack.enter_async_context(adapters.provider)
            adapters = replace(adapters, provider=provider)
        yield Outside(
            role=role,
            adapters=adapters,
            slices=dispatcher if isinstance(dispatcher, SliceDispatcher) else None,
            slack=slack,
            remembered=_remember(settings, slack, store) if role.is_brief else None,
            broker=broker,
            tracer=tracer,
            meters=meters,
            choice=choice,
            may_act=lease.confirm,
            owner=owner,
            accounts=accounts,
            credentials=credentials,
        )


def _remember(settings: Settings, slack: SlackConnection, store: SqlRunStore) -> RememberedSlack:
    named = {one for members in settings.toml.groups.values() for one in members}
    token = slack_options(settings).bot_token.get_secret_value()
    return RememberedSlack(
        slack, store.slack_facts, token=token, groups=sum(map(is_slack_group, named))
    )


def _create_dispatcher(
    store: SqlRunStore,
    leases: Leases,
    lease: ProcessLease,
    *,
    role: Role,
    policy: RunPolicy,
    wake_ups: WakeUps | None,
) -> RunDispatcher:
    waits_s = policy.queue_timeout_s
    if wake_ups is not None:
        return SliceDispatcher(
            store, leases, lease, wake_ups=wake_ups, waits_s=waits_s, slice_s=policy.slice_s
        )
    capacity = policy.capacity if role.is_working else 0
    return RunDispatcher(store, leases, lease, capacity=capacity, waits_s=waits_s)


async def _is_over(store: SqlRunStore, run_id: RunId) -> bool:
    """Implements IsOver."""
    run = await store.get(run_id)
    return run is not None and run.outcome is not None


async def _refuse_other_places(store: SqlRunStore, provider: str) -> None:
    """Threads' files in sandboxes of this machine are not found from another one."""
    if not store.leases.is_shared:
        return
    own = store.leases.process
    for other in await store.leases.living():
        if own.is_working and other.is_working and other.place != own.place:
            raise OtherPlaceError(
                f"{other.name} works on the same database on another host, or with another ORION_STATE_DIR or kind of sandboxes, "
                f"and {provider} sandboxes keep threads' files where they run: "
                "let all workers share host, ORION_STATE_DIR and ORION_SANDBOX, or give all a cloud"
            )
