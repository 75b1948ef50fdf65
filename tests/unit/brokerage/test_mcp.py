"""The way to the operator's MCP servers: a real server and a real client of the protocol's own SDK, with the broker between."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import httpx2
import mcp
import pytest
from mcp.client.streamable_http import streamable_http_client
from structlog.testing import capture_logs

from app.brokerage.mcp import (
    has_effect,
    is_start,
    read_messages,
)
from app.brokerage.registry import LOGGED_FORWARDS
from app.runs.testing import (
    GrantHooks,
)
from sandbox_runtime.task_group import open_task_group
from tests.plain_http import NO_TLS
from tests.unit.brokerage.mcp_world import World, open_world


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with open_world() as world:
        yield world


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
