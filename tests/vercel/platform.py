"""Vercel's part of a deployment, on this machine: instances of its functions in the real runtime, the real queue service, and pushes.

An instance has a root that it cannot write to, but for /tmp. The queue service of `vercel-queue` is asked for messages, which are
posted to the function that works with the headers of a push; the function itself acknowledges them there.
"""

import asyncio
import base64
import json
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
from vercel.queue import ALL_DEPLOYMENTS, QueueClient, SanitizedName, Topic
from vercel.queue.devserver import embedded_queue_dev_server

from app.aio import open_task_group
from app.dispatch.vercel_queue import TOPIC
from tests.plain_http import NO_TLS
from tests.vercel.deployment import Deployment

HEARS, WORKS = "fastapi", "_py_subscribers/app-subscriber__advance"
DEPLOYMENT, REGION, TOKEN = "dpl_test", "iad1", "queue-token"
START_TIMEOUT_S, PUSH_TIMEOUT_S, POLL_S = 60.0, 300.0, 0.05
LEASE_S = 300
"""After it a message whose instance died comes again. Source: Vercel Queues, visibility of a push, read 2026-11."""
MAX_DURATION_S = 300.0
"""Of a function for which nothing else is said."""
_STREAMS = "Response.aiter_raw|BoundAsyncStream|AsyncResponseStream|PoolByteStream|HTTP11ConnectionByteStream|AsyncHTTP11Connection"
LEFT_BY_CLIENT = f"ignore:Exception ignored in. <async_generator object ({_STREAMS}):pytest.PytestUnraisableExceptionWarning"
"""The queue's client closes no generator of its own when its polling is cancelled (vercel-queue 0.10.0): the collector may come upon one at work, of this chain of httpx2. Orion's own code runs in other processes here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """One message that was pushed."""

    payload: bytes
    status: int
    """Of the answer; 0 = the instance died."""
    took_s: float
    processor_s: float
    """Of all that the instance did meanwhile."""
    api_calls: int
    """To the provider of sandboxes, meanwhile."""


class Instance:
    """A function in the real runtime, in a process group of its own."""

    def __init__(
        self,
        deployment: Deployment,
        name: str,
        root: Path,
        env: Mapping[str, str],
        *,
        shares: Mapping[str, Path],
    ) -> None:
        """`shares`: directories that it may write to, by where it finds them."""
        self._function = deployment.functions[name]
        self._python = deployment.python
        self._root = root
        self._env = {**self._function.config["environment"], **env}
        self._shares = shares
        self._process: asyncio.subprocess.Process | None = None
        self._ipc = Path(tempfile.mkdtemp(prefix="ipc-"))
        self.log_path = root.parent / f"{root.name}.log"
        self.url = ""
        self.messages: list[Mapping[str, Any]] = []
        """What the runtime has told its platform."""
        self.up = asyncio.Event()

    async def start(self) -> None:
        """Returns when it listens."""
        started = asyncio.Event()

        async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(asyncio.IncompleteReadError), closing(writer):
                while True:
                    message = json.loads((await reader.readuntil(b"\0"))[:-1])
                    self.messages.append(message)
                    if message["type"] == "server-started":
                        self.url = f"http://127.0.0.1:{message['payload']['httpPort']}"
                    if message["type"] in ("server-started", "unrecoverable-error"):
                        started.set()

        path = self._ipc / "ipc"
        path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(hear, path, limit=1 << 22)
        mounts = ["--ro-bind", "/", "/", "--tmpfs", "/var", "--ro-bind", self._root, "/var/task"]
        mounts += ["--dir", "/var/ipc", "--bind", self._ipc, "/var/ipc"]
        for name, directory in self._shares.items():
            mounts += ["--dir", name, "--bind", directory, name]
        mounts += ["--remount-ro", "/var"]
        mounts += ["--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"]  # noqa: S108 - its own
        with self.log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *("bwrap", "--die-with-parent", *map(str, mounts), "--chdir", "/var/task"),
                *(str(self._python), "vc__handler__python.py"),
                env={"PATH": "/usr/bin:/bin", "VERCEL_IPC_PATH": "/var/ipc/ipc", **self._env},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        async with asyncio.timeout(START_TIMEOUT_S):
            await started.wait()
        assert self.url, self.log
        self.up.set()

    @property
    def pid(self) -> int | None:
        """Of its process group; None while there is none."""
        return self._process.pid if self._process else None

    async def keep(self, told: Callable[[], None]) -> None:
        """Starts it anew whenever it has died by itself, as the platform does for the next request, and tells that."""
        while True:
            if self._process is not None:
                await self._process.wait()
            await self.kill()
            await self.start()
            told()

    @property
    def log(self) -> str:
        """What it has printed, and what it has told the platform to log."""
        told = [one["payload"].get("message", "") for one in self.messages if one["type"] == "log"]
        return "\n".join([self.log_path.read_text(), *map(_decoded, told)])

    def processor_s(self) -> float:
        """What its processes have used since it was started."""
        if self._process is None:
            return 0.0
        ticks = 0
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                # Source: proc(5): after the name in brackets the 3rd is the group, the 12th and 13th the times.
                fields = path.read_text().rpartition(")")[2].split()
                if int(fields[2]) == self._process.pid:
                    ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    async def kill(self) -> None:
        """SIGKILL to all of it."""
        self.up.clear()
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        self._process = None
        self._server.close()


def _decoded(message: str) -> str:
    with suppress(ValueError):
        return base64.b64decode(message).decode()
    return message


@dataclass(kw_only=True)
class Platform:
    hears: Instance
    works: Instance
    queue_url: str
    http: httpx.AsyncClient
    count_calls: Callable[[], int]
    """To the provider of sandboxes, so far."""
    pushed: list[Invocation] = field(default_factory=list)
    is_fresh: bool = False
    """Each message comes to a new instance, and the one that had it is killed then."""
    kill_after_s: list[float] = field(default_factory=list)
    """So long after each of the next pushes its instance is killed, and a new one started."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def client(self) -> QueueClient:
        return QueueClient(
            token=TOKEN, region=REGION, base_url=self.queue_url, deployment=ALL_DEPLOYMENTS
        )

    def tracebacks(self) -> list[str]:
        """The functions' lines that hold one: each is a bug."""
        log = self.hears.log + self.works.log
        return [line for line in log.splitlines() if "Traceback" in line]

    async def push_forever(self, consumer: str) -> None:
        """Posts each message as soon as it may be seen, as many at once as there are."""
        client = self.client()
        async with open_task_group() as group:
            while True:
                async for delivery in client.poll(
                    Topic[bytes](TOPIC), SanitizedName(consumer), limit=10, lease_duration=LEASE_S
                ):
                    message = delivery.accept()
                    group.create_task(
                        self.push(message.payload, _headers(message.metadata, consumer))
                    )
                await asyncio.sleep(POLL_S)

    async def push(self, body: bytes, headers: Mapping[str, str]) -> None:
        """Has the function work for a message, as the platform does: one that dies with it answers nothing."""
        if not self.is_fresh and not self.kill_after_s:
            await self._post(body, headers)
            return
        async with self.lock, open_task_group() as group:
            posting = group.create_task(self._post(body, headers))
            if self.kill_after_s:
                await asyncio.sleep(self.kill_after_s.pop(0))
            else:
                await asyncio.wait([posting])
            await self.works.kill()
            await self.works.start()

    async def _post(self, body: bytes, headers: Mapping[str, str]) -> None:
        async with asyncio.timeout(START_TIMEOUT_S):
            await self.works.up.wait()
        loop = asyncio.get_running_loop()
        began_s, status = loop.time(), 0
        used_s, calls = self.works.processor_s(), self.count_calls()
        with suppress(httpx.TransportError):
            answer = await self.http.post(
                self.works.url, content=body, headers=dict(headers), timeout=PUSH_TIMEOUT_S
            )
            status = answer.status_code
        self.pushed.append(
            Invocation(
                payload=body,
                status=status,
                took_s=loop.time() - began_s,
                processor_s=self.works.processor_s() - used_s,
                api_calls=self.count_calls() - calls,
            )
        )


