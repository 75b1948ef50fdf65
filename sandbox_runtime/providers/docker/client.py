"""The Docker engine as sandboxes need it: containers and execs, typed, bounded, its errors mapped.

aiodocker.DockerError             by HTTP status; 900 is the client's own word for "no connection"
DockerContainerError            the same
DockerStreamError               status 0: a build or import failed in the middle of its answer
DockerContextError, ...         the client's configuration is unusable
aiohttp.ClientError               the connection broke
TimeoutError, OSError             no answer; no connection
"""

import asyncio
import errno
import json
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self

import aiodocker
import aiohttp
from aiodocker.containers import DockerContainer
from aiodocker.execs import Exec
from aiodocker.stream import Stream

from sandbox_runtime.errors import (
    CodeAndRetry,
    ErrorMap,
    RequestContext,
    SandboxError,
    SandboxErrorCode,
)
from sandbox_runtime.lifecycle import shielded
from sandbox_runtime.types import ExecOutput, OutputStream, SandboxStats

_log = logging.getLogger(__name__)

ENGINE_TIMEOUT_S = 60.0
"""Of one ordinary request: a busy engine makes a container in seconds, not in milliseconds."""

_NO_CONNECTION = 900
"""Source: aiodocker 0.27.0, docker.py, _do_query."""

# Source: seen, Docker Engine 20.10.24 (errno 28 as its text; the status is 500 like that of many others).
_OUT_OF_DISK = "no space left on device"

_REMEDY = "is Docker running? start it, or set DOCKER_HOST"
_SLOW = "look at its load and its log, restart it if it stays so"
_FORBIDDEN = "this user may not use the engine: add it to the group docker, or set DOCKER_HOST"


_BY_STATUS: Mapping[int, CodeAndRetry] = {0: (None, False), 409: (None, True)}
"""Beside what statuses mean everywhere. 0: a build failed in the middle; 409: in use just now."""


def _translate(exc: Exception, context: RequestContext) -> SandboxError:
    match exc:
        case aiodocker.DockerContextError():
            return context.error(str(exc), SandboxErrorCode.UNAVAILABLE)
        case aiodocker.DockerError():
            return _from_status(exc, context)
        case TimeoutError():
            reason = f"no answer from the engine in time; {_SLOW}"
        case _:
            reason = f"the connection to the engine broke: {exc}"
    return context.error(reason, SandboxErrorCode.UNAVAILABLE, retryable=True)


def _from_status(exc: aiodocker.DockerError, context: RequestContext) -> SandboxError:
    if exc.status == _NO_CONNECTION:
        remedy = _FORBIDDEN if _errno(exc) in (errno.EACCES, errno.EPERM) else _REMEDY
        reason = f"{exc.message}; {remedy}"
        return context.error(reason, SandboxErrorCode.UNAVAILABLE, retryable=True)
    if _OUT_OF_DISK in exc.message:
        return context.error(exc.message, SandboxErrorCode.LIMIT_REACHED)
    return context.error_of_status(exc.status, exc.message, _BY_STATUS)


def _errno(exc: BaseException) -> int | None:
    cause = exc.__cause__ or exc.__context__
    return cause.errno if isinstance(cause, OSError) else None


map_errors = ErrorMap(
    _translate,
    aiodocker.DockerContextError,
    aiodocker.DockerError,
    aiohttp.ClientError,
    OSError,  # TimeoutError, too
    timeout_s=ENGINE_TIMEOUT_S,
)
"""Bounds a request to the engine and maps its errors: LIMIT_REACHED for a full disk, UNAVAILABLE when it does not answer."""


_UNIX = "unix://"
FINISH_TIMEOUT_S = 10.0
_CONNECT_TIMEOUT_S = 5.0
COPY_TIMEOUT_S = 600.0
_SIGKILL = "9"

_GONE = SandboxErrorCode.UNAVAILABLE


_WRITE_BYTES = 256 * 1024
_INSPECT_TIMEOUT_S = 10.0
_FIRST_POLL_S, _MAX_POLL_S = 0.002, 0.05

# Source: Docker Engine API v1.41, ContainerAttach, "Stream format".
_STREAMS = {1: OutputStream.STDOUT, 2: OutputStream.STDERR}


@dataclass(frozen=True, slots=True)
class ExecState:
    running: bool
    exit_code: int | None


