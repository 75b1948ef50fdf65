"""The way to the operator's MCP servers: a real server and a real client of the protocol's own SDK, with the broker between."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import httpx2
import mcp
import pytest
from fastapi import APIRouter, FastAPI, Request, Response
from mcp.client.streamable_http import streamable_http_client
from mcp.server.mcpserver import MCPServer
from starlette.types import ASGIApp, Receive, Scope, Send
from structlog.testing import capture_logs

from app.approvals.rules import Deed, DeedKind
from app.brokerage.mcp import (
    START_TIMEOUT_S,
    McpBroker,
    McpServer,
    has_effect,
    is_start,
    read_messages,
)
from app.brokerage.registry import LOGGED_FORWARDS, GrantRegistry
from app.runs.testing import (
    Before,
    GrantHooks,
    ModelCall,
    ModelGrant,
    NotApprovedError,
    RunApprovals,
    RunId,
    StillWaitingError,
    SystemClock,
)
from app.web.hosting import serve
from sandbox_runtime.task_group import open_task_group
from tests.plain_http import NO_TLS

CANARY = "canary-of-the-operator"


class Watched:
    """Lets in who has the operator's key, and keeps what it saw."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.headers: list[dict[str, str]] = []
        self.pairs: list[tuple[str, str]] = []
        """Of the last one."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = {name.decode(): value.decode() for name, value in scope["headers"]}
            self.headers.append(headers)
            self.pairs = [(name.decode(), value.decode()) for name, value in scope["headers"]]
            assert headers.get("authorization") == f"Bearer {CANARY}"
        await self.app(scope, receive, send)


@dataclass(kw_only=True)
class Silence:
    """A server that takes requests and says nothing."""

    url: str
    came: asyncio.Event = field(default_factory=asyncio.Event)
    went: asyncio.Event = field(default_factory=asyncio.Event)


@asynccontextmanager
async def open_silence() -> AsyncIterator[Silence]:
    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        silence.came.set()
        with suppress(OSError):
            await reader.read()
        silence.went.set()
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    silence = Silence(url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    async with server:
        yield silence


@dataclass(kw_only=True)
class World:
    registry: GrantRegistry
    url: str
    """Of the broker."""
    watched: Watched
    log: list[str]
    """What happened outside, in order."""
    silent: Silence
    calls: list[ModelCall] = field(default_factory=list)
    is_record_sick: bool = False

    async def on_effect(self) -> None:
        if self.is_record_sick:
            raise OSError("the disk is full")
        self.log.append("noted")

    @property
    def grant(self) -> ModelGrant:
        expires_at = datetime.now(UTC) + timedelta(minutes=5)
        return ModelGrant(run_id=RunId("run_1"), models=("m",), expires_at=expires_at)

    async def post(
        self,
        name: str,
        token: str,
        *,
        headers: Mapping[str, str | bytes] | None = None,
        **message: Any,
    ) -> httpx.Response:
        own = {"authorization": f"Bearer {token}", "accept": "application/json"}
        pairs = [(name.encode(), value.encode()) for name, value in own.items()]
        pairs += [
            (name.encode(), value if isinstance(value, bytes) else value.encode())
            for name, value in (headers or {}).items()
        ]
        async with httpx.AsyncClient(verify=NO_TLS, trust_env=False) as http:
            return await http.post(
                f"{self.url}/broker/mcp/{name}",
                json={"jsonrpc": "2.0", "id": 1, **message},
                headers=pairs,
            )


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with open_world() as world:
        yield world


@asynccontextmanager
async def open_world(*, start_timeout_s: float = START_TIMEOUT_S) -> AsyncIterator[World]:
    log: list[str] = []
    server = MCPServer("notes")

    @server.tool()
    def note(text: str) -> str:
        """Keep a note."""
        log.append(f"note {text}")
        return f"kept {text}"

    watched = Watched(server.streamable_http_app())
    async with (
        serve(watched) as server_url,
        serve(_packed()) as packed_url,
        open_silence() as silent,
        httpx.AsyncClient(verify=NO_TLS, trust_env=False) as http,
    ):
        registry = GrantRegistry(signing_key=b"k" * 32, clock=SystemClock())
        headers = {"Authorization": f"Bearer {CANARY}"}
        broker = McpBroker(
            registry=registry,
            servers={
                "notes": McpServer(url=f"{server_url}/mcp", headers=headers),
                "gone": McpServer(url="http://127.0.0.1:9/mcp", headers=headers),
                "tenant": McpServer(
                    url=f"{server_url}/mcp", headers=headers | {"Mcp-Tenant": "the operator's"}
                ),
                "silent": McpServer(url=f"{silent.url}/mcp", headers=headers),
                "packed": McpServer(url=f"{packed_url}/mcp", headers=headers),
            },
            http=http,
            start_timeout_s=start_timeout_s,
        )
        async with serve(_app(broker.router())) as url:
            yield World(registry=registry, url=url, watched=watched, log=log, silent=silent)


def _packed() -> FastAPI:
    """A server that tells what it was sent, and compresses that, whatever it is asked."""
    app = FastAPI()

    @app.post("/mcp")
    async def answer(request: Request) -> Response:
        seen = [request.headers["content-type"], (await request.body()).decode()]
        said = json.dumps({"result": seen}).encode()
        return Response(gzip.compress(said), headers={"content-encoding": "gzip"})

    return app


def _app(router: APIRouter) -> FastAPI:
    app = FastAPI(openapi_url=None)
    app.include_router(router)
    return app


async def test_a_tool_is_called_with_the_key_added(world: World) -> None:
    """The SDK's client gets through; the run's token goes no further; the effect is noted once, before it happens."""
    with world.registry.open_grant(
        world.grant, GrantHooks(on_call=world.calls.append, on_effect=world.on_effect)
    ) as token:
        async with (
            httpx2.AsyncClient(
                headers={"authorization": f"Bearer {token}"}, trust_env=False
            ) as http,
            mcp.Client(
                streamable_http_client(f"{world.url}/broker/mcp/notes", http_client=http)
            ) as client,
        ):
            assert [tool.name for tool in (await client.list_tools()).tools] == ["note"]
            assert world.log == []
            await client.call_tool("note", {"text": "one"})
            await client.call_tool("note", {"text": "two"})
    assert world.log == ["noted", "note one", "note two"]
    assert token not in json.dumps(world.watched.headers)


async def test_a_server_that_compresses_unasked(world: World) -> None:
    """Its answer comes through as plain bytes."""
    with world.registry.open_grant(world.grant, GrantHooks(on_call=world.calls.append)) as token:
        assert "ping" in (await world.post("packed", token, method="ping")).json()["result"][1]


@pytest.mark.parametrize(
    ("body", "came"),
    [
        (b'{"method":"tools/call","method":"ping"}', '{"method": "ping"}'),
        (
            '{"method":"ping","id":"\N{SNOWMAN}"}'.encode("utf-16"),
            '{"method": "ping", "id": "\\u2603"}',
        ),
        (b"{", None),
        (b"[" * 100_000, None),
    ],
)
async def test_a_server_reads_what_the_broker_read(
    world: World, body: bytes, came: str | None
) -> None:
    """Two readers of one text may read it differently: it is written anew, or refused."""
    with world.registry.open_grant(world.grant, GrantHooks(on_call=world.calls.append)) as token:
        async with httpx.AsyncClient(verify=NO_TLS, trust_env=False) as http:
            answer = await http.post(
                f"{world.url}/broker/mcp/packed",
                content=body,
                headers={
                    "authorization": f"Bearer {token}",
                    "content-type": "application/json; charset=utf-7",
                },
            )
    if came is None:
        assert (answer.status_code, "no JSON" in answer.text) == (400, True)
    else:
        assert answer.json()["result"] == ["application/json", came]


@pytest.mark.parametrize(
    "message",
    [
        {"method": "ping", "Method": "tools/call"},
        {"result": {}, "METHOD": "tools/call"},
        {"method": "tools/call", "params": {"name": "read"}, "Params": {"name": "note"}},
        {"method": "tools/call", "params": {"name": "read", "Name": "note"}},
        {"method": "tools/call", "params": {"name": "read", "argument\u017f": {}}},
        [{"method": "ping"}, {"method": "ping", "param\u017f": {}}],
    ],
)
async def test_a_key_that_some_servers_take_for_another_is_refused(
    world: World, message: object
) -> None:
    """What was judged would not be what is done."""
    with world.registry.open_grant(world.grant, GrantHooks(on_call=world.calls.append)) as token:
        async with httpx.AsyncClient(verify=NO_TLS, trust_env=False) as http:
            answer = await http.post(
                f"{world.url}/broker/mcp/notes",
                content=json.dumps(message),
                headers={"authorization": f"Bearer {token}"},
            )
    assert (answer.status_code, "no key of the protocol" in answer.text) == (400, True)
    assert world.log == []


@pytest.mark.parametrize(
    ("method", "told"), [("GET", None), ("DELETE", None), ("POST", "ping"), ("POST", "")]
)
async def test_what_a_careless_server_would_take_for_another_message_is_refused(
    world: World, method: str, told: str | None
) -> None:
    """A call in the body of a request that has none, or under another method's name."""
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "read"}}
    with world.registry.open_grant(world.grant, GrantHooks(on_call=world.calls.append)) as token:
        async with httpx.AsyncClient(verify=NO_TLS, trust_env=False) as http:
            answer = await http.request(
                method,
                f"{world.url}/broker/mcp/notes",
                json=call,
                headers={"authorization": f"Bearer {token}"}
                | ({} if told is None else {"Mcp-Method": told}),
            )
    assert answer.status_code == 400
    assert world.log == []


