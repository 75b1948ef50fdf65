"""Processes as the service inside a sandbox starts them: our runner, and our scripts."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from sandbox_runtime.providers.deno.errors import (
    ConnectionLost,
    RemoteError,
    UnexpectedAnswer,
    map_deno_errors,
)
from sandbox_runtime.providers.deno.paths import ROOT_PYTHON
from sandbox_runtime.providers.deno.rpc import RpcConnection
from sandbox_runtime.providers.deno.streams import InboundStream, MergedStreams
from sandbox_runtime.types import OutputStream

_SCRIPT_TIMEOUT_S = 120.0
_ERROR_BYTES = 1000
_SAID_BYTES = 1024 * 1024


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
        """Raises: ConnectionLost, RemoteError, UnexpectedAnswer, TimeoutError."""
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
        """Raises: ConnectionLost."""
        if self.stdin is not None:
            await self.connection.write(self.stdin, data)

    async def wait(self, *, timeout_s: float) -> int:
        """Its exit code. Raises: ConnectionLost, RemoteError, UnexpectedAnswer, TimeoutError."""
        found = await self.connection.call("processWait", {"pid": self.pid}, timeout_s=timeout_s)
        return _number(found, "code")

    async def finish(self) -> None:
        """Nobody reads or writes it any more."""
        for number in self.numbers:
            self.connection.drop_stream(number)
        if self.stdin is not None:
            number, self.stdin = self.stdin, None
            with suppress(ConnectionLost):
                await self.connection.end_stream(number)


def _number(found: object, name: str) -> int:
    """Of a result. Raises: UnexpectedAnswer."""
    match found:
        case dict() if isinstance(number := found.get(name), int):
            return number
        case _:
            raise UnexpectedAnswer(f"no {name} in {str(found)[:200]}")


async def run_script(
    connection: RpcConnection, source: str, *arguments: str, timeout_s: float = _SCRIPT_TIMEOUT_S
) -> bytes:
    """Run a Python script of ours as root, to its end; what it said, at most 1 MiB.

    Raises:
        SandboxError: UNAVAILABLE when it failed.
    """
    return await _run(connection, [*ROOT_PYTHON, source, *arguments], timeout_s=timeout_s)


async def run_shell(connection: RpcConnection, script: str, *, timeout_s: float) -> bytes:
    """The same for a shell script."""
    return await _run(connection, ["sudo", "-n", "/bin/sh", "-c", script], timeout_s=timeout_s)


async def _run(connection: RpcConnection, argv: Sequence[str], *, timeout_s: float) -> bytes:
    with map_deno_errors("a script failed inside"):
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
