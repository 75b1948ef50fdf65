"""Builds the broker, for models, tools and repositories, from the settings."""

import asyncio
import os
import secrets
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fastapi import APIRouter

from agent_scripts.adapter import ModelProtocol
from agent_scripts.registry import agent_spec
from app.accounts.records import mcp_service
from app.accounts.tokens import AccountTokens
from app.aio import open_task_group
from app.brokerage.broker import ModelsBroker, Upstream, create_broker_app
from app.brokerage.credentials import GitCredentials
from app.brokerage.endpoints import DirectBroker, PublicBroker, SocketBroker, socket_path
from app.brokerage.git import GitBroker
from app.brokerage.http import create_http_client
from app.brokerage.judge import AnthropicJudge
from app.brokerage.mcp import McpBroker, McpServer, OAuthClient
from app.brokerage.registry import GrantRegistry
from app.brokerage.sharing import Account, GrantStore, open_sharing
from app.compose.accounts import NO_TOKENS, Tokens, git_credentials
from app.compose.models import (
    ModelSource,
    injected_headers,
    is_judging,
    key_headers,
    model_source,
    name_at,
    own_source,
)
from app.egress.proxy import EgressProxy
from app.runs.broker import ModelBroker, ModelGrant, RunApprovals
from app.runs.budget import Ledger
from app.runs.history import Judge, NoJudge
from app.runs.model import Clock, Run, SystemClock
from app.runs.ports import OwnKeyStore, RunPorts, RunStore
from app.runs.session import Session
from app.settings.mcp import OutsideServer
from app.settings.settings import Settings
from app.store.runs import open_store
from app.web.hosting import serve_sockets
from sandbox_runtime.provider import SandboxProvider
from sandbox_runtime.types import BrokeredNetwork, Capability

MIB = 1024 * 1024


@asynccontextmanager
async def open_broker(
    settings: Settings,
    directory: Path,
    *,
    signing_key: bytes | None = None,
    credentials: GitCredentials | None = None,
    tokens: Tokens = NO_TOKENS,
    clock: Clock | None = None,
) -> AsyncIterator[SocketBroker]:
    """Opens the broker, with the sockets of threads in this directory.

    Args:
        settings: of the service.
        directory: made if it is not there.
        signing_key: None = its tokens are good here alone.
        credentials: None = the deployment's own, without people's accounts.
        tokens: of people's accounts, at MCP servers among others.
        clock: by which tokens expire; None = this machine's.

    Raises:
        OSError: `directory` cannot hold unix sockets.
    """
    await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True, mode=0o755)
    # One for each: what waits for tools or for git shall not take the connections of models.
    async with (
        create_http_client() as to_models,
        create_http_client() as to_tools,
        create_http_client() as to_git,
    ):
        clock = clock or SystemClock()
        registry = GrantRegistry(signing_key=signing_key or secrets.token_bytes(32), clock=clock)
        models = ModelsBroker(
            registry=registry,
            upstreams=_upstreams(settings),
            own_upstream=partial(_own_upstream, settings),
            http=to_models,
            clock=clock,
        )
        servers = _mcp_servers(settings, tokens)
        mcp = McpBroker(registry=registry, servers=servers, http=to_tools)
        git = GitBroker(
            registry=registry,
            credentials=credentials or git_credentials(settings),
            http=to_git,
            max_bytes=settings.sandbox.disk_mib * MIB,
        )
        router = APIRouter()
        for part in (models.router(), mcp.router(), git.router()):
            router.include_router(part)
        # Everyone may connect who can reach a socket: the state directory is closed to others, and a sandbox, whose user is
        # another one, sees its own socket alone, through its own binding.
        async with (
            serve_sockets(create_broker_app(router)) as listeners,
            open_task_group() as group,
        ):
            try:
                yield SocketBroker(
                    registry,
                    router=router,
                    directory=directory,
                    open_listener=listeners.open,
                    egress=EgressProxy(group),
                )
            finally:
                await registry.close()


@asynccontextmanager
async def open_judge(settings: Settings) -> AsyncIterator[Judge]:
    """Opens what asks a model for whom replies are; where none shall judge, it says nothing."""
    protocol = ModelProtocol.ANTHROPIC
    source = model_source(settings, protocol) if is_judging(settings) else None
    if source is None:
        yield NoJudge()
        return
    async with create_http_client() as http:
        yield AnthropicJudge(
            model=settings.follow_ups.follow_up_model,
            upstream=_upstream(protocol, source),
            http=http,
            clock=SystemClock(),
        )


ApprovalsOf = Callable[[Run], RunApprovals | None]
"""Returns how a run asks people; None = it asks them nothing."""


