"""What sandboxes ask for models, tools and repositories: the broker with its doors, made from the settings."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from fastapi import APIRouter

from agent_scripts.adapter import ModelProtocol
from agent_scripts.registry import create_adapter
from app.brokerage.admission import Admission
from app.brokerage.broker import ModelsBroker, Upstream, create_broker_app
from app.brokerage.doors import DoorBroker, door_of
from app.brokerage.git import GitBroker
from app.brokerage.git_remotes import GitRemotes
from app.brokerage.mcp import McpBroker
from app.brokerage.outgoing import create_client
from app.brokerage.remote import DirectBroker, PublicBroker
from app.brokerage.tokens import load_signing_key
from app.config import Settings
from app.model_access import (
    ModelSource,
    injected_headers,
    key_headers,
    model_source,
    name_at,
    own_source,
)
from app.runs.broker_ports import ModelBroker
from app.runs.clock import SystemClock
from app.runs.session import Session
from app.web.hosting import serve_doors
from sandbox_runtime.provider import SandboxProvider
from sandbox_runtime.types import BrokeredNetwork, Capability

MIB = 1024 * 1024


@asynccontextmanager
async def open_broker(settings: Settings, directory: Path) -> AsyncIterator[DoorBroker]:
    """The model broker, with its doors in this directory.

    Raises:
        OSError: `directory` cannot hold unix sockets.
    """
    await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True, mode=0o755)
    # One for each: what waits for tools or for git shall not take the connections of models.
    async with create_client() as to_models, create_client() as to_tools, create_client() as to_git:
        clock = SystemClock()
        signing_key = load_signing_key(settings.orion_state_dir / "broker.key")
        admission = Admission(signing_key=signing_key, clock=clock)
        models = ModelsBroker(
            admission=admission,
            upstreams=_upstreams(settings),
            own_upstream=partial(_own_upstream, settings),
            http=to_models,
            clock=clock,
        )
        mcp = McpBroker(admission=admission, servers=settings.mcp_servers.outside, http=to_tools)
        git = GitBroker(
            admission=admission,
            remotes=git_remotes(settings),
            http=to_git,
            max_bytes=settings.orion_sandbox_disk_mib * MIB,
        )
        router = APIRouter()
        for part in (models.router(), mcp.router(), git.router()):
            router.include_router(part)
        # Everyone may connect who can reach a door: the state directory is closed to others, and a sandbox, whose user is
        # another one, sees its own door alone, through its own binding.
        async with serve_doors(create_broker_app(router)) as doors:
            yield DoorBroker(admission, router=router, directory=directory, open_door=doors.open)


def broker_for(
    settings: Settings, doors: DoorBroker, protocol: ModelProtocol, *, is_remote: bool
) -> ModelBroker:
    """What sandboxes of one kind of provider ask: the doors of this machine, its public address, or the model itself."""
    if not is_remote:
        return doors
    if settings.orion_public_url:
        return PublicBroker(doors.admission, url=settings.orion_public_url)
    return create_direct_broker(settings, protocol)


def create_direct_broker(settings: Settings, protocol: ModelProtocol) -> DirectBroker:
    """For providers whose networks add the key by themselves, to what goes to the models of that protocol."""
    source = model_source(settings, protocol)
    if source is None:
        return DirectBroker(base_url="", headers={})
    headers = injected_headers(protocol, source.key)
    return DirectBroker(base_url=source.base_url, headers=headers)


def _upstreams(settings: Settings) -> Mapping[str, Upstream]:
    """By the names of protocols: what the broker forwards to."""
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
    """By which a run of the session will find the service's broker; the directory of a door is there."""
    if Capability.REMOTE in provider.capabilities:
        if settings.orion_public_url:
            return BrokeredNetwork(endpoint=settings.orion_public_url)
        protocol = create_adapter(session.agent or settings.orion_agent).protocol
        direct = create_direct_broker(settings, protocol).endpoint_for(session.id)
        return BrokeredNetwork(endpoint=direct.address, headers=direct.headers)
    path = door_of(settings.broker_directory, session.id)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    return BrokeredNetwork(endpoint=str(path))


def git_remotes(settings: Settings) -> GitRemotes:
    """Where git's requests go, and with whose token."""
    token = settings.github_token
    return GitRemotes(
        github_url=settings.orion_github_url, token=token.get_secret_value() if token else ""
    )