async def test_nothing_is_changed_that_cannot_be_noted(world: World) -> None:
    """With a sick record, or for whoever keeps none, tools are refused; reading is not."""
    world.is_record_sick = True
    call: dict[str, Any] = {
        "method": "tools/call",
        "params": {"name": "note", "arguments": {"text": "x"}},
    }
    with world.registry.open_grant(
        world.grant, GrantHooks(on_call=world.calls.append, on_effect=world.on_effect)
    ) as token:
        assert (await world.post("notes", token, **call)).status_code == 503
        assert (await world.post("notes", token, method="ping")).status_code != 503
    with world.registry.open_grant(world.grant, GrantHooks(on_call=world.calls.append)) as token:
        assert (await world.post("notes", token, **call)).status_code == 503
    assert world.log == []


async def test_what_is_forwarded_does_not_fill_the_log(world: World) -> None:
    """The first requests of a run have a line each; of the others their number is told at its end."""
    with capture_logs() as logged:
        with world.registry.open_grant(
            world.grant, GrantHooks(on_call=world.calls.append)
        ) as token:
            for _ in range(LOGGED_FORWARDS + 3):
                await world.post("notes", token, method="ping")
        with world.registry.open_grant(
            world.grant, GrantHooks(on_call=world.calls.append)
        ) as token:
            await world.post("notes", token, method="ping")
    told = [line for line in logged if line["event"] == "broker.forwarded"]
    assert [line.get("left_out") for line in told[LOGGED_FORWARDS:]] == [3, None]
    assert {line["run_id"] for line in told} == {"run_1"}


