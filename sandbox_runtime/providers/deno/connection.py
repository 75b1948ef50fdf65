"""The connection to one sandbox: opened, made again when it broke, and the processes that are started over it."""

import asyncio
import base64
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime

from websockets.asyncio.client import ClientConnection, connect

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.providers.deno import DenoSettings
from sandbox_runtime.providers.deno.client import map_errors
from sandbox_runtime.providers.deno.rpc import (
    MAX_FRAME_BYTES,
    ConnectionLost,
    InboundStream,
    MergedStreams,
    RemoteError,
    RpcConnection,
    UnexpectedAnswer,
)
from sandbox_runtime.task_group import TaskGroup
from sandbox_runtime.types import OutputStream

ROOT_PYTHON = ("sudo", "-n", "python3", "-I", "-S", "-c")
"""Deno's images have the user `app`, who may become root. The agent is another user, who may not."""
CREATE_TIMEOUT_S = 60.0
CONNECT_TIMEOUT_S = 20.0
_ID = "x-deno-sandbox-id"
_SCRIPT_TIMEOUT_S = 120.0
_ERROR_BYTES = 1000
_SAID_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """A value that the network puts in place of a text that only the sandbox sees, in requests to one host."""

    host: str
    value: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxConfig:
    """Describes what the platform is asked to boot."""

    region: str
    root: str
    """Slug of a snapshot, whose files nobody changes, or of a volume."""
    volumes: Mapping[str, str]
    """Path to slug."""
    memory_mib: int
    expires_at: datetime
    """When it ends by itself."""
    labels: Mapping[str, str]
    allow_net: Sequence[str] | None
    """Hosts, with or without a port, `*.` before them for all below; empty = none. None = not said, which is all: the
    builds in Deno's documentation install packages that way (its pages disagree about it; read 2026-11)."""
    secrets: Mapping[str, Secret] = field(default_factory=dict, repr=False)
    """By the variable that holds the text inside."""

    def encode(self) -> str:
        """Returns the header that carries it. Source: @deno/sandbox 0.13.2, sandbox.js, create; deno-sandbox 0.16.0, sandbox.py, AppConfig."""
        config: dict[str, object] = {
            "region": self.region,
            "memory_mb": self.memory_mib,
            "stop_at_ms": int(self.expires_at.timestamp() * 1000),
            "labels": dict(self.labels),
            "root": {"volume": self.root},
            "volumes": [{"volume": slug, "path": path} for path, slug in self.volumes.items()],
            "secrets": {
                name: {"hosts": [secret.host], "value": secret.value}
                for name, secret in self.secrets.items()
            },
        }
        if self.allow_net is not None:
            config["allow_net"] = list(self.allow_net)
        return base64.b64encode(json.dumps(config).encode()).decode("ascii")


class Connector:
    """Opens connections to sandboxes of one endpoint."""

    def __init__(self, settings: DenoSettings) -> None:
        self._url = settings.sandbox_url.replace("http", "ws", 1)
        self._token = settings.token
        self._silence_s = settings.silence_s

    async def create(self, config: SandboxConfig) -> tuple[str, RpcConnection]:
        """Makes a sandbox; returns its id and the connection to it.

        Raises:
            websockets.WebSocketException, OSError, TimeoutError, UnexpectedAnswer: it may exist all the same.
        """
        connection = await self._open(
            "/api/v3/sandboxes/create",
            {"x-deno-sandbox-config": config.encode()},
            timeout_s=CREATE_TIMEOUT_S,
        )
        found = connection.response.headers.get(_ID) if connection.response is not None else None
        if not found:
            await connection.close()
            raise UnexpectedAnswer("a sandbox without an id")
        return found, RpcConnection(connection)

    async def connect(self, sandbox_id: str) -> RpcConnection:
        """Connects to a sandbox that runs. Raises: websockets.WebSocketException, OSError, TimeoutError."""
        path = f"/api/v3/sandbox/{sandbox_id}/connect"
        return RpcConnection(await self._open(path, {}, timeout_s=CONNECT_TIMEOUT_S))

    async def _open(
        self, path: str, headers: Mapping[str, str], *, timeout_s: float
    ) -> ClientConnection:
        async with asyncio.timeout(timeout_s):
            return await connect(
                self._url + path,
                additional_headers={"Authorization": f"Bearer {self._token}", **headers},
                max_size=MAX_FRAME_BYTES,
                open_timeout=timeout_s,
                ping_interval=self._silence_s / 2,
                ping_timeout=self._silence_s / 2,
                close_timeout=2.0,
                compression=None,  # base64 of output: it would cost more than it saves
            )


