"""Deno's control plane and sandbox endpoint on loopback, with real commands in emulated machines."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from sandbox_runtime.task_group import open_task_group
from tests.emulators.deno import checking
from tests.emulators.deno.answers import (
    endpoint_of,
    page,
    read_json,
    refuse,
    render_snapshot,
    render_volume,
    spoil,
)
from tests.emulators.deno.faults import Fault, Faults, Kind
from tests.emulators.deno.organisation import Organisation
from tests.emulators.deno.resources import IMAGE, MAX_LIFETIME_S, Box, Refused
from tests.emulators.deno.sandbox_socket import SandboxSocket
from tests.emulators.machine_disk import MachineImage
from tests.emulators.machine_network import Address
from tests.emulators.spans import Spans

_POLL_S = 0.05
_VOLUME: Mapping[str, type | tuple[type, ...]] = {
    "slug": str,
    "region": str,
    "capacity": (int, str),
    "from": str,
}

_DISCARD = web.RequestKey("discard", bool)
_BEGAN = web.RequestKey("began", float)
_TALKS = web.RequestKey("talks", bool)
"""The answer goes nowhere."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Emulator:
    """`url` serves both endpoints."""

    def __init__(self, organisation: Organisation, *, token: str) -> None:
        self.organisation = organisation
        self.token = token
        self.faults = Faults()
        self.region = "ord"
        """Of the sandbox endpoint, which on the platform its host name says."""
        self.requests: list[tuple[str, str, str]] = []
        """Method, path with query, and what was sent with it."""
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.spans = Spans()
        """Of requests, of making connections, and of calls over them."""
        self.sockets: set[SandboxSocket] = set()
        self.url = ""
        self.loop: asyncio.AbstractEventLoop | None = None
        """Where it runs, if that is not the test's own."""

    def routes(self) -> list[web.RouteDef]:
        sandbox = "/api/v3/sandbox/{id}"
        return [
            web.get("/api/v3/sandboxes", self._list),
            web.get("/api/v3/sandboxes/create", self._create),
            web.delete("/api/v3/sandboxes/{id}", self._kill),
            web.get(f"{sandbox}/connect", self._connect),
            web.delete(sandbox, self._kill),
            web.patch(sandbox, self._extend),
            web.post(f"{sandbox}/expose/ssh", self._ssh),
            web.get("/api/v2/volumes", self._volumes),
            web.post("/api/v2/volumes", self._create_volume),
            web.get("/api/v2/volumes/{id}", self._volume),
            web.delete("/api/v2/volumes/{id}", self._delete_volume),
            web.post("/api/v2/volumes/{id}/snapshot", self._snapshot),
            web.get("/api/v2/snapshots", self._snapshots),
            web.get("/api/v2/snapshots/{id}", self._snapshot_of),
            web.delete("/api/v2/snapshots/{id}", self._delete_snapshot),
        ]

    def cut_sockets(self) -> None:
        """All connections to sandboxes, as a network does. From any thread."""
        for socket in list(self.sockets):
            if self.loop is None:
                socket.cut()
            else:
                self.loop.call_soon_threadsafe(socket.cut)

    def end_lifetimes(self) -> None:
        """The time of all sandboxes that run is over. From another thread."""
        assert self.loop is not None
        for box in self.organisation.running:
            asyncio.run_coroutine_threadsafe(self.organisation.stop(box), self.loop).result(10)

    async def run_inside(self, argv: Sequence[str]) -> bytes:
        """What root finds in the only sandbox that runs. From another thread."""
        (box,) = self.organisation.running
        assert self.loop is not None
        running = asyncio.run_coroutine_threadsafe(box.machine.run(argv), self.loop)
        return (await asyncio.wrap_future(running)).stdout

    async def _list(self, request: web.Request) -> web.StreamResponse:
        known = {"cursor", "limit"}
        items: list[dict[str, Any]] = [
            {
                "id": box.id,
                "createdAt": box.created_at.isoformat(),
                "region": box.region,
                "status": "running" if box.is_running else "stopped",
                "stoppedAt": box.stopped_at.isoformat() if box.stopped_at else None,
                "labels": dict(box.labels),
            }
            for box in self.organisation.boxes.values()
        ]
        for name, value in request.query.items():
            if name.startswith("labels[") and name.endswith("]"):
                items = [item for item in items if item["labels"].get(name[7:-1]) == value]
                known.add(name)
        return page(request, items, known=known)

    async def _create(self, request: web.Request) -> web.StreamResponse:
        header = request.headers.get("x-deno-sandbox-config", "")
        config, region = checking.config(header, region=self.region)
        box = await self.organisation.create(config, region)
        return await self._talk(request, box)

    async def _connect(self, request: web.Request) -> web.StreamResponse:
        return await self._talk(request, self._box(request))

    async def _talk(self, request: web.Request, box: Box) -> web.StreamResponse:
        if request.get(_DISCARD):
            return web.Response()  # what it is struck by comes in its place
        socket = SandboxSocket(box, self.faults, self.calls, self.spans)
        socket.ws.headers["x-deno-sandbox-id"] = box.id
        socket.ws.headers["x-deno-trace-id"] = secrets.token_hex(16)
        await socket.ws.prepare(request)
        self.spans.add((request[_BEGAN], time.time()))
        request[_TALKS] = True
        self.sockets.add(socket)
        try:
            await socket.serve()
        finally:
            self.sockets.discard(socket)
        return socket.ws

    async def _kill(self, request: web.Request) -> web.StreamResponse:
        await self.organisation.stop(self._box(request))
        return web.Response(status=204)

    async def _extend(self, request: web.Request) -> web.StreamResponse:
        box = self._box(request)
        found = checking.fields(await read_json(request), {"stop_at_ms": int}, "stop_at_ms")
        box.stop_at = min(found["stop_at_ms"] / 1000, time.time() + MAX_LIFETIME_S)
        return web.json_response({"stop_at_ms": int(box.stop_at * 1000)})

    async def _ssh(self, request: web.Request) -> web.StreamResponse:
        self._box(request)
        checking.fields(await read_json(request), {})
        found = {"hostname": "ssh.deno.test", "username": secrets.token_hex(8), "port": 22}
        return web.json_response(found)

    async def _volumes(self, request: web.Request) -> web.StreamResponse:
        disks = self.organisation.volumes.values()
        return page(
            request, [render_volume(disk) for disk in disks], known={"cursor", "limit", "search"}
        )

    async def _create_volume(self, request: web.Request) -> web.StreamResponse:
        found = checking.fields(await read_json(request), _VOLUME, "slug", "region", "capacity")
        disk = await self.organisation.create_volume(
            found["slug"], found["region"], found["capacity"], found.get("from")
        )
        return web.json_response(render_volume(disk))

    async def _volume(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(
            render_volume(self.organisation.find_volume(request.match_info["id"]))
        )

    async def _delete_volume(self, request: web.Request) -> web.StreamResponse:
        await self.organisation.delete_volume(request.match_info["id"])
        return web.Response(status=204)

    async def _snapshot(self, request: web.Request) -> web.StreamResponse:
        found = checking.fields(await read_json(request), {"slug": str}, "slug")
        disk = await self.organisation.snapshot(request.match_info["id"], found["slug"])
        return web.json_response(render_snapshot(disk))

    async def _snapshots(self, request: web.Request) -> web.StreamResponse:
        disks = self.organisation.snapshots.values()
        return page(
            request, [render_snapshot(disk) for disk in disks], known={"cursor", "limit", "search"}
        )

    async def _snapshot_of(self, request: web.Request) -> web.StreamResponse:
        found = self.organisation.find_snapshot(request.match_info["id"])
        return web.json_response(render_snapshot(found))

    async def _delete_snapshot(self, request: web.Request) -> web.StreamResponse:
        await self.organisation.delete_snapshot(request.match_info["id"])
        return web.Response(status=204)

    def _box(self, request: web.Request) -> Box:
        box = self.organisation.boxes.get(request.match_info["id"])
        if box is None or not box.is_running:
            raise Refused(404, "SANDBOX_NOT_FOUND", "The requested sandbox does not exist")
        return box

    @web.middleware
    async def guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Who asks, what shall go wrong, and refusals in the platform's form."""
        sent = request.headers.get("x-deno-sandbox-config", "")
        body = (await request.read()).decode() if request.can_read_body else sent
        self.requests.append((request.method, request.path_qs, body))
        fault = self.faults.take(endpoint_of(request))
        request[_BEGAN] = time.time()
        try:
            self._check(request)
            if fault is None:
                return await handler(request)
            return await self._strike(fault, request, handler)
        except Refused as exc:
            return refuse(exc)
        finally:
            if not request.get(_TALKS):
                self.spans.add((request[_BEGAN], time.time()))

    def _check(self, request: web.Request) -> None:
        if request.headers.get("authorization") != f"Bearer {self.token}":
            raise Refused(401, "INVALID_TOKEN", "The provided token is invalid")
        if request.match_info.http_exception is not None:
            raise Refused(400, "UNKNOWN_ROUTE", f"{request.method} {request.path}")

    async def _strike(
        self, fault: Fault, request: web.Request, handler: Handler
    ) -> web.StreamResponse:
        match fault.kind:
            case Kind.RATE_LIMIT:
                raise Refused(429, "RATE_LIMITED", "too many requests")
            case Kind.UNAUTHORIZED:
                raise Refused(401, "INVALID_TOKEN", "The provided token is invalid")
            case Kind.MISSING:
                raise Refused(404, "NOT_FOUND", "it does not exist")
            case Kind.SLOW:
                await asyncio.sleep(fault.seconds)
                return await handler(request)
            case Kind.SILENT:
                await asyncio.sleep(3600)
            case Kind.CUT_AFTER | Kind.FAIL_AFTER:
                request[_DISCARD] = True
                await handler(request)
            case _:
                pass
        return spoil(fault.kind, request)


@asynccontextmanager
async def open_emulator(
    directory: Path,
    *,
    token: str,
    internet: Sequence[Address] = (),
    image: MachineImage = IMAGE,
) -> AsyncIterator[Emulator]:
    """On a free port of loopback, until the end of the block; then nothing of it is left."""
    organisation = Organisation(directory, internet=internet, image=image)
    emulator = Emulator(organisation, token=token)
    app = web.Application(middlewares=[emulator.guard])
    app.add_routes(emulator.routes())
    runner = web.AppRunner(app, shutdown_timeout=1.0, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert runner.addresses
    emulator.url = f"http://127.0.0.1:{runner.addresses[0][1]}"

    async def watch() -> None:
        while True:
            await organisation.stop_overdue()
            await asyncio.sleep(_POLL_S)

    try:
        async with open_task_group() as group:
            watching = group.create_task(watch())
            try:
                yield emulator
            finally:
                watching.cancel()
    finally:
        emulator.cut_sockets()
        await organisation.close()
        await runner.cleanup()
