"""An ASGI app served from inside this process: who starts it, who stops it, and how long that may take."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from typing_extensions import override

from app.aio import bind_unix_socket, open_task_group

ABORT_EXTENSION = "orion.abort"
"""ASGI scope extension: a callable that cuts the client's connection without an answer."""

START_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 15.0
POLL_S = 0.02


KEEP_ALIVE_S = 5
SANDBOX_KEEP_ALIVE_S = 3600
"""A client that sends again at the moment of the close loses a request that it must not repeat. These end with their sandbox."""


MAX_HEAD_BYTES = 2**20
"""What a client may send without its being part of a body: a head, trailers."""


def _reader() -> type[asyncio.Protocol] | Literal["h11"]:
    """Returns what reads requests: httptools where it is installed, which bounds no head by itself; else h11, which does."""
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol  # noqa: PLC0415
    except ImportError:
        return "h11"

    class Bounded(HttpToolsProtocol):
        """Cuts a client off whose head, or trailers, have no end."""

        _unused_bytes = 0

        @override
        def data_received(self, data: bytes) -> None:
            self._unused_bytes += len(data)
            super().data_received(data)
            if self._unused_bytes > MAX_HEAD_BYTES:
                _abort(self)

        @override
        def on_body(self, body: bytes) -> None:
            self._unused_bytes = 0
            super().on_body(body)

        @override
        def on_message_complete(self) -> None:
            self._unused_bytes = 0
            super().on_message_complete()

    return Bounded


