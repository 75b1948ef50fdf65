"""What the core stands on: the adapters behind its ports, opened from the settings."""

import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Protocol, TypeVar

from agent_scripts.adapter import AgentAdapter, ModelProtocol
from agent_scripts.registry import agent_names, agent_spec
from app.brokerage.endpoints import SocketBroker
from app.compose.brokers import open_broker
from app.compose.factories import create_dispatcher, open_tracer, slack_options
from app.compose.models import key_field
from app.compose.providers import ProviderChoice, choose_provider, create_provider
from app.redaction import Masker
from app.runs.budget import SpendingStore
from app.runs.policy import RunPolicy
from app.runs.ports import (
    DefaultStore,
    Dispatcher,
    NoOwnKeys,
    OwnKeyStore,
    ReplySink,
    RunFiles,
    ThreadReader,
    Tracer,
)
from app.runs.session import SessionStore
from app.settings.settings import Settings
from app.slack.connection import SlackConnection, open_slack
from app.slack.key_modal import KeyModal, Vendor
from app.store.runs import SqlRunStore, open_sqlite_store
from app.store.settings import read_secrets
from sandbox_runtime.provider import SandboxProvider

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
    settings: Settings, slack: SlackConnection, store: OwnKeyStore
) -> KeyModal | None:
    """Returns the form in which people give keys, where they may."""
    if settings.models.own_keys_secret is None:
        return None
    return slack.key_modal(
        store, {protocol.value: _vendor(settings, protocol) for protocol in _NAMES}
    )


def _vendor(settings: Settings, protocol: ModelProtocol) -> Vendor:
    specs = [agent_spec(name) for name in agent_names()]
    agents = ", ".join(one.name for one in specs if one.protocol is protocol)
    return Vendor(
        name=f"{_NAMES[protocol]} ({agents})",
        find_problem=partial(settings.models.find_key_problem, key_field(protocol)),
    )


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
    spending: SpendingStore
    own_keys: OwnKeyStore
    dispatcher: Dispatcher
    provider: SandboxProvider
    """Not open yet."""
    replies: ReplySink
    reader: ThreadReader

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
    poll_interval_s: float | None = None
    """Between two looks of the dispatcher for work; None = as often as is best."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    adapters: Adapters
    slack: SlackConnection
    broker: SocketBroker
    tracer: Tracer
    choice: ProviderChoice
    """Of the provider."""
    owner: str
    """The name by which this process owns sandboxes, new at each start; see `SandboxProvider.sweep`."""


@asynccontextmanager
async def open_outside(
    settings: Settings, *, policy: RunPolicy, masker: Masker, overrides: Overrides
) -> AsyncIterator[Outside]:
    """Opens the adapters, with what `overrides` puts in their place or around them.

    Raises:
        UnreadableStoreError: the database is not one that this Orion can use.
        SandboxError: no sandbox can be made on this machine.
    """
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_sqlite_store(settings.database_path))
        await store.examine()
        tracer = await stack.enter_async_context(open_tracer(settings, masker))
        broker = await stack.enter_async_context(open_broker(settings, settings.broker_directory))
        owner = f"p-{secrets.token_hex(16)}"
        choice = ProviderChoice(name="override", reason="")
        if overrides.provider is None:
            choice = await choose_provider(settings)
        slack = await stack.enter_async_context(open_slack(slack_options(settings)))
        adapters = Adapters(
            store=store,
            files=store.files,
            sessions=store.sessions,
            defaults=store.defaults,
            spending=store.spending,
            own_keys=create_own_keys(settings, store),
            dispatcher=create_dispatcher(
                settings.database_path,
                store,
                capacity=policy.capacity,
                poll_interval_s=overrides.poll_interval_s,
            ),
            provider=overrides.provider or create_provider(settings, choice, owner),
            replies=slack.replies,
            reader=slack.reader,
        ).wrapped(overrides.wrap)
        provider = await stack.enter_async_context(adapters.provider)
        yield Outside(
            adapters=replace(adapters, provider=provider),
            slack=slack,
            broker=broker,
            tracer=tracer,
            choice=choice,
            owner=owner,
        )
