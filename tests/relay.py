"""Ways to TCP servers: one that can be cut, and one that balances between several."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import sqlalchemy as sa

from sandbox_runtime.task_group import together
from tests.ports import free_port

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Relay:
    """Passes on each connection to one that `connect` opens."""

    def __init__(self, connect: Callable[[], Awaitable[Connection]]) -> None:
        self.port = free_port()
        self._connect = connect
        self._open: set[asyncio.Task[None]] = set()
        self._is_cut = False

    def cut(self) -> None:
        """Closes what is open, and refuses what comes."""
        self._is_cut = True
        for task in self._open:
            task.cancel()

    def mend(self) -> None:
        self._is_cut = False

    async def serve(self) -> asyncio.Server:
        return await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            if not self._is_cut:
                await self._pass_on(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._open.discard(task)
            writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back_reader, back_writer = await self._connect()
        try:
            await together(_copy(reader, back_writer), _copy(back_reader, writer))
        finally:
            back_writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until one side has closed: then the other way is closed, too."""
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    raise ConnectionResetError


class CuttingProxy(Relay):
    """A way to a database."""

    def __init__(self, url: str) -> None:
        """`url`: of the database behind it."""
        super().__init__(self._open_connection)
        self._target = sa.make_url(url)

    @property
    def url(self) -> str:
        """Of the database, through it."""
        through = self._target.set(host="127.0.0.1", port=self.port, query={})
        return through.render_as_string(hide_password=False)

    async def _open_connection(self) -> Connection:
        host = self._target.query.get("host", self._target.host)
        port = self._target.port or int(str(self._target.query.get("port", 5432)))
        if str(host).startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(str(host), port)


class Balancer(Relay):
    """Leads each connection to the next of several ports of this machine; whoever refuses it is passed over."""

    def __init__(self, ports: Sequence[int]) -> None:
        super().__init__(self._open_next)
        self._ports = list(ports)

    async def _open_next(self) -> Connection:
        for _ in self._ports:
            self._ports.append(self._ports.pop(0))
            try:
                return await asyncio.open_connection("127.0.0.1", self._ports[-1])
            except ConnectionRefusedError:
                continue
        raise ConnectionRefusedError


@asynccontextmanager
async def open_relay(connect: Callable[[], Awaitable[Connection]]) -> AsyncIterator[Relay]:
    relay = Relay(connect)
    async with _serving(relay):
        yield relay


@asynccontextmanager
async def open_cutting_proxy(url: str) -> AsyncIterator[CuttingProxy]:
    proxy = CuttingProxy(url)
    async with _serving(proxy):
        yield proxy


@asynccontextmanager
async def open_balancer(ports: Sequence[int]) -> AsyncIterator[str]:
    """Yields its URL."""
    balancer = Balancer(ports)
    async with _serving(balancer):
        yield f"http://127.0.0.1:{balancer.port}"


@asynccontextmanager
async def _serving(relay: Relay) -> AsyncIterator[None]:
    server = await relay.serve()
    try:
        yield
    finally:
        relay.cut()
        server.close()