async def test_who_is_refused(world: World) -> None:
    """A server that nobody declared, one that is down, no token, the token of a run that is over: each has its status."""
    with world.registry.open_grant(
        world.grant, GrantHooks(on_call=world.calls.append, on_effect=world.on_effect)
    ) as token:
        assert (await world.post("other", token, method="ping")).status_code == 404
        assert (await world.post("gone", token, method="ping")).status_code == 502
        assert (await world.post("notes", "none", method="ping")).status_code == 401
    assert (await world.post("notes", token, method="ping")).status_code == 401
    assert [call.status for call in world.calls] == [404, 502]
    assert not world.watched.headers


async def test_the_operators_header_takes_the_place_of_the_sandboxs(world: World) -> None:
    """Whatever the case of its name."""
    own: dict[str, str | bytes] = {"mcp-tenant": "another's", "mcp-session-id": "s1"}
    with world.registry.open_grant(
        world.grant, GrantHooks(on_call=world.calls.append, on_effect=world.on_effect)
    ) as token:
        await world.post("tenant", token, headers=own, method="ping")
    seen = world.watched.pairs
    assert [value for name, value in seen if name == "mcp-tenant"] == ["the operator's"]
    assert ("mcp-session-id", "s1") in seen


async def test_odd_text_is_a_400(world: World) -> None:
    """What no header can have is refused; a name that nobody declared is told shortened."""
    with world.registry.open_grant(
        world.grant, GrantHooks(on_call=world.calls.append, on_effect=world.on_effect)
    ) as token:
        odd: dict[str, str | bytes] = {"mcp-session-id": b"caf\xe9"}
        answer = await world.post("notes", token, headers=odd, method="ping")
        assert (answer.status_code, "not ASCII" in answer.text) == (400, True)
        answer = await world.post("x" * 3000, token, method="ping")
        assert (answer.status_code, len(answer.text) < 300) == (404, True)
    assert not world.watched.headers