class SandboxConnection:
    """The connection to one sandbox, made again when it broke. Whoever makes it closes it."""

    def __init__(self, connector: Connector, group: TaskGroup, sandbox_id: str) -> None:
        """`group` runs what reads each connection, until that is closed."""
        self._connector = connector
        self._group = group
        self._sandbox_id = sandbox_id
        self._connection: RpcConnection | None = None
        self._connecting = asyncio.Lock()
        self._closed = False

    def use(self, connection: RpcConnection) -> None:
        """Takes over a connection that is open, the one that made the sandbox say."""
        self._connection = connection
        self._group.create_task(connection.run())

    async def rpc(self) -> RpcConnection:
        """Returns a connection that is open, as far as anybody knows; a new one if need be.

        Raises:
            SandboxError: UNAVAILABLE; retryable unless the sandbox is gone.
        """
        async with self._connecting:
            if self._closed:
                raise SandboxError(
                    SandboxErrorCode.UNAVAILABLE, f"sandbox {self._sandbox_id} was left"
                )
            if self._connection is None or not self._connection.is_open:
                async with map_errors(
                    f"sandbox {self._sandbox_id} is gone",
                    timeout_s=CONNECT_TIMEOUT_S,
                    missing=SandboxErrorCode.UNAVAILABLE,
                ):
                    self.use(await self._connector.connect(self._sandbox_id))
            assert self._connection is not None  # noqa: S101  # set above
            return self._connection

    async def close(self) -> None:
        """Disconnects; the sandbox goes on. Idempotent."""
        self._closed = True
        if self._connection is not None:
            await self._connection.close()


@dataclass(slots=True, kw_only=True)
class Remote:
    """A process of the sandbox's service: our runner, or a script."""

    connection: RpcConnection
    pid: int
    stdin: int | None
    stdout: InboundStream
    output: MergedStreams
    """Of both, for who does not read `stdout` before."""
    numbers: tuple[int, int]

    @classmethod
    async def start(
        cls, connection: RpcConnection, argv: Sequence[str], *, stdin: bool
    ) -> "Remote":
        """Starts a process. Raises: ConnectionLost, RemoteError, UnexpectedAnswer, TimeoutError."""
        number = await connection.open_stream() if stdin else None
        params: dict[str, object] = {
            "command": argv[0],
            "args": list(argv[1:]),
            "cwd": "/",
            "stdout": "piped",
            "stderr": "piped",
        }
        if number is not None:
            params["stdinStreamId"] = number
        try:
            found = await connection.call("spawn", params)
        except BaseException:
            # Maybe it was started all the same: then it finds its input at the end, and goes.
            if number is not None:
                with suppress(ConnectionLost):
                    await connection.end_stream(number)
            raise
        numbers = _number(found, "stdoutStreamId"), _number(found, "stderrStreamId")
        pid = _number(found, "pid")
        streams = dict(zip(OutputStream, map(connection.take_stream, numbers), strict=True))
        return cls(
            connection=connection,
            pid=pid,
            stdin=number,
            stdout=streams[OutputStream.STDOUT],
            output=MergedStreams(streams),
            numbers=numbers,
        )

    async def write(self, data: bytes) -> None:
        """Writes to its stdin, if it has one. Raises: ConnectionLost."""
        if self.stdin is not None:
            await self.connection.write(self.stdin, data)

    async def wait(self, *, timeout_s: float) -> int:
        """Waits for its end and returns the exit code. Raises: ConnectionLost, RemoteError, UnexpectedAnswer, TimeoutError."""
        found = await self.connection.call("processWait", {"pid": self.pid}, timeout_s=timeout_s)
        return _number(found, "code")

    def drop_output(self) -> None:
        """Forgets what it says from now on. May be repeated."""
        for number in self.numbers:
            self.connection.drop_stream(number)

    async def finish(self) -> None:
        """Drops its streams: nobody reads or writes it any more."""
        self.drop_output()
        if self.stdin is not None:
            number, self.stdin = self.stdin, None
            with suppress(ConnectionLost):
                await self.connection.end_stream(number)


def _number(found: object, name: str) -> int:
    """Returns a number of a result. Raises: UnexpectedAnswer."""
    match found:
        case dict() if isinstance(number := found.get(name), int):
            return number
        case _:
            raise UnexpectedAnswer(f"no {name} in {str(found)[:200]}")


async def run_script(
    connection: RpcConnection, source: str, *arguments: str, timeout_s: float = _SCRIPT_TIMEOUT_S
) -> bytes:
    """Runs a Python script of ours as root, to its end; returns what it said, at most 1 MiB.

    Raises:
        SandboxError: UNAVAILABLE when it failed.
    """
    return await _run(connection, [*ROOT_PYTHON, source, *arguments], timeout_s=timeout_s)


async def run_shell(connection: RpcConnection, script: str, *, timeout_s: float) -> bytes:
    """Runs a shell script as root, to its end; returns what it said, at most 1 MiB. Raises as `run_script`."""
    return await _run(connection, ["sudo", "-n", "/bin/sh", "-c", script], timeout_s=timeout_s)


async def _run(connection: RpcConnection, argv: Sequence[str], *, timeout_s: float) -> bytes:
    with map_errors.unbounded("a script failed inside"):
        async with asyncio.timeout(timeout_s):
            remote = await Remote.start(connection, argv, stdin=False)
            said = {stream: BoundedTail(_SAID_BYTES) for stream in OutputStream}
            try:
                while (output := await remote.output.read()) is not None:
                    said[output.stream].feed(output.data)
                code = await remote.wait(timeout_s=timeout_s)
            finally:
                await remote.finish()
            if code != 0:
                tails = (said[stream].value[-_ERROR_BYTES:] for stream in OutputStream)
                text = b"\n".join(tails).decode("utf-8", "replace").strip()
                raise RemoteError(text or f"exit code {code}")
    return said[OutputStream.STDOUT].value


class BoundedTail:
    """Keeps the last `max_bytes` of what is fed."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.value = b""

    def feed(self, data: bytes) -> None:
        self.value = (self.value + data)[-self._max_bytes :]
