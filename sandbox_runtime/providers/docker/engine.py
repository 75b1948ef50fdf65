"""The Docker engine as sandboxes need it: containers and execs, typed, bounded, its errors mapped."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiodocker
import aiohttp
from aiodocker.containers import DockerContainer

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.finishing import finish
from sandbox_runtime.providers.docker.errors import asking, map_docker_errors
from sandbox_runtime.providers.docker.exec_stream import ExecStream
from sandbox_runtime.providers.docker.stats import SandboxStats

_UNIX = "unix://"
FINISH_TIMEOUT_S = 10.0
_CONNECT_TIMEOUT_S = 5.0
_COPY_TIMEOUT_S = 600.0
_SIGKILL = "9"

_GONE = SandboxErrorCode.UNAVAILABLE

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """Of the engine itself."""

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


class Engine:
    """One connection pool to one engine. Open it with `open_engine`."""

    def __init__(self, docker: aiodocker.Docker) -> None:
        self.docker = docker

    async def info(self, *, timeout_s: float) -> EngineInfo:
        async with asking("cannot reach the Docker engine", timeout_s=timeout_s):
            found = await self.docker.system.info()
        options = (option.split(",") for option in found.get("SecurityOptions") or ())
        return EngineInfo(
            version=str(found.get("ServerVersion", "")),
            cpus=int(found.get("NCPU", 1)),
            security=tuple(parts[0].removeprefix("name=") for parts in options),
            runtimes=tuple(found.get("Runtimes") or ()),
        )

    async def create(self, config: Mapping[str, Any], *, name: str) -> str:
        """Its id. Not started yet. A cancelled call leaves no container."""
        try:
            return await finish(self._create(config, name=name), timeout_s=FINISH_TIMEOUT_S)
        except asyncio.CancelledError:
            await self.discard(name)
            raise

    async def _create(self, config: Mapping[str, Any], *, name: str) -> str:
        async with asking("cannot create a container", otherwise=SandboxErrorCode.CREATE_FAILED):
            return (await self.docker.containers.create(dict(config), name=name)).id

    async def start(self, container_id: str) -> None:
        async with asking("cannot start a container", otherwise=SandboxErrorCode.CREATE_FAILED):
            await self._container(container_id).start()

    async def remove(self, container_id: str) -> None:
        """Kill and remove it, with its volumes. One that is gone, or going, is fine; gone when this returns."""
        async with asking("cannot remove a container"):
            try:
                await self._container(container_id).delete(force=True, v=True)
            except aiodocker.DockerError as exc:
                if exc.status == 404:  # noqa: PLR2004  # HTTP
                    return
                if exc.status != 409:  # noqa: PLR2004  # HTTP: it is being removed
                    raise
                await self._until_removed(container_id)

    async def discard(self, container_id: str) -> None:
        """Remove what is of no use any more. If that fails it is logged: there is an error already, or none that matters."""
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
        """By id or name."""
        try:
            async with asking("cannot inspect a container"):
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

    async def list(self, labels: Sequence[str]) -> list[ContainerState]:
        """Containers with all the labels, `key` or `key=value`."""
        async with asking("cannot list containers"):
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
        """To PID 1."""
        async with asking("cannot signal a container", otherwise=_GONE, missing=_GONE):
            await self._container(container_id).kill(signal=name)

    async def count_processes(self, container_id: str) -> int:
        async with asking("cannot list processes", otherwise=_GONE, missing=_GONE):
            return len((await self._container(container_id).top(ps_args="-eo pid"))["Processes"])

    async def stats(self, container: str) -> SandboxStats:
        """By id or name. Raises: SandboxError: NOT_FOUND."""
        async with asking("cannot read statistics"):
            (found,) = await self._container(container).stats(stream=False)
        return SandboxStats.parse(found)

    async def exec(
        self,
        container_id: str,
        argv: Sequence[str],
        *,
        user: str,
        env: Mapping[str, str],
        terminal_in: str | None = None,
    ) -> ExecStream:
        """Start it, with its standard streams connected. It is over only when the stream says so.

        With `terminal_in` the streams are a terminal, and that is its directory; otherwise it starts in the root.
        """
        async with asking("cannot run a command", otherwise=_GONE, missing=_GONE):
            made = await self._container(container_id).exec(
                argv,
                stdin=True,
                tty=terminal_in is not None,
                user=user,
                environment=env,
                workdir=terminal_in or "/",
            )
            return await ExecStream.connect(made)

    async def exit_code(self, container: str) -> int | None:
        """Of one that is gone, by its name, if it ended by itself lately. The engine keeps its last 256 events.

        Source: Docker Engine API v1.41, SystemEvents; moby 20.10, daemon/events, eventsLimit.
        """
        filters = _json_filter(type=["container"], container=[container], event=["kill", "die"])
        params = {"since": "0", "until": str(time.time()), "filters": filters}
        base = f"{self.docker.docker_host}/{self.docker.api_version}"
        async with (
            asking("cannot read events"),
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
        """A path of one container into a directory of another that is not running: whole, or with `/.` what is in it."""
        base = f"{self.docker.docker_host}/{self.docker.api_version}/containers"
        session = self.docker.session
        timeout = aiohttp.ClientTimeout(total=_COPY_TIMEOUT_S)
        async with (
            asking(f"cannot save {path}", timeout_s=_COPY_TIMEOUT_S),
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
        """Those with the labels that no container uses; how many."""
        filters = {"label": list(labels), "dangling": ["true"]}
        async with asking("cannot remove volumes"):
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
    """Nothing is sent before it is used."""
    timeout = aiohttp.ClientTimeout(sock_connect=_CONNECT_TIMEOUT_S)
    with map_docker_errors("cannot use the Docker engine"):
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