async def test_a_server_that_says_nothing() -> None:
    """What an agent asks at its start is given up soon; what it asks later as soon as it does not wait any more."""
    async with AsyncExitStack() as stack:
        world = await stack.enter_async_context(open_world(start_timeout_s=0.2))
        grant = world.registry.open_grant(
            world.grant, GrantHooks(on_call=world.calls.append, on_effect=world.on_effect)
        )
        token = stack.enter_context(grant)
        assert (await world.post("silent", token, method="initialize")).status_code == 502
        world.silent.came.clear()
        world.silent.went.clear()
        async with asyncio.timeout(10), open_task_group() as group:
            asking = group.create_task(world.post("silent", token, method="resources/read"))
            await world.silent.came.wait()
            asking.cancel()
            await world.silent.went.wait()


@pytest.mark.parametrize(
    ("message", "is_effect"),
    [
        ({"method": "tools/list"}, False),
        ({"method": "notifications/initialized"}, False),
        ({"result": {}}, False),
        ({"method": "tools/call"}, True),
        ({"method": "something/new"}, True),
        ([{"method": "ping"}, {"method": "tools/call"}], True),
        ([{"method": "ping"}, {"method": "tools/list"}], False),
        ({"method": 7}, True),
        ("x", True),
    ],
)
def test_what_counts_as_an_effect(message: object, is_effect: bool) -> None:
    """Only what the protocol knows to read is none."""
    assert has_effect(read_messages(json.dumps(message).encode())) is is_effect


@pytest.mark.parametrize(
    ("message", "is_it"),
    [
        ({"method": "initialize"}, True),
        ([{"method": "x"}, {"method": "tools/list"}], True),
        ({"method": "tools/call"}, False),
        ({"method": []}, False),
        (7, False),
    ],
)
def test_what_is_asked_at_the_start(message: object, is_it: bool) -> None:
    """Whatever form it has."""
    assert is_start(read_messages(json.dumps(message).encode())) is is_it


def test_what_cannot_be_read_counts_as_an_effect() -> None:
    """Garbage, and a nesting that no parser follows."""
    assert has_effect(read_messages(b"{"))
    assert has_effect(read_messages(b"[" * 100_000))


@dataclass
class Asked:
    """Answers what a run asks for as it is told to, and keeps that."""

    answer: Exception | None = None
    deeds: list[Deed] = field(default_factory=list)

    async def approve(self, deed: Deed, before: Before) -> None:
        self.deeds.append(deed)
        if self.answer is not None:
            raise self.answer
        assert await before()

    async def state_of(self, kind: DeedKind) -> None:
        """It has asked for nothing."""

    @property
    def approvals(self) -> RunApprovals:
        return RunApprovals(approve=self.approve, covers=bool, state_of=self.state_of, max_wait_s=0)


def call_of(tool: str = "note", **arguments: Any) -> dict[str, Any]:
    return {"method": "tools/call", "params": {"name": tool, "arguments": arguments}}


@contextmanager
def asking(world: World, asked: Asked) -> Iterator[str]:
    hooks = GrantHooks(
        on_call=world.calls.append, on_effect=world.on_effect, approvals=asked.approvals
    )
    with world.registry.open_grant(world.grant, hooks) as token:
        yield token


async def test_a_call_waits_for_a_yes(world: World) -> None:
    """With all that makes it this call; reading is not asked for; the effect is noted by whoever says yes, before it happens."""
    asked = Asked()
    with asking(world, asked) as token:
        async with (
            httpx2.AsyncClient(
                headers={"authorization": f"Bearer {token}"}, trust_env=False
            ) as http,
            mcp.Client(
                streamable_http_client(f"{world.url}/broker/mcp/notes", http_client=http)
            ) as client,
        ):
            await client.list_tools()
            assert asked.deeds == []
            await client.call_tool("note", {"text": "one"})
    (deed,) = asked.deeds
    assert (deed.kind, deed.target, deed.arguments) == ("tool", "notes.note", {"text": "one"})
    assert world.log == ["noted", "note one"]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (StillWaitingError("waiting for a person"), "waiting for a person"),
        (NotApprovedError("it was denied by U1"), "denied by U1"),
        (OSError("gone"), "cannot be looked up"),
    ],
)
async def test_without_a_yes_nothing_is_done(world: World, answer: Exception, words: str) -> None:
    """The model reads why, as the answer of its tool; the SDK's client takes it for one."""
    with asking(world, Asked(answer)) as token:
        async with (
            httpx2.AsyncClient(
                headers={"authorization": f"Bearer {token}"}, trust_env=False
            ) as http,
            mcp.Client(
                streamable_http_client(f"{world.url}/broker/mcp/notes", http_client=http)
            ) as client,
        ):
            told = await client.call_tool("note", {"text": "one"})
            assert told.is_error
            assert words in str(told.content)
    assert world.log == []
    refused = [call.status for call in world.calls]
    assert refused == ([] if isinstance(answer, StillWaitingError) else [403])