@asynccontextmanager
async def share_grants(
    settings: Settings,
    broker: SocketBroker,
    store: GrantStore,
    ports: RunPorts,
    *,
    approvals_of: ApprovalsOf,
) -> AsyncIterator[None]:
    """Lets all processes on a database serve sandboxes that reach the public address, while the block runs; nothing where there is one."""
    if isinstance(settings.database, Path) or not settings.service.public_url:
        yield
        return
    read = AccountReader(
        store=ports.store, ledger=ports.ledger, own_keys=ports.own_keys, approvals_of=approvals_of
    )
    async with open_sharing(broker.registry, store=store, read_account=read):
        yield


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountReader:
    """Implements ReadAccount from the database that processes share."""

    store: RunStore
    ledger: Ledger
    own_keys: OwnKeyStore
    approvals_of: ApprovalsOf

    async def __call__(self, grant: ModelGrant, earlier: Account | None) -> Account | None:
        spent = earlier.spending if earlier else None
        if spent is not None and spent.is_own_key == bool(grant.own_key_protocol):
            await spent.load()
            return earlier
        if earlier is not None and not grant.models:
            return earlier
        run = await self.store.get(grant.run_id)
        if not grant.models:
            return Account(spending=None, approvals=self.approvals_of(run) if run else None)
        if run is None:
            return None
        spending = await self.ledger.load_spending(run)
        spending.is_own_key = bool(grant.own_key_protocol)
        keys = await self.own_keys.of(run.request.team, run.request.user)
        own_key = keys.get(grant.own_key_protocol, "")
        return Account(spending=spending, own_key=own_key, approvals=self.approvals_of(run))


@asynccontextmanager
async def open_visiting_broker(
    settings: Settings, *, is_remote: bool
) -> AsyncIterator[ModelBroker]:
    """Opens a broker for a command that works beside the service, with sockets of its own.

    At clouds the service's processes serve its sandboxes, as they do each other's: they find its grants in their database.
    """
    directory = settings.service.state_dir / f"visit-{os.getpid()}"
    async with AsyncExitStack() as stack:
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        signing_key = store = None
        if is_remote and isinstance(settings.database, str):
            store = await stack.enter_async_context(open_store(settings.database))
            signing_key = (await store.installation.load()).signing_key
        broker = await stack.enter_async_context(
            open_broker(settings, directory, signing_key=signing_key)
        )
        if store is not None:
            await stack.enter_async_context(
                open_sharing(broker.registry, store=store.grants, read_account=_no_account)
            )
        yield broker_for(settings, broker, None, is_remote=is_remote)


async def _no_account(grant: ModelGrant, earlier: Account | None) -> None:
    """Implements ReadAccount for a process that serves nobody's sandboxes."""
    del grant, earlier


def broker_for(
    settings: Settings, sockets: SocketBroker, protocol: ModelProtocol | None, *, is_remote: bool
) -> ModelBroker:
    """Returns the broker for one kind of provider: sockets of this machine, its public address, or the model itself."""
    if not is_remote:
        return sockets
    if settings.service.public_url:
        return PublicBroker(sockets.registry, url=settings.service.public_url)
    return create_direct_broker(settings, protocol)


def create_direct_broker(settings: Settings, protocol: ModelProtocol | None) -> DirectBroker:
    """Creates the broker for providers whose networks add the key to requests to that protocol's models."""
    source = model_source(settings, protocol) if protocol is not None else None
    if protocol is None or source is None:
        return DirectBroker(base_url="", headers={})
    headers = injected_headers(protocol, source.key)
    return DirectBroker(base_url=source.base_url, headers=headers)


def _mcp_servers(settings: Settings, tokens: Tokens) -> Mapping[str, McpServer]:
    return {
        name: _mcp_server(server, tokens.get(mcp_service(name)))
        for name, server in settings.mcp_servers.outside.items()
    }


def _mcp_server(server: OutsideServer, accounts: AccountTokens | None) -> McpServer:
    """`accounts`: of people; None = they have none at this server, or a command asks, which is nobody's."""
    client, oauth = None, server.oauth
    if oauth is not None and not server.is_personal:
        client = OAuthClient(
            token_url=oauth.token_url,
            client_id=oauth.client_id,
            client_secret=oauth.client_secret,
            scope=oauth.scope,
        )
    return McpServer(
        url=server.url,
        headers=server.headers,
        oauth=client,
        is_personal=server.is_personal,
        accounts=accounts,
    )


def _upstreams(settings: Settings) -> Mapping[str, Upstream]:
    """Returns the providers that the broker forwards to, by the names of protocols."""
    sources = {protocol: model_source(settings, protocol) for protocol in ModelProtocol}
    return {
        protocol.value: _upstream(protocol, source)
        for protocol, source in sources.items()
        if source is not None
    }


def _own_upstream(settings: Settings, protocol: str, key: str) -> Upstream:
    of_models = ModelProtocol(protocol)
    return _upstream(of_models, own_source(settings, of_models, key))


def _upstream(protocol: ModelProtocol, source: ModelSource) -> Upstream:
    return Upstream(
        base_url=source.base_url,
        key_headers=key_headers(protocol, source),
        name_at=partial(name_at, source, protocol),
    )


def network_for(settings: Settings, session: Session, provider: SandboxProvider) -> BrokeredNetwork:
    """Returns how a run of the session will reach the broker; the directory of its socket exists."""
    if Capability.REMOTE in provider.capabilities:
        if settings.service.public_url:
            return BrokeredNetwork(endpoint=settings.service.public_url)
        protocol = agent_spec(session.agent or settings.agents.default).protocol
        direct = create_direct_broker(settings, protocol).endpoint_for(session.id)
        return BrokeredNetwork(endpoint=direct.address, headers=direct.headers)
    path = socket_path(settings.broker_directory, session.id)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    return BrokeredNetwork(endpoint=str(path))
