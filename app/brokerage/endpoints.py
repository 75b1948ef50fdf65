"""How a sandbox reaches the broker: a unix socket of its thread, the public address, or the provider's own network."""

import shutil
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

from fastapi import APIRouter

from app.approvals.rules import Deed, DeedKind
from app.brokerage.registry import GrantRegistry
from app.egress.proxy import EgressGrant, EgressProxy
from app.egress.tally import Tally
from app.runs.broker import BrokerEndpoint, GrantHooks, ModelGrant, NotApprovedError, RunApprovals
from app.runs.request import RunId
from app.runs.session import SessionId

NAME_CHARS = 12
SOCKET_NAME, EGRESS_NAME = "sock", "egress"
"""Of the sockets to the broker and to the proxy, as sandboxes know them. Short: the path of a unix socket has 107 bytes. Source: Linux, unix(7)."""
MAX_PATH_BYTES = 107


class OpenListener(Protocol):
    """Listens at a unix socket while inside; requests that come by it carry the name."""

    def __call__(self, path: Path, name: str, /) -> AbstractAsyncContextManager[None]: ...


class SocketBroker:
    """Implements ModelBroker by a unix socket for each thread: a token is good only in the sandbox that it was made for.

    Beside it is another one, of the proxy to the hosts that the thread's run may reach. An endpoint's directory exists as long as a
    sandbox that mounts it; its sockets while a run goes.
    """

    def __init__(
        self,
        registry: GrantRegistry,
        *,
        router: APIRouter,
        directory: Path,
        open_listener: OpenListener,
        egress: EgressProxy,
    ) -> None:
        """Raises: OSError: `directory` has too long a path."""
        self.registry = registry
        self.router = router
        """For the public address, where only the token counts: no sandbox of this machine reaches it."""
        self._directory = directory
        self._open_listener = open_listener
        self._egress = egress
        longest = directory / ("x" * NAME_CHARS) / max(SOCKET_NAME, EGRESS_NAME, key=len)
        if len(bytes(longest)) > MAX_PATH_BYTES:
            raise OSError(f"too long for a unix socket: {longest}")

    def endpoint_for(self, session_id: SessionId) -> BrokerEndpoint:
        path = self._path(session_id)
        path.parent.mkdir(mode=0o755, exist_ok=True)
        return BrokerEndpoint(address=str(path))

    @asynccontextmanager
    async def open_grant(
        self,
        grant: ModelGrant,
        hooks: GrantHooks,
    ) -> AsyncIterator[str]:
        path = Path(self.endpoint_for(SessionId(grant.session_id)).address)
        # It listens within the grant: an agent that waits for its broker must not be told that its run is over.
        listening = partial(self._listen, path, grant)
        async with self.registry.hold_grant(grant, hooks, listening) as token:
            yield token

    @asynccontextmanager
    async def _listen(self, path: Path, grant: ModelGrant) -> AsyncIterator[None]:
        def current() -> EgressGrant:
            live = self.registry.live(grant.run_id)
            if live is None:
                return EgressGrant(run_id=grant.run_id, entries=(), tally=Tally())
            approvals = live.hooks.approvals
            return EgressGrant(
                run_id=grant.run_id,
                entries=live.grant.hosts,
                tally=live.hooks.tally,
                approve=partial(approve_host, approvals) if approvals else None,
            )

        async with (
            self._open_listener(path, grant.session_id),
            self._egress.listen(path.with_name(EGRESS_NAME), current),
        ):
            yield

    def keep(self, run_id: RunId) -> None:
        self.registry.keep(run_id)

    def rebind(self, session_id: SessionId, endpoint_id: SessionId) -> None:
        self.close(session_id)
        # The sandbox sees that directory itself; the name leads there, also after a restart.
        self._path(session_id).parent.symlink_to(self._path(endpoint_id).parent.name)

    def close(self, session_id: SessionId) -> None:
        directory = self._path(session_id).parent
        if directory.is_symlink():
            rebound = directory.resolve()
            directory.unlink()
            directory = rebound
        shutil.rmtree(directory, ignore_errors=True)

    def close_others(self, kept: Collection[SessionId]) -> None:
        """Removes the endpoints that an earlier process left, except those of sandboxes that will be attached to."""
        directories = [self._path(session_id).parent for session_id in kept]
        names = {path.name for path in (*directories, *(one.resolve() for one in directories))}
        for path in self._directory.iterdir():
            if path.name in names:
                continue
            if path.is_symlink():
                path.unlink()
            else:
                shutil.rmtree(path, ignore_errors=True)

    def _path(self, session_id: SessionId) -> Path:
        return socket_path(self._directory, session_id)


def socket_path(directory: Path, session_id: SessionId) -> Path:
    """Returns the path of a session's socket."""
    return directory / session_id[-NAME_CHARS:] / SOCKET_NAME


async def approve_host(approvals: RunApprovals, host: str) -> str | None:
    """Implements ApproveHost: to reach a host is no effect by itself."""
    deed = Deed(kind=DeedKind.HOST, target=host)
    if not approvals.covers(deed):
        return None
    try:
        await approvals.approve(deed, _may)
    except NotApprovedError as exc:
        return str(exc)
    except OSError:
        return "whether this is allowed cannot be looked up now"
    return ""


async def _may() -> bool:
    return True


STAND_IN = "sk-ant-orion-added-outside"
"""The placeholder for a key where the sandbox's network adds the real one; any text of the right shape will do."""


class _SharedEndpoint:
    """The part of ModelBroker for brokers that all sessions reach in the same way: nothing is opened for one."""

    def __init__(self, endpoint: BrokerEndpoint) -> None:
        self._endpoint = endpoint

    def endpoint_for(self, session_id: SessionId) -> BrokerEndpoint:
        del session_id
        return self._endpoint

    def rebind(self, session_id: SessionId, endpoint_id: SessionId) -> None:
        pass

    def close(self, session_id: SessionId) -> None:
        pass


class PublicBroker(_SharedEndpoint):
    """Implements ModelBroker: the same routes and tokens as at the sockets, reached over the internet, at any process."""

    def __init__(self, registry: GrantRegistry, *, url: str) -> None:
        super().__init__(BrokerEndpoint(address=url.rstrip("/")))
        self._registry = registry

    @asynccontextmanager
    async def open_grant(self, grant: ModelGrant, hooks: GrantHooks) -> AsyncIterator[str]:
        sharing = self._registry.sharing
        if sharing is None:
            async with self._registry.hold_grant(grant, hooks) as token:
                yield token
        else:
            with self._registry.open_grant(grant, hooks) as token:
                async with sharing.offer(grant.run_id):  # where it is kept, too
                    yield token

    def keep(self, run_id: RunId) -> None:
        self._registry.keep(run_id)


class DirectBroker(_SharedEndpoint):
    """Implements ModelBroker by the sandbox provider's network, which adds the key to requests to the model.

    Against a broker it lacks the check of the model, limits and counts of calls, and MCP servers that are reached by URL.
    """

    def __init__(self, *, base_url: str, headers: Mapping[str, str]) -> None:
        """`headers`: replace those in which agents send the placeholder for the key."""
        super().__init__(
            BrokerEndpoint(address=base_url.rstrip("/"), headers=headers, has_broker=False)
        )

    @asynccontextmanager
    async def open_grant(self, grant: ModelGrant, hooks: GrantHooks) -> AsyncIterator[str]:
        del grant, hooks
        yield STAND_IN

    def keep(self, run_id: RunId) -> None:
        pass  # the network's rule stands as long as the sandbox
