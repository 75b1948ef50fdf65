"""What an emulated machine may reach: listeners in its network namespace, served by a filter outside of it.

The machine has a loopback interface only. For each address of the `Internet` a socket listens there that this process
accepts from, so that nothing inside can go around the filter. Plain HTTP, and where the policy has an authority HTTP in TLS.
"""

import asyncio
import ctypes
import os
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

from app.egress.hello import HelloError, read_hello
from sandbox_runtime.task_group import open_task_group
from tests.certificates import Authority

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Headers = list[tuple[str, str]]
Rewrite = Callable[[Headers], Headers]
"""What the provider's network makes of a request's header lines."""

_HEAD_BYTES = 64 * 1024
_PIECE = 64 * 1024
_CONNECT_S, _SHUTDOWN_S = 5.0, 1.0
TLS = b"\x16"
"""How a handshake begins. Source: RFC 8446, 5.1."""
_BAD_GATEWAY = b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_CLONE_NEWNET = 0x40000000


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A server of the emulated internet: really one on this host's loopback, or one that this host reaches."""

    host: str
    """127.0.0.1, or a name, which then resolves inside to a loopback address."""
    port: int
    target: int = 0
    """The real port; 0 = the same."""
    target_host: str = "127.0.0.1"
    """Where it really is. Elsewhere, for what package installers need."""
    trusted: str = ""
    """Whom the internet trusts to sign for its servers, in PEM, beside those that this host trusts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Which hosts may be reached, by name, with or without `:port`; None = all. A value rewrites what is sent there.

    `*.name` are all names below one.
    """

    hosts: Mapping[str, Rewrite | None] | None = field(default_factory=dict)
    authority: Authority | None = None
    """Not None: the host is what the beginning of a connection's TLS says, if it has one. The TLS of hosts with a value is ended
    with certificates of this authority, and whoever is dialled must have one for that name.
    """

    def find(self, name: str, port: int) -> tuple[bool, Rewrite | None]:
        """Whether it may be reached, and what is done to its requests."""
        if self.hosts is None:
            return True, None
        for host, rewrite in self.hosts.items():
            pattern, _, only_port = host.partition(":")
            is_below = pattern.startswith("*.") and name.endswith(pattern[1:])
            if (name == pattern or is_below) and only_port in ("", str(port)):
                return True, rewrite
        return False, None


CLOSED = Policy()
OPEN = Policy(hosts=None)


def adding(headers: Mapping[str, str]) -> Rewrite:
    """Adds header lines, in the place of those of the same name."""
    names = {name.lower() for name in headers}

    def rewrite(found: Headers) -> Headers:
        return [line for line in found if line[0].lower() not in names] + list(headers.items())

    return rewrite


def inside_addresses(internet: Sequence[Address]) -> dict[str, str]:
    """Host name -> where it is found inside."""
    names = dict.fromkeys(address.host for address in internet)
    return {
        name: name if name.replace(".", "").isdigit() else f"127.1.0.{number}"
        for number, name in enumerate(names, start=1)
    }


