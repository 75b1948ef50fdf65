"""A way to a TCP server that can be cut: what is open is closed, what comes is refused."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import sqlalchemy as sa

from sandbox_runtime.task_group import together
from tests.ports import free_port


class CuttingProxy:
    def __init__(self, url: str) -> None:
        """`url`: of the database behind it."""
        self._target = sa.make_url(url)
        self._port = free_port()
        self._open: set[asyncio.Task[None]] = set()
        self._is_cut = False

    @property
    def url(self) -> str:
        """Of the database, through it."""
        through = self._target.set(host="127.0.0.1", port=self._port, query={})
        return through.render_as_string(hide_password=False)

    def cut(self) -> None:
        self._is_cut = True
        for task in self._open:
            task.cancel()

    def mend(self) -> None:
        self._is_cut = False

    async def serve(self) -> asyncio.Server:
        return await asyncio.start_server(self._connect, "127.0.0.1", self._port)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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
        host = self._target.query.get("host", self._target.host)
        port = self._target.port or int(str(self._target.query.get("port", 5432)))
        if str(host).startswith("/"):
            opening = asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        else:
            opening = asyncio.open_connection(str(host), port)
        back_reader, back_writer = await opening
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


@asynccontextmanager
async def open_cutting_proxy(url: str) -> AsyncIterator[CuttingProxy]:
    proxy = CuttingProxy(url)
    server = await proxy.serve()
    try:
        yield proxy
    finally:
        proxy.cut()
        server.close()
