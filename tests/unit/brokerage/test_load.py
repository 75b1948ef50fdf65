"""What one run may take of the broker, so that others can work: connections, memory, the event loop, cookies."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from structlog.testing import capture_logs
from typing_extensions import override

from app.brokerage.broker import ModelsBroker, Upstream, create_broker_app
from app.brokerage.http import MAX_VALUES, RunBounds, create_http_client, has_too_many_values
from app.brokerage.mcp import McpBroker, McpServer
from app.brokerage.registry import (
    FORGOTTEN_S,
    MAX_IN_FLIGHT,
    TOLD_REFUSALS,
    GrantRegistry,
    RequestKind,
)
from app.runs.testing import GrantHooks, ModelCall, ModelGrant, RunId, SystemClock
from app.web.hosting import serve
from sandbox_runtime.task_group import open_task_group
from tests.plain_http import NO_TLS

ASKED = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hello"}]}
MESSAGES = "/broker/anthropic/v1/messages"
MIB = 1024 * 1024


def grant(run_id: str, *, max_calls: int = 1000) -> ModelGrant:
    expires_at = datetime.now(UTC) + timedelta(minutes=5)
    return ModelGrant(
        run_id=RunId(run_id), models=("m",), expires_at=expires_at, max_calls=max_calls
    )


@dataclass
class Outside:
    """A model that thinks as long as it is told to, and an MCP server with endless streams and cookies."""

    released: asyncio.Event = field(default_factory=asyncio.Event)
    thinking: int = 0
    cookies: list[str] = field(default_factory=list)

    def app(self) -> FastAPI:
        app = FastAPI()
        app.add_api_route("/v1/messages", self.model, methods=["POST"])
        app.add_api_route("/mcp", self.mcp, methods=["GET", "POST"])
        return app

    async def model(self, request: Request) -> Response:
        if b"think" in await request.body():
            self.thinking += 1
            await self.released.wait()
        return Response('{"type":"message","usage":{"input_tokens":1,"output_tokens":1}}')

    async def mcp(self, request: Request) -> Response:
        self.cookies.append(request.headers.get("cookie", ""))
        if request.method == "GET":

            async def forever() -> AsyncIterator[bytes]:
                yield b": hi\n\n"
                await asyncio.sleep(60)

            return StreamingResponse(forever(), media_type="text/event-stream")
        answer = Response("{}")
        answer.set_cookie("session", "of another run")
        return answer


@dataclass
class World:
    registry: GrantRegistry
    outside: Outside
    http: httpx.AsyncClient
    """What agents would use."""
    calls: list[ModelCall] = field(default_factory=list)

    async def ask(self, token: str, content: str = "hello") -> httpx.Response:
        asked = ASKED | {"messages": [{"role": "user", "content": content}]}
        return await self.http.post(MESSAGES, json=asked, headers=_bearer(token))

    @asynccontextmanager
    async def asking(self, path: str, token: str, *lines: str) -> AsyncIterator[bytes]:
        """A request of which no more comes than these; the first of the answer's bytes, when there are any."""
        url = httpx.URL(str(self.http.base_url))
        reader, writer = await asyncio.open_connection(url.host, url.port)
        head = [f"POST {path} HTTP/1.1", "host: x", f"authorization: Bearer {token}", *lines]
        writer.write("\r\n".join([*head, "", ""]).encode())
        try:
            yield await reader.read(MIB)
        finally:
            writer.close()


def _bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with open_world() as world:
        yield world


class HandClock(SystemClock):
    """Goes on by hand alone."""

    def __init__(self) -> None:
        super().__init__()
        self.at = super().now()

    @override
    def now(self) -> datetime:
        return self.at


@asynccontextmanager
async def open_world(
    *, clock: SystemClock | None = None, bounds: RunBounds | None = None
) -> AsyncIterator[World]:
    outside = Outside()
    registry = GrantRegistry(
        signing_key=b"k" * 32, clock=clock or SystemClock(), bounds=bounds or RunBounds()
    )
    async with (
        serve(outside.app()) as url,
        create_http_client() as models,
        create_http_client() as tools,
    ):
        parts = (
            ModelsBroker(
                registry=registry,
                upstreams={"anthropic": Upstream(base_url=url, key_headers={"x-api-key": "k"})},
                http=models,
                clock=SystemClock(),
            ),
            McpBroker(
                registry=registry,
                servers={"a": McpServer(url=f"{url}/mcp", headers={})},
                http=tools,
            ),
        )
        router = APIRouter()
        for part in parts:
            router.include_router(part.router())
        limits = httpx.Limits(max_connections=None)
        async with (
            serve(create_broker_app(router)) as broker,
            httpx.AsyncClient(
                verify=NO_TLS, base_url=broker, trust_env=False, limits=limits
            ) as http,
        ):
            yield World(registry=registry, outside=outside, http=http)