async def test_other_methods_are_asked_for_too(world: World) -> None:
    """By their names; several calls at once are refused, as a yes is for one."""
    asked = Asked(NotApprovedError("no"))
    with asking(world, asked) as token:
        answer = await world.post("notes", token, method="tasks/cancel", params={"taskId": "7"})
        assert (answer.status_code, "Not done" in answer.text) == (200, True)
        own = {"authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(verify=NO_TLS, trust_env=False) as http:
            batch = [{"jsonrpc": "2.0", "id": 1, **call_of(text="x")}] * 2
            answer = await http.post(f"{world.url}/broker/mcp/notes", json=batch, headers=own)
            assert (answer.status_code, "one call at a time" in answer.text) == (400, True)
    (deed,) = asked.deeds
    message = {"method": "tasks/cancel", "params": {"taskId": "7"}}
    assert (deed.target, deed.beside) == ("notes.tasks/cancel", {"message": message})
    assert world.log == []


async def test_what_is_not_an_argument_is_part_of_it_too(world: World) -> None:
    """But for what is only about progress: a changed payload is another deed."""
    asked = Asked(NotApprovedError("no"))
    with asking(world, asked) as token:
        others: list[dict[str, Any]] = [{"_meta": {"n": 1}}, {"_meta": {}}, {"task": {"ttl": 9}}]
        for more in others:
            call = call_of(text="x")
            call["params"] |= more
            await world.post("notes", token, **call)
        await world.post(
            "notes", token, method="tools/call", params={"name": "note", "arguments": [1]}
        )
    first, second, third, odd = asked.deeds
    assert first.digest == second.digest
    assert (third.arguments, third.beside) == ({"text": "x"}, {"params": {"task": {"ttl": 9}}})
    assert (odd.arguments, odd.beside) == ({}, {"params": {"arguments": [1]}})
    assert len({deed.digest for deed in asked.deeds}) == 3


async def test_what_nobody_is_shown_is_not_passed_on(world: World) -> None:
    """Neither keys that the protocol does not know, nor what a client says beside a call that is not the protocol's own."""
    meta = {"progressToken": 3, "io.modelcontextprotocol/x": "y", "as_user": "admin"}
    call = call_of(text="x")
    call["params"] |= {"_meta": meta}
    with asking(world, Asked()) as token:
        answer = await world.post("packed", token, **call, extra={"delete": True})
    seen = json.loads(answer.json()["result"][1])
    assert seen["params"]["_meta"] == {"progressToken": 3, "io.modelcontextprotocol/x": "y"}
    assert "extra" not in seen


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        ("Mcp-Name", "note", 200),
        ("Mcp-Name", "delete", 400),
        ("Mcp-Param-Text", "x", 200),
        ("Mcp-Param-Text", "=?base64?eA==?=", 200),
        ("Mcp-Param-Text", "=?base64?eQ==?=", 400),
        ("Mcp-Param-Text", "=?base64?e?=", 400),
        ("Mcp-Param-Team", "ops", 400),
    ],
)
async def test_a_header_says_what_the_call_says(
    world: World, name: str, value: str, status: int
) -> None:
    """Servers may go by either."""
    with asking(world, Asked()) as token:
        headers = {"authorization": f"Bearer {token}", name: value}
        async with httpx.AsyncClient(verify=NO_TLS, trust_env=False) as http:
            body = {"jsonrpc": "2.0", "id": 1, **call_of(text="x")}
            answer = await http.post(f"{world.url}/broker/mcp/packed", json=body, headers=headers)
    assert answer.status_code == status