class Network:
    """The network of one machine. `policy` may change at any time; open connections end when it does."""

    def __init__(self, internet: Sequence[Address]) -> None:
        self._internet = tuple(internet)
        self._policy = CLOSED
        self._trust = ssl.create_default_context()
        for trusted in {address.trusted for address in internet} - {""}:
            self._trust.load_verify_locations(cadata=trusted)
        self._servers: list[asyncio.Server] = []
        self._open: set[asyncio.StreamWriter] = set()

    @property
    def policy(self) -> Policy:
        return self._policy

    @policy.setter
    def policy(self, policy: Policy) -> None:
        self._policy = policy
        self._cut()

    async def serve(self, pid: int) -> None:
        """Listen in the network namespace of a process."""
        for address, listener in zip(self._internet, self._listeners(pid), strict=True):
            serve = partial(self._filter, address)
            server = await asyncio.start_server(serve, sock=listener, limit=_HEAD_BYTES)
            self._servers.append(server)

    def close(self) -> None:
        """Listen no more, end what is open."""
        for server in self._servers:
            server.close()
        self._cut()

    def _cut(self) -> None:
        for writer in self._open:
            writer.transport.abort()

    def _listeners(self, pid: int) -> list[socket.socket]:
        """Sockets stay in the namespace where they were made; a thread of its own goes there to make them."""
        inside = inside_addresses(self._internet)
        made: list[socket.socket] = []
        failed: list[OSError] = []

        def make() -> None:
            libc = ctypes.CDLL(None, use_errno=True)
            namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
            try:
                code = libc.setns(namespace, _CLONE_NEWNET)
                if code != 0:
                    failed.append(OSError(ctypes.get_errno(), "setns"))
                    return
                made.extend(
                    socket.create_server((inside[address.host], address.port))
                    for address in self._internet
                )
            except OSError as exc:
                failed.append(exc)
            finally:
                os.close(namespace)

        if self._internet:
            thread = threading.Thread(target=make)
            thread.start()
            thread.join()
        if failed:
            raise failed[0]
        return made

    async def _filter(
        self, to: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        allowed, client = False, (reader, writer)
        self._open.add(writer)
        try:
            name, first, authority = to.host, b"", self._policy.authority
            if authority is not None:
                name, first = await _server_name(reader, to.host)
            allowed, rewrite = self._policy.find(name, to.port)
            if not allowed:
                return
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                if rewrite is None:
                    await self._forward(to, first, client)
                elif authority is not None and first[:1] == TLS:
                    async with in_clear(first, client, authority.server(name)) as clear:
                        await self._ask(to, rewrite, clear, name)
                else:
                    await self._forward(to, await _read_head(first, reader, rewrite), client)
        finally:
            self._open.discard(writer)
            writer.transport.abort() if not allowed else writer.close()

    async def _ask(self, to: Address, rewrite: Rewrite, client: Streams, name: str) -> None:
        """One request over TLS, of a server that must have the name."""
        head = await _read_head(b"", client[0], rewrite)
        try:
            await self._forward(to, head, client, name)
        except OSError:
            client[1].write(_BAD_GATEWAY)
            await client[1].drain()

    async def _forward(
        self, to: Address, first: bytes, client: Streams, name: str | None = None
    ) -> None:
        reader, writer = client
        async with asyncio.timeout(_CONNECT_S):
            upstream, out = await asyncio.open_connection(
                to.target_host,
                to.target or to.port,
                ssl=None if name is None else self._trust,
                server_hostname=name,
            )
        try:
            out.write(first)
            async with open_task_group() as group:
                sending = group.create_task(_pipe(reader, out))
                await _pipe(upstream, writer)
                sending.cancel()
        finally:
            out.close()


@asynccontextmanager
async def in_clear(
    first: bytes, client: Streams, context: ssl.SSLContext
) -> AsyncIterator[Streams]:
    """What a client says in TLS, whose beginning was read already, and a way to answer in it."""
    outer, inner = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=outer)
    loop, clear = asyncio.get_running_loop(), asyncio.StreamReader(limit=_HEAD_BYTES)
    protocol = asyncio.StreamReaderProtocol(clear)
    async with open_task_group() as group:
        writer.write(first)
        inward = group.create_task(_pipe(client[0], writer))
        outward = group.create_task(_pipe(reader, client[1]))
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol, inner, ssl=context, ssl_shutdown_timeout=_SHUTDOWN_S
            )
            answering = asyncio.StreamWriter(transport, protocol, clear, loop)
            yield clear, answering
            answering.close()
            await outward
        finally:
            inward.cancel()
            writer.close()


async def _server_name(reader: asyncio.StreamReader, otherwise: str) -> tuple[str, bytes]:
    """Returns the name in the beginning of a TLS connection, and what was read; what is no TLS has the other name.

    TLS without a name has none.
    """
    first = await reader.read(1)
    if first != TLS:
        return otherwise, first
    try:
        return await read_hello(reader, first)
    except HelloError:
        return "", first


async def _read_head(first: bytes, reader: asyncio.StreamReader, rewrite: Rewrite) -> bytes:
    """The head of a request as it is passed on: the only one of its connection, so that none passes unchanged behind another."""
    head = first + await reader.readuntil(b"\r\n\r\n")
    first_line, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    headers = [line for line in rewrite(headers) if line[0].lower() != "connection"]
    text = [
        first_line,
        *(f"{name}: {value}" for name, value in headers),
        "connection: close",
        "",
        "",
    ]
    return "\r\n".join(text).encode("latin-1")


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(_PIECE):
            writer.write(data)
            await writer.drain()
    with suppress(OSError):
        if writer.can_write_eof():
            writer.write_eof()
