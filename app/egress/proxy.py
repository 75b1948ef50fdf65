"""The one way out of a sandbox beside the broker: a forward proxy at a unix socket, for hosts that are on a list, which looks inside nothing.

Whatever speaks TLS goes through CONNECT, and the name in its handshake must be the one that was asked for; plain HTTP, for entries with
port 80, is GET and HEAD alone. A name is looked up once, outside, and the address that was checked is the one that is dialled. Whoever
is refused is answered, at once: clients wait for minutes for what does not answer.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Final

from app.aio import TaskGroup, bind_unix_socket, together
from app.egress.addresses import LookUp, is_public, is_this_machine, look_up, may_be_private
from app.egress.hello import HelloError, read_hello
from app.egress.hosts import PLAIN_PORT, HostEntry, find_entry
from app.egress.requests import (
    CHUNK_BYTES,
    ProxyRequest,
    RefusedError,
    read_request,
    render_refusal,
)
from app.egress.tally import NOT_LISTED, NOT_PUBLIC, Tally
from app.egress.upstream import Upstream
from app.log import get_logger

_log = get_logger(__name__)

ESTABLISHED: Final = b"HTTP/1.1 200 Connection established\r\n\r\n"
LOGGED_REFUSALS: Final = 20
"""Of a run, one by one: a loop in its sandbox must not fill the log. All are counted."""
SILENT_FACTOR: Final = 2
"""So many times a run's connections may be open, those among them that have asked for nothing yet."""
CROWD: Final = "too many connections at once"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Dial = Callable[[str, int], Awaitable[Upstream]]


async def dial(address: str, port: int) -> Upstream:
    """Connects to an address. Raises: OSError: nothing takes the connection there."""
    loop = asyncio.get_running_loop()
    return (await loop.create_connection(Upstream, address, port))[1]