async def _until(is_true: object) -> None:
    assert callable(is_true)
    async with asyncio.timeout(10):
        while not is_true():
            await asyncio.sleep(0.01)


async def test_a_run_has_so_many_requests_in_flight(world: World) -> None:
    """One more is a 429 that says so; another run is served; what has ended makes room, also where the client hung up."""
    most = MAX_IN_FLIGHT[RequestKind.MODEL]
    with (
        world.registry.open_grant(grant("run_1"), GrantHooks(on_call=world.calls.append)) as one,
        world.registry.open_grant(grant("run_2"), GrantHooks(on_call=world.calls.append)) as other,
    ):
        async with open_task_group() as group:
            asking = [group.create_task(world.ask(one, "think")) for _ in range(most)]
            await _until(lambda: world.outside.thinking == most)
            refused = await world.ask(one)
            assert refused.status_code == 429
            assert refused.json()["error"]["type"] == "rate_limit_error"
            assert f"{most} model calls in flight" in refused.json()["error"]["message"]
            assert (await world.ask(other)).status_code == 200
            asking.pop().cancel()
            await _until(lambda: len(world.calls) == 3)
            assert (await world.ask(one)).status_code == 200
            world.outside.released.set()
        assert [(await task).status_code for task in asking] == [200] * (most - 1)
        assert [(await world.ask(one)).status_code for _ in range(most + 1)] == [200] * (most + 1)


async def test_event_streams_of_one_run_take_no_connection_of_another(world: World) -> None:
    """Those of MCP servers are bounded for a run, and are none of the connections to models."""
    most = MAX_IN_FLIGHT[RequestKind.MCP]
    with (
        world.registry.open_grant(grant("run_1"), GrantHooks(on_call=world.calls.append)) as one,
        world.registry.open_grant(grant("run_2"), GrantHooks(on_call=world.calls.append)) as other,
    ):
        async with AsyncExitStack() as streams:

            async def listen(token: str) -> int:
                stream = world.http.stream("GET", "/broker/mcp/a", headers=_bearer(token))
                return (await streams.enter_async_context(stream)).status_code

            assert [await listen(one) for _ in range(most + 1)] == [200] * most + [429]
            assert [await listen(other) for _ in range(most)] == [200] * most
            assert (await world.ask(other)).status_code == 200
        async with asyncio.timeout(10):
            stream = world.http.stream("GET", "/broker/mcp/a", headers=_bearer(one))
            while True:
                async with stream as answer:
                    if answer.status_code == 200:
                        break
                stream = world.http.stream("GET", "/broker/mcp/a", headers=_bearer(one))


async def test_no_cookie_of_one_run_is_sent_for_another(world: World) -> None:
    """A server's session is not shared by people who know nothing of each other."""
    for run_id in ("run_1", "run_2"):
        with world.registry.open_grant(
            grant(run_id), GrantHooks(on_call=world.calls.append)
        ) as token:
            answer = await world.http.post(
                "/broker/mcp/a", json={"method": "ping"}, headers=_bearer(token)
            )
            assert answer.status_code == 200
    world.http.cookies.clear()
    assert world.outside.cookies == ["", ""]


async def test_a_body_that_is_announced_too_large_is_not_read(world: World) -> None:
    """Refusal before its first byte, and before its end where nothing was announced."""
    with world.registry.open_grant(grant("run_1"), GrantHooks(on_call=world.calls.append)) as token:
        too_large = f"content-length: {64 * MIB}"
        async with asyncio.timeout(10), world.asking(MESSAGES, token, too_large) as answer:
            assert answer.startswith(b"HTTP/1.1 413")