class ExecStream:
    """Made by `Engine.exec`. Whoever has it closes it."""

    def __init__(self, made: Exec, stream: Stream) -> None:
        self._made = made
        self._stream = stream
        self._closed = False

    @classmethod
    async def connect(cls, made: Exec) -> Self:
        """Starts the exec. If this fails or is cancelled, what was started finds its stdin at the end."""
        self = cls(made, made.start(detach=False))
        try:
            await self._stream.__aenter__()
        except BaseException:
            await self.close()
            raise
        return self

    async def write(self, data: bytes) -> None:
        """Writes to stdin, as fast as it is taken. A connection that broke, or is closed, shows when it is read."""
        if self._closed:
            return
        view = memoryview(data)
        try:
            for start in range(0, len(view), _WRITE_BYTES):
                await self._stream.write_in(bytes(view[start : start + _WRITE_BYTES]))
        except (OSError, aiohttp.ClientError, AssertionError):
            return  # AssertionError: the client's way to say that the connection is gone (aiodocker 0.27.0)

    async def read(self) -> ExecOutput | None:
        """Returns the next piece of output; None at the end. Not reading stops the command at a full pipe."""
        while True:
            try:
                message = await self._stream.read_out()
            except (OSError, aiohttp.ClientError):
                return None
            if message is None:
                return None
            if message.data and message.stream in _STREAMS:
                return ExecOutput(stream=_STREAMS[message.stream], data=message.data)

    async def close(self) -> None:
        """Disconnects; the command finds its stdin at the end. What was written before still arrives. Idempotent."""
        self._closed = True
        try:
            await self._stream.close()
        except AssertionError:
            # The connection is gone already; the client marks the stream as closed first (aiodocker 0.27.0).
            return

    async def state(self) -> ExecState | None:
        """Returns None when the engine does not know it any more, because its container is gone."""
        async with map_errors(
            "cannot inspect a command",
            timeout_s=_INSPECT_TIMEOUT_S,
            missing=SandboxErrorCode.UNAVAILABLE,
        ):
            try:
                found = await self._made.inspect()
            except aiodocker.DockerError as exc:
                if exc.status in (404, 409):  # unknown; its container is not running
                    return None
                raise
        code = found["ExitCode"]
        return ExecState(bool(found["Running"]), None if code is None else int(code))

    async def ended(self) -> ExecState | None:
        """Waits until it does not run any more, without a bound: the caller has one."""
        poll_s = _FIRST_POLL_S
        while True:
            state = await self.state()
            if state is None or not state.running:
                return state
            await asyncio.sleep(poll_s)
            poll_s = min(2 * poll_s, _MAX_POLL_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    version: str
    cpus: int
    security: tuple[str, ...]
    """Names of what confines containers: seccomp, apparmor, userns, rootless."""
    runtimes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerState:
    id: str
    running: bool
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerFiles:
    image: str
    """The id of what it was made from."""
    volumes: Mapping[str, str]
    """Names, by where they are mounted."""


class Engine:
    """One connection pool to one engine. Open it with `open_engine`."""

    def __init__(self, docker: aiodocker.Docker) -> None:
        self.docker = docker

    async def info(self, *, timeout_s: float) -> EngineInfo:
        async with map_errors("cannot reach the Docker engine", timeout_s=timeout_s):
            found = await self.docker.system.info()
        options = (option.split(",") for option in found.get("SecurityOptions") or ())
        return EngineInfo(
            version=str(found.get("ServerVersion", "")),
            cpus=int(found.get("NCPU", 1)),
            security=tuple(parts[0].removeprefix("name=") for parts in options),
            runtimes=tuple(found.get("Runtimes") or ()),
        )

    async def create(
        self, config: Mapping[str, Any], *, name: str, timeout_s: float = ENGINE_TIMEOUT_S
    ) -> str:
        """Creates a container and returns its id; not started yet. A cancelled call leaves none that is made within 10 s."""
        try:
            return await shielded(
                self._create(config, name=name, timeout_s=timeout_s), timeout_s=FINISH_TIMEOUT_S
            )
        except asyncio.CancelledError:
            await self.discard(name)
            raise

    async def _create(self, config: Mapping[str, Any], *, name: str, timeout_s: float) -> str:
        async with map_errors(
            "cannot create a container",
            otherwise=SandboxErrorCode.CREATE_FAILED,
            timeout_s=timeout_s,
        ):
            return (await self.docker.containers.create(dict(config), name=name)).id

    async def start(self, container_id: str) -> None:
        async with map_errors("cannot start a container", otherwise=SandboxErrorCode.CREATE_FAILED):
            await self._container(container_id).start()

    async def rename(self, container: str, name: str) -> bool:
        """Returns whether there was one of that name: of several that ask at once, one gets it. Nor is there one behind a proxy that refuses to rename."""
        async with map_errors("cannot rename a container"):
            try:
                await self._container(container).rename(name)
            except aiodocker.DockerError as exc:
                if exc.status in (403, 404):
                    return False
                raise
        return True

    async def remove(self, container_id: str) -> None:
        """Kills and removes it, with its volumes. One that is gone, or going, is fine; gone when this returns."""
        async with map_errors("cannot remove a container"):
            try:
                await self._container(container_id).delete(force=True, v=True)
            except aiodocker.DockerError as exc:
                if exc.status == 404:  # noqa: PLR2004  # HTTP
                    return
                if exc.status != 409:  # noqa: PLR2004  # HTTP: it is being removed
                    raise
                await self._until_removed(container_id)

    async def discard(self, container_id: str) -> None:
        """Removes what is of no use any more. If that fails it is logged: there is an error already, or none that matters."""
        try:
            await self.remove(container_id)
        except SandboxError as exc:
            _log.warning(
                "container not removed",
                extra={"action": "sandbox.stop_failed", "reason": str(exc)},
            )

    async def _until_removed(self, container_id: str) -> None:
        try:
            await self._container(container_id).wait(condition="removed")
        except aiodocker.DockerError as exc:
            if exc.status != 404:  # noqa: PLR2004  # HTTP
                raise

    async def find(self, container: str) -> ContainerState | None:
        try:
            async with map_errors("cannot inspect a container"):
                found = await self._container(container).show()
        except SandboxError as exc:
            if exc.code is SandboxErrorCode.NOT_FOUND:
                return None
            raise
        return ContainerState(
            id=found["Id"],
            running=bool(found["State"]["Running"]),
            labels=found["Config"]["Labels"] or {},
        )

    async def files(self, container_id: str) -> ContainerFiles:
        async with map_errors("cannot inspect a container", missing=_GONE):
            found = await self._container(container_id).show()
        volumes = {
            str(mount["Destination"]): str(mount["Name"])
            for mount in found["Mounts"]
            if mount["Type"] == "volume"
        }
        return ContainerFiles(image=str(found["Image"]), volumes=volumes)

    async def run(self, container_id: str) -> int:
        """Starts a container and waits until it ends, without a bound: the caller has one. Returns its exit code."""
        await self.start(container_id)
        with map_errors.unbounded("cannot wait for a container", missing=_GONE):
            ended = await self._container(container_id).wait()
        return int(ended["StatusCode"])

    async def list(self, labels: Sequence[str]) -> list[ContainerState]:
        """Lists containers with all the labels, `key` or `key=value`."""
        async with map_errors("cannot list containers"):
            found = await self.docker.containers.list(
                all=True, filters=_json_filter(label=list(labels))
            )
        return [
            ContainerState(
                id=container["Id"],
                running=container["State"] == "running",
                labels=container["Labels"] or {},
            )
            for container in found
        ]

    async def signal(self, container_id: str, name: str) -> None:
        """Signals PID 1."""
        async with map_errors("cannot signal a container", otherwise=_GONE, missing=_GONE):
            await self._container(container_id).kill(signal=name)

    async def count_processes(self, container_id: str) -> int:
        async with map_errors("cannot list processes", otherwise=_GONE, missing=_GONE):
            found = await self._container(container_id).top(ps_args="-eo pid")
        return len(found["Processes"] or ())  # null where all of them end while it looks

    async def stats(self, container: str) -> SandboxStats:
        """Returns what a container uses; nothing of one that is gone or not running.

        Source: Docker Engine API v1.41, ContainerStats: files that could be dropped at once count in `usage`.
        """
        async with map_errors("cannot read a container's figures"):
            try:
                (told,) = await self._container(container).stats(stream=False)
            except aiodocker.DockerError as exc:
                if exc.status in (403, 404, 409):  # a proxy that refuses it; gone; not running
                    return SandboxStats()
                raise
        memory = told.get("memory_stats") or {}
        if "usage" not in memory:
            return SandboxStats()
        held, by_version_1 = memory.get("stats") or {}, "total_inactive_file"
        cached = held.get(by_version_1, held.get("inactive_file", 0))
        return SandboxStats(
            cpu_s=told["cpu_stats"]["cpu_usage"]["total_usage"] / 1e9,
            memory_bytes=max(0, memory["usage"] - cached),
            memory_limit_bytes=memory.get("limit"),
        )

    async def exec(
        self, container_id: str, argv: Sequence[str], *, user: str, env: Mapping[str, str]
    ) -> ExecStream:
        """Starts a command in the root, with its standard streams connected. It is over only when the stream says so."""
        async with map_errors("cannot run a command", otherwise=_GONE, missing=_GONE):
            made = await self._container(container_id).exec(
                argv,
                stdin=True,
                user=user,
                environment=env,
                workdir="/",
            )
            return await ExecStream.connect(made)

    async def exit_code(self, container: str) -> int | None:
        """Returns how one that is gone, by its name, ended, if it did by itself lately. The engine keeps its last 256 events.

        Source: Docker Engine API v1.41, SystemEvents; moby 20.10, daemon/events, eventsLimit.
        """
        filters = _json_filter(type=["container"], container=[container], event=["kill", "die"])
        params = {"since": "0", "until": str(time.time()), "filters": filters}
        base = f"{self.docker.docker_host}/{self.docker.api_version}"
        async with (
            map_errors("cannot read events"),
            self.docker.session.get(f"{base}/events", params=params) as answer,
        ):
            await _check(answer)
            events = [json.loads(line) async for line in answer.content if line.strip()]
        for event in events:
            attributes = event["Actor"]["Attributes"]
            if event["Action"] == "kill" and attributes.get("signal") == _SIGKILL:
                return None
            if event["Action"] == "die":
                return int(attributes["exitCode"])
        return None

    async def copy(self, source: str, path: str, *, target: str, into: str) -> None:
        """Copies a path of one container into a directory of another that is not running: whole, or with `/.` what is in it."""
        base = f"{self.docker.docker_host}/{self.docker.api_version}/containers"
        session = self.docker.session
        timeout = aiohttp.ClientTimeout(total=COPY_TIMEOUT_S)
        async with (
            map_errors(f"cannot save {path}", timeout_s=COPY_TIMEOUT_S),
            session.get(
                f"{base}/{source}/archive", params={"path": path}, timeout=timeout
            ) as archive,
        ):
            await _check(archive)
            async with session.put(
                f"{base}/{target}/archive",
                params={"path": into},
                data=archive.content.iter_chunked(256 * 1024),
                headers={"Content-Type": "application/x-tar"},
                timeout=timeout,
            ) as answer:
                await _check(answer)

    async def remove_volumes(self, labels: Sequence[str]) -> int:
        """Removes volumes with the labels that no container uses; returns how many."""
        filters = {"label": list(labels), "dangling": ["true"]}
        async with map_errors("cannot remove volumes"):
            volumes: Any = self.docker.volumes  # the client's own annotations end here
            found = (await volumes.list(filters=filters))["Volumes"] or ()
            removed = 0
            for volume in found:
                try:
                    await (await volumes.get(volume["Name"])).delete()
                    removed += 1
                except aiodocker.DockerError as exc:
                    if exc.status not in (404, 409):  # gone, or taken into use
                        raise
        return removed

    def _container(self, container_id: str) -> DockerContainer:
        return self.docker.containers.container(container_id)


@asynccontextmanager
async def open_engine(docker_host: str) -> AsyncIterator[Engine]:
    """Opens a connection pool; nothing is sent before it is used."""
    timeout = aiohttp.ClientTimeout(sock_connect=_CONNECT_TIMEOUT_S)
    with map_errors.unbounded("cannot use the Docker engine"):
        if docker_host.startswith(_UNIX):
            # No bound on connections: each running command holds one, and the client's default of 100 would block the next.
            connector = aiohttp.UnixConnector(docker_host.removeprefix(_UNIX), limit=0)
            session = aiohttp.ClientSession(connector=connector, timeout=timeout)
            docker = aiodocker.Docker(
                f"{_UNIX}localhost", connector=connector, session=session, timeout=timeout
            )
        else:
            docker = aiodocker.Docker(docker_host, timeout=timeout)
            session = docker.session
    try:
        yield Engine(docker)
    finally:
        await docker.close()
        await session.close()


async def _check(response: aiohttp.ClientResponse) -> None:
    if response.status >= 400:  # noqa: PLR2004  # HTTP
        raise aiodocker.DockerError(response.status, await response.text())


def _json_filter(**filters: list[str]) -> str:
    return json.dumps(filters)
