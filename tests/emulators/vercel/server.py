"""The emulator as a server on loopback, in a thread with a loop of its own."""

import asyncio
import socket
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandbox_runtime.task_group import open_task_group
from tests.emulators.machine_disk import disks_directory
from tests.emulators.machine_network import Address
from tests.emulators.spans import Spans
from tests.emulators.vercel.faults import Fault, Faults, never
from tests.emulators.vercel.routes import add_routes
from tests.emulators.vercel.shapes import unknown_fields
from tests.emulators.vercel.world import (
    CONCURRENCY,
    OIDC_TOKEN,
    PROJECT,
    TEAM,
    TOKEN,
    Refused,
    World,
)

START_S, STOP_S = 10.0, 30.0
_STREAMS = ("run", "logs")
_ADMITTED = (f"Bearer {TOKEN}", f"Bearer {OIDC_TOKEN}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A request as it came."""

    endpoint: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)


class Emulator:
    """A running one."""

    def __init__(self) -> None:
        self.url = ""
        self.faults = Faults()
        self.seen: list[Seen] = []
        self.spans = Spans()
        self.world: World = None  # type: ignore[assignment]  # set before it is handed out
        self.loop: asyncio.AbstractEventLoop = None  # type: ignore[assignment]  # same

    def count(self, endpoint: str) -> int:
        """Requests to it."""
        return sum(seen.endpoint == endpoint for seen in self.seen)

    def reset(self) -> None:
        """No fault, nothing seen."""
        self.faults.clear()
        self.seen.clear()
        self.world.start_s = 0.0
        self.world.concurrency = CONCURRENCY

    def running(self) -> list[str]:
        """Names of sandboxes with a session that is not over."""
        records = list(self.world.sandboxes.values())
        return [r.name for r in records if r.session and r.session.status in ("pending", "running")]

    def end_lifetime(self, name: str) -> None:
        """A sandbox's time is over, now."""
        session = self.world.sandboxes[name].session
        assert session is not None
        self.call(self.world.stop(session))

    def end_lifetimes(self) -> None:
        """The time of all sandboxes that run is over, now."""
        for name in self.running():
            self.end_lifetime(name)

    def call(self, work: Any) -> Any:
        """A coroutine of the emulator's own, to its end."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(STOP_S)


class Gate:
    """Before all endpoints: who asks, what for, what goes wrong."""

    def __init__(self, app: ASGIApp, api: FastAPI, emulator: Emulator) -> None:
        self._app = app
        self._api = api
        self._emulator = emulator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with self._emulator.spans.span():
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        body = await request.body()
        endpoint = self._endpoint(scope, request)
        self._emulator.seen.append(
            Seen(
                endpoint=endpoint,
                path=scope["path"],
                query=dict(request.query_params),
                headers=dict(request.headers),
                body=body,
            )
        )
        try:
            self._admit(request, endpoint, body)
        except Refused as exc:
            await _answer(exc)(scope, receive, send)
            return
        fault = self._emulator.faults.take(endpoint)

        async def again() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        # The client's going away ends a stream that is being told.
        pending = [again]

        async def replay() -> Message:
            return await pending.pop()() if pending else await receive()

        await self._with_fault(fault, scope, replay, send)

    def _endpoint(self, scope: Scope, request: Request) -> str:
        for route in self._api.routes:
            match, _ = route.matches(scope)
            if match.value == 2:  # full
                name = str(getattr(route, "name", ""))
                waits = name == "start" and request.query_params.get("wait") == "true"
                return "run" if waits else name
        return ""

    def _admit(self, request: Request, endpoint: str, body: bytes) -> None:
        if request.headers.get("authorization") not in _ADMITTED:
            raise Refused(401, "unauthorized")
        if request.query_params.get("teamId") != TEAM:
            raise Refused(403, "forbidden")
        if request.query_params.get("project", PROJECT) != PROJECT:
            raise Refused(403, "forbidden")
        if not endpoint:
            raise Refused(400, "bad_request", f"no such route: {request.url.path}")
        is_json = "json" in request.headers.get("content-type", "")
        fields = _json(body) if is_json and body else None
        unknown = unknown_fields(endpoint, request.query_params.keys(), fields)
        if unknown:
            raise Refused(400, "bad_request", f"unknown fields: {sorted(unknown)}")

    async def _with_fault(
        self, fault: Fault | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        match fault.kind if fault else None:
            case "answer":
                assert fault is not None
                await _faulty(fault)(scope, receive, send)
            case "lost":
                await _break(send)
            case "broken":
                await self._app(scope, receive, _unheard)
                await _break(send)
            case "slow":
                assert fault is not None
                await asyncio.sleep(fault.delay_s)
                await self._app(scope, receive, send)
            case "cut" | "silent":
                assert fault is not None
                try:
                    await self._app(scope, receive, _ending(send, fault))
                except _CutError:
                    if fault.kind == "silent":
                        await never()
            case _:
                await self._app(scope, receive, send)


class _CutError(Exception):
    pass


def _ending(send: Send, fault: Fault) -> Send:
    left = fault.after_bytes

    async def ending(message: Message) -> None:
        nonlocal left
        if message["type"] == "http.response.body":
            body = message.get("body", b"")
            if len(body) >= left:
                await send({**message, "body": body[:left], "more_body": True})
                raise _CutError
            left -= len(body)
        await send(message)

    return ending


async def _unheard(_message: Message) -> None:
    pass


async def _break(send: Send) -> None:
    """An answer shorter than it says: the server closes the connection."""
    headers = [(b"content-length", b"1000"), (b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"{", "more_body": True})


def _json(body: bytes) -> Mapping[str, Any] | None:
    import json  # noqa: PLC0415 - beside its one use

    found = json.loads(body)
    return found if isinstance(found, dict) else None


def _answer(exc: Refused) -> JSONResponse:
    content = {"error": {"code": exc.code, "message": str(exc)}}
    return JSONResponse(content, status_code=exc.status)


def _faulty(fault: Fault) -> JSONResponse:
    answer = _answer(Refused(fault.status, fault.code))
    if fault.body is not None:
        answer.body = fault.body.encode()
        answer.init_headers({"content-type": "text/html", **fault.headers})
    else:
        answer.init_headers({"content-type": "application/json", **fault.headers})
    return answer


def create_app(emulator: Emulator) -> ASGIApp:
    api = FastAPI(openapi_url=None)
    add_routes(api, lambda: emulator.world)

    @api.exception_handler(Refused)
    async def refused(_request: Request, exc: Refused) -> JSONResponse:
        return _answer(exc)

    return Gate(api, api, emulator)


@contextmanager
def run_vercel(
    *,
    internet: Sequence[Address] = (),
    binds: Sequence[Path] = (),
    files: Mapping[str, str] | None = None,
) -> Iterator[Emulator]:
    """The service, until the end of the block; then nothing of it is left. See `MachineImage`."""
    emulator = Emulator()
    with (
        tempfile.TemporaryDirectory(prefix="vercel-", dir=disks_directory()) as directory,
        socket.socket(proto=socket.IPPROTO_TCP) as listener,
    ):
        listener.bind(("127.0.0.1", 0))
        emulator.url = f"http://127.0.0.1:{listener.getsockname()[1]}/api"
        config = uvicorn.Config(
            create_app(emulator), lifespan="off", log_config=None, timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)

        async def serve() -> None:
            emulator.loop = asyncio.get_running_loop()
            async with open_task_group() as group:
                emulator.world = World(
                    Path(directory), group=group, internet=internet, binds=binds, files=files or {}
                )
                try:
                    await server.serve(sockets=[listener])
                finally:
                    await emulator.world.close()

        thread = threading.Thread(target=lambda: asyncio.run(serve()), name="vercel emulator")
        thread.start()
        try:
            _until_started(server, thread)
            yield emulator
        finally:
            server.should_exit = True
            thread.join(STOP_S)
            assert not thread.is_alive()


def _until_started(server: uvicorn.Server, thread: threading.Thread) -> None:
    waiting = threading.Event()
    for _ in range(int(START_S / 0.01)):
        if server.started or not thread.is_alive():
            break
        waiting.wait(0.01)
    assert server.started