class EmbeddedServer(uvicorn.Server):
    """Uvicorn without signal handlers, whose shutdown does not wait for endless responses."""

    def __init__(self, app: ASGIApp, *, grace_s: float, keep_alive_s: int = KEEP_ALIVE_S) -> None:
        """`keep_alive_s`: after so long without a request a connection is closed."""
        config = uvicorn.Config(
            self._with_abort(app),
            http=_reader(),
            log_config=None,
            access_log=False,
            proxy_headers=False,  # a connection is known by its own address
            timeout_graceful_shutdown=1,
            timeout_keep_alive=keep_alive_s,
        )
        super().__init__(config)
        self.ready = asyncio.Event()
        self.ended = asyncio.Event()
        self._grace_s = grace_s
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Begins the shutdown."""
        self.should_exit = True
        self._stopping.set()

    @override
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The process that embeds us owns its signals."""
        yield

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self.ready.set()

    @override
    async def main_loop(self) -> None:
        """Renews the date header each second; Uvicorn's own looks ten times a second whether it shall end."""
        ticks = 0
        while not await self.on_tick(ticks):
            ticks += 10
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._stopping.wait()

    @override
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Lets requests in flight finish for the grace period, then cuts what is left (open event streams)."""
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        waited_s = 0.0
        while self.server_state.connections and waited_s < self._grace_s:
            await asyncio.sleep(POLL_S)
            waited_s += POLL_S
        self._abort_all()
        if self.server_state.tasks:
            await super().shutdown(sockets=sockets)  # cancels them
        else:
            await self.lifespan.shutdown()

    async def run_to_end(self, listeners: list[socket.socket]) -> None:
        try:
            await self.serve(sockets=listeners)
        except SystemExit as exc:
            # Source: uvicorn 0.54 Server.startup: a failed lifespan ends in sys.exit, which would end our process.
            raise RuntimeError("the embedded server could not start: its lifespan failed") from exc
        finally:
            self._abort_all()
            for listener in listeners:
                listener.close()
            self.ready.set()
            self.ended.set()

    def _abort_all(self) -> None:
        for connection in list(self.server_state.connections):
            _abort(connection)

    def _with_abort(self, app: ASGIApp) -> ASGIApp:
        def abort_of(scope: Scope) -> Callable[[], None]:
            def abort() -> None:
                for connection in list(self.server_state.connections):
                    if getattr(connection, "client", None) == scope["client"]:
                        _abort(connection)

            return abort

        async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http" and scope.get("client"):
                scope["extensions"] = {
                    **scope.get("extensions", {}),
                    ABORT_EXTENSION: abort_of(scope),
                }
            await app(scope, receive, send)

        return wrapped


def _abort(connection: Any) -> None:  # noqa: ANN401 - uvicorn's protocol classes share no public type
    transport = getattr(connection, "transport", None)
    if transport is not None:
        transport.abort()


@contextmanager
def _bind(host: str, port: int) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY on connections of sockets that name their protocol only. Without it the body of an answer,
    # sent after its head, waits for the client's delayed acknowledgement: 40 ms on Linux.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.setblocking(False)  # noqa: FBT003 - the socket module takes no keyword
        yield listener


@asynccontextmanager
async def serve(
    app: ASGIApp,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    uds: str | Path | None = None,
    uds_mode: int = 0o600,
    grace_s: float = 0.5,
) -> AsyncIterator[str]:
    """Serves `app` (lifespan included) while the block runs; yields its base URL without a trailing slash.

    Port 0 takes a free one. With `uds` the URL is `http://localhost` and the client brings the socket path. Leaving the block
    waits `grace_s` for requests in flight, then cuts connections; responses without end cannot hold it up.

    Raises:
        OSError: the address is in use.
        RuntimeError: the app's lifespan failed to start.
    """
    bound = f"[{host}]" if ":" in host else host
    with bind_unix_socket(Path(uds), mode=uds_mode) if uds else _bind(host, port) as listener:
        base_url = "http://localhost" if uds else f"http://{bound}:{listener.getsockname()[1]}"
        async with _running(EmbeddedServer(app, grace_s=grace_s), [listener]):
            yield base_url


class SocketListeners:
    """Unix sockets that lead to one app, opened and closed one by one; a request's `state.endpoint` names the one it came by."""

    def __init__(self, server: EmbeddedServer) -> None:
        self._server = server

    @asynccontextmanager
    async def open(self, path: Path, name: str) -> AsyncIterator[None]:
        """Listens there while the block runs; everyone may connect who can reach the path. Connections outlive the block.

        Raises:
            OSError: the path cannot be bound.
        """
        config = self._server.config

        def protocol() -> asyncio.Protocol:
            return config.http_protocol_class(  # type: ignore[call-arg]  # typed as the bare base
                config=config, server_state=self._server.server_state, app_state={"endpoint": name}
            )

        with bind_unix_socket(path, mode=0o666) as bound:
            server = await asyncio.get_running_loop().create_unix_server(protocol, sock=bound)
            try:
                yield
            finally:
                server.close()


@asynccontextmanager
async def serve_sockets(app: ASGIApp) -> AsyncIterator[SocketListeners]:
    """Serves `app` (lifespan included) while the block runs, at whatever sockets are opened meanwhile.

    Raises:
        RuntimeError: the app's lifespan failed to start.
    """
    server = EmbeddedServer(app, grace_s=0.5, keep_alive_s=SANDBOX_KEEP_ALIVE_S)
    async with _running(server, []):
        yield SocketListeners(server)


@asynccontextmanager
async def _running(server: EmbeddedServer, listeners: list[socket.socket]) -> AsyncIterator[None]:
    try:
        async with open_task_group() as group:
            running = group.create_task(server.run_to_end(listeners))
            try:
                async with asyncio.timeout(START_TIMEOUT_S):
                    await server.ready.wait()
            except TimeoutError as exc:
                server.stop()
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await server.ended.wait()
                raise TimeoutError(f"not served within {START_TIMEOUT_S:g} s") from exc
            if not running.done():
                try:
                    yield
                finally:
                    server.stop()
                    async with asyncio.timeout(STOP_TIMEOUT_S):
                        await server.ended.wait()
    except BaseExceptionGroup as failures:
        # The caller's own exception, as if there were no group between it and the block.
        if len(failures.exceptions) == 1:
            raise failures.exceptions[0] from failures.exceptions[0].__cause__
        raise