ApproveHost = Callable[[str], Awaitable[str | None]]
"""Returns why a host, as `name:port`, may not be reached; empty when it may, None when no rule is about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressBounds:
    """Bounds what one run may use of the proxy; where it says so, what all runs may."""

    head_s: float = 15.0
    hello_s: float = 10.0
    dial_s: float = 10.0
    """For all addresses of a host together."""
    idle_s: float = 300.0
    """Without a byte in either direction."""
    connections: int = 64
    all_connections: int = 1024
    """Of all runs of this process together."""
    sent_bytes: int = 50 * 1024**2
    """What a sandbox gives away goes this way; to ask for packages takes little."""
    received_bytes: int = 5 * 1024**3


_BOUNDS = EgressBounds()


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressGrant:
    """Says which hosts a run may reach, and counts what it has reached."""

    run_id: str
    entries: Collection[HostEntry]
    tally: Tally
    approve: ApproveHost | None = None
    """None = nobody is asked for hosts."""


class EgressProxy:
    """Serves the lists of runs at their threads' sockets; one for all runs of a process."""

    def __init__(
        self,
        group: TaskGroup,
        *,
        look_up: LookUp = look_up,
        dial: Dial = dial,
        is_own: Callable[[str], bool] = is_this_machine,
        bounds: EgressBounds = _BOUNDS,
    ) -> None:
        """`group`: serves connections, each until its socket is closed."""
        self._group = group
        self._look_up = look_up
        self._dial = dial
        self._is_own = is_own
        self._bounds = bounds
        self._connections = 0

    @asynccontextmanager
    async def listen(self, path: Path, grant: Callable[[], EgressGrant]) -> AsyncIterator[None]:
        """Serves a sandbox at a unix socket while inside; then all its connections are cut.

        `grant`: asked at each connection, as the next slice of a run may go on with the socket.

        Raises:
            OSError: the path cannot be bound.
        """
        served: set[asyncio.Task[None]] = set()
        accept = partial(self._accept, served, grant)
        with bind_unix_socket(path, mode=0o666) as bound:  # its directory keeps others away
            server = await asyncio.start_unix_server(accept, sock=bound, limit=CHUNK_BYTES)
            try:
                yield
            finally:
                server.close()
                for task in list(served):
                    task.cancel()

    def _accept(
        self,
        served: set[asyncio.Task[None]],
        grant: Callable[[], EgressGrant],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        task = self._group.create_task(self._serve((reader, writer), grant()))
        served.add(task)
        task.add_done_callback(served.discard)

    async def _serve(self, client: Streams, grant: EgressGrant) -> None:
        writer, tally = client[1], grant.tally
        tally.open_connections += 1
        try:
            await self._answer(client, grant)
        except RefusedError as exc:
            self._refuse(grant, exc.host, exc.reason)
            with suppress(OSError):
                writer.write(render_refusal(exc))
                await writer.drain()
                writer.close()
        except OSError:
            pass  # one of the two has gone
        except Exception:  # noqa: BLE001 - what a sandbox sends ends no more than its own connection
            _log.exception("egress.crashed", run_id=grant.run_id)
        finally:
            tally.open_connections -= 1
            if not writer.is_closing():
                writer.transport.abort()

    def _refuse(self, grant: EgressGrant, host: str, reason: str) -> None:
        number = grant.tally.refuse(host, reason)
        if number <= LOGGED_REFUSALS:
            _log.warning(
                "egress.refused",
                run_id=grant.run_id,
                host=host,
                reason=reason,
                is_last_told=number == LOGGED_REFUSALS,
            )

    async def _answer(self, client: Streams, grant: EgressGrant) -> None:
        bounds = self._bounds
        if grant.tally.open_connections > SILENT_FACTOR * bounds.connections:
            raise RefusedError(HTTPStatus.TOO_MANY_REQUESTS, CROWD)
        try:
            async with asyncio.timeout(bounds.head_s):
                request = await read_request(client[0])
        except TimeoutError:
            raise RefusedError(HTTPStatus.REQUEST_TIMEOUT, "was not asked for in time") from None
        if request is None:
            return
        entry = await self._admit(request, grant)
        self._connections += 1
        try:
            await self._lead(request, entry, client, grant)
        finally:
            self._connections -= 1

    async def _lead(
        self, request: ProxyRequest, entry: HostEntry, client: Streams, grant: EgressGrant
    ) -> None:
        """Leads a client to its host, until one of the two has ended. Raises: RefusedError, OSError."""
        reader, writer = client
        upstream = await self._connect(request, entry)
        try:
            first = request.head
            if request.is_tunnel:
                writer.write(ESTABLISHED)
                first = await self._checked_hello(request, reader, grant)
            with grant.tally.connected(request.host):
                await self._pass(first, client, upstream, (request, grant.tally))
        finally:
            upstream.abort()

    async def _admit(self, request: ProxyRequest, grant: EgressGrant) -> HostEntry:
        """Returns the entry that lets the request through. Raises: RefusedError: none does, or it is too much."""
        bounds, tally = self._bounds, grant.tally
        if (
            tally.open_connections > bounds.connections
            or self._connections >= bounds.all_connections
        ):
            raise RefusedError(HTTPStatus.TOO_MANY_REQUESTS, CROWD, host=request.host)
        if tally.sent_bytes >= bounds.sent_bytes or tally.received_bytes >= bounds.received_bytes:
            raise RefusedError(
                HTTPStatus.FORBIDDEN,
                "the run has used up what it may send or get",
                host=request.host,
            )
        entry = find_entry(grant.entries, request.name, request.port)
        if grant.approve is not None:
            entry = await self._ask(request, entry, grant.approve)
        if entry is None:
            raise RefusedError(HTTPStatus.FORBIDDEN, NOT_LISTED, host=request.host)
        if request.is_tunnel == (request.port == PLAIN_PORT):
            way = "plain HTTP" if request.port == PLAIN_PORT else "TLS"
            raise RefusedError(
                HTTPStatus.FORBIDDEN, f"{way} alone goes to this port", host=request.host
            )
        return entry

    async def _ask(
        self, request: ProxyRequest, entry: HostEntry | None, approve: ApproveHost
    ) -> HostEntry | None:
        """Returns the entry by which a host may be reached after people were asked; one on no list must be public. Raises: RefusedError: it may not."""
        reason = await approve(request.host)
        if reason:
            raise RefusedError(HTTPStatus.FORBIDDEN, reason, host=request.host)
        if entry is None and reason is not None:
            return HostEntry(name=request.name, port=request.port)
        return entry

    async def _connect(self, request: ProxyRequest, entry: HostEntry) -> Upstream:
        """Connects to an address of the host that was checked. Raises: RefusedError: there is none, or none answers."""
        try:
            addresses = await self._look_up(f"{request.name}.", request.port)
        except OSError as exc:
            raise RefusedError(
                HTTPStatus.BAD_GATEWAY, "cannot be looked up", host=request.host
            ) from exc
        try:
            may_dial = bool(addresses) and all(self._may_dial(one, entry) for one in addresses)
        except OSError as exc:  # no socket is left to look with
            raise RefusedError(
                HTTPStatus.BAD_GATEWAY, "cannot be looked at", host=request.host
            ) from exc
        if not may_dial:
            raise RefusedError(HTTPStatus.FORBIDDEN, NOT_PUBLIC, host=request.host)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._bounds.dial_s):
                for address in addresses:
                    with suppress(OSError):
                        return await self._dial(address, request.port)
        raise RefusedError(HTTPStatus.BAD_GATEWAY, "cannot be reached", host=request.host)

    def _may_dial(self, address: str, entry: HostEntry) -> bool:
        is_allowed = is_public(address) or (entry.is_private and may_be_private(address))
        return is_allowed and not self._is_own(address)

    async def _checked_hello(
        self, request: ProxyRequest, reader: asyncio.StreamReader, grant: EgressGrant
    ) -> bytes:
        """Returns the beginning of a TLS connection to the host that was asked for; there is no answer to another one."""
        reason = "names another server in its TLS"
        try:
            async with asyncio.timeout(self._bounds.hello_s):
                name, sent = await read_hello(reader, request.rest)
            if name == request.name:
                return sent
        except HelloError as exc:
            reason = str(exc)
        except TimeoutError:
            reason = "did not begin its TLS in time"
        self._refuse(grant, request.host, reason)
        raise ConnectionAbortedError(reason)

    async def _pass(
        self,
        first: bytes,
        client: Streams,
        upstream: Upstream,
        counted: tuple[ProxyRequest, Tally],
    ) -> None:
        """Passes bytes on in both directions, each until its own end, until neither moves or the run has had enough; to plain HTTP nothing behind the head."""
        loop, bounds = asyncio.get_running_loop(), self._bounds
        request, tally = counted
        async with asyncio.timeout(bounds.idle_s) as until:

            def moved(*, sent_bytes: int = 0, received_bytes: int = 0) -> None:
                tally.move(request.host, sent_bytes=sent_bytes, received_bytes=received_bytes)
                if (
                    tally.sent_bytes > bounds.sent_bytes
                    or tally.received_bytes > bounds.received_bytes
                ):
                    raise ConnectionAbortedError
                with suppress(RuntimeError):  # it is over already
                    until.reschedule(loop.time() + bounds.idle_s)

            moved(sent_bytes=len(first))
            await upstream.lead_to(client[1], lambda size: moved(received_bytes=size))
            await upstream.write(first)
            if request.is_tunnel:
                sending = _send(client[0], upstream, lambda size: moved(sent_bytes=size))
            else:
                sending = _heed_end(client[0], upstream)
            await together(sending, upstream.until_ended())


async def _send(
    source: asyncio.StreamReader, target: Upstream, count: Callable[[int], None]
) -> None:
    """Sends until the end, and closes that direction alone: a half-closed peer may still be answered."""
    while data := await source.read(CHUNK_BYTES):
        count(len(data))
        await target.write(data)
    target.write_eof()


async def _heed_end(source: asyncio.StreamReader, target: Upstream) -> None:
    """Closes the direction when a client that has asked closes its own. Raises: ConnectionAbortedError: it sends more."""
    if await source.read(1):
        raise ConnectionAbortedError
    target.write_eof()