def _headers(metadata: Any, consumer: str) -> Mapping[str, str]:
    """Of a push. Source: vercel-queue 0.10.0, `_internal/constants.py`, CLOUD_EVENT_HEADER_*."""
    times = {
        "ce-vqscreatedat": metadata.created_at,
        "ce-vqsexpiresat": metadata.expires_at,
        "ce-vqsvisibilitydeadline": metadata.visibility_deadline,
    }
    return {
        "ce-type": "com.vercel.queue.v2beta",
        "ce-vqsqueuename": metadata.topic,
        "ce-vqsconsumergroup": consumer,
        "ce-vqsmessageid": metadata.message_id,
        "ce-vqsreceipthandle": str(metadata.receipt_handle),
        "ce-vqsdeliverycount": str(metadata.delivery_count),
        "ce-vqsregion": REGION,
        "content-type": metadata.content_type or "application/octet-stream",
        **{name: at.isoformat() for name, at in times.items() if isinstance(at, datetime)},
    }


@asynccontextmanager
async def open_platform(
    deployment: Deployment,
    bundles: Mapping[str, Path],
    settings: Mapping[str, str],
    *,
    count_calls: Callable[[], int],
    shares: Mapping[str, Path],
) -> AsyncIterator[Platform]:
    """Starts an instance of each function, the queue, and pushes from it. `shares`: see `Instance`."""
    async with AsyncExitStack() as stack:
        queue = stack.enter_context(embedded_queue_dev_server(manual_clock=False))
        env = {
            "VERCEL": "1",
            "VERCEL_REGION": REGION,
            "VERCEL_DEPLOYMENT_ID": DEPLOYMENT,
            "VERCEL_QUEUE_BASE_URL": queue.base_url,
            "VERCEL_QUEUE_TOKEN": TOKEN,
            **settings,
        }
        hears = Instance(deployment, HEARS, bundles[HEARS], env, shares=shares)
        works = Instance(deployment, WORKS, bundles[WORKS], env, shares=shares)
        for instance in (hears, works):
            stack.push_async_callback(instance.kill)
            await instance.start()
        http = await stack.enter_async_context(httpx.AsyncClient(verify=NO_TLS, trust_env=False))
        platform = Platform(
            hears=hears,
            works=works,
            queue_url=queue.base_url,
            http=http,
            count_calls=count_calls,
        )
        trigger = deployment.functions[WORKS].config["experimentalTriggers"][0]
        async with open_task_group() as group:
            pushing = group.create_task(platform.push_forever(trigger["consumer"]))
            try:
                yield platform
            finally:
                pushing.cancel()