async def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    """Nor does it keep its place."""
    async with AsyncExitStack() as stack:
        world = await stack.enter_async_context(open_world(bounds=RunBounds(body_timeout_s=0.1)))
        token = stack.enter_context(
            world.registry.open_grant(grant("run_1"), GrantHooks(on_call=world.calls.append))
        )
        for _ in range(MAX_IN_FLIGHT[RequestKind.MODEL] + 1):
            async with (
                asyncio.timeout(10),
                world.asking(MESSAGES, token, "content-length: 9") as said,
            ):
                assert said.startswith(b"HTTP/1.1 408")


async def test_bodies_in_flight_are_bounded_for_a_run() -> None:
    """All together; what has been answered is not held any more."""
    async with AsyncExitStack() as stack:
        world = await stack.enter_async_context(
            open_world(bounds=RunBounds(max_held_bytes=100_000))
        )
        token = stack.enter_context(
            world.registry.open_grant(grant("run_1"), GrantHooks(on_call=world.calls.append))
        )
        for _ in range(3):
            assert (await world.ask(token, "x" * 60_000)).status_code == 200
        async with open_task_group() as group:
            asking = group.create_task(world.ask(token, "think" + "x" * 60_000))
            await _until(lambda: world.outside.thinking == 1)
            refused = await world.ask(token, "x" * 60_000)
            world.outside.released.set()
        assert asking.result().status_code == 200
    assert refused.status_code == 429
    assert "100000 bytes in flight" in refused.json()["error"]["message"]


async def test_a_body_of_a_million_values_is_refused_at_once(world: World) -> None:
    """To parse it would hold up everybody's runs."""
    body = b'{"model":"m","max_tokens":9,"messages":[' + b",".join([b"[]"] * MIB) + b"]}"
    with world.registry.open_grant(grant("run_1"), GrantHooks(on_call=world.calls.append)) as token:
        answer = await world.http.post(MESSAGES, content=body, headers=_bearer(token))
        assert answer.status_code == 400
        assert f"more than {MAX_VALUES} values" in answer.json()["error"]["message"]
        answer = await world.http.post("/broker/mcp/a", content=body, headers=_bearer(token))
        assert answer.status_code == 400


def test_what_stands_in_strings_is_no_value() -> None:
    """Source code has as many brackets and quotes as it likes."""
    code = 'if (a[1] == "\\\\x\\"") { return {b: [1, 2, 3]}; }\n' * 50_000
    assert not has_too_many_values(json.dumps({"content": [code, "\\", code, '"', code]}).encode())
    assert has_too_many_values(json.dumps({"content": [code, ["", "{"] * MAX_VALUES]}).encode())
    assert has_too_many_values(json.dumps({"content": [code, [[]] * MAX_VALUES]}).encode())
    assert has_too_many_values(b'""' * 5 * MAX_VALUES + b"," * 2 * MAX_VALUES)


async def test_refused_requests_count(world: World) -> None:
    """To read one costs something, too: a loop in the sandbox ends."""
    with world.registry.open_grant(
        grant("run_1", max_calls=2), GrantHooks(on_call=world.calls.append)
    ) as token:
        answers = [
            await world.http.post(MESSAGES, content=b"{", headers=_bearer(token)) for _ in range(3)
        ]
    assert [answer.status_code for answer in answers] == [400, 400, 403]
    assert "has used its 2 model calls" in answers[-1].text


async def test_refusals_do_not_fill_the_log() -> None:
    """Of a run so many are told, of whom nobody knows so many in a while; the last one says that it is."""
    clock = HandClock()
    async with AsyncExitStack() as stack:
        world = await stack.enter_async_context(open_world(clock=clock))
        logged = stack.enter_context(capture_logs())
        one, other = (
            stack.enter_context(
                world.registry.open_grant(
                    grant(run_id, max_calls=0), GrantHooks(on_call=world.calls.append)
                )
            )
            for run_id in ("run_1", "run_2")
        )
        for token in [one, "nobody's"] * (TOLD_REFUSALS + 5) + [other]:
            assert (await world.ask(token)).status_code in (401, 403)
        clock.at += timedelta(seconds=FORGOTTEN_S)
        assert (await world.ask("nobody's")).status_code == 401
    told = [(line["run_id"], line["is_last_told"]) for line in logged]
    assert told.count(("run_1", False)) == told.count(("", False)) - 1 == TOLD_REFUSALS - 1
    assert told.count(("run_1", True)) == told.count(("", True)) == 1
    assert told[-2:] == [("run_2", False), ("", False)]
    assert len(world.calls) == TOLD_REFUSALS + 1
