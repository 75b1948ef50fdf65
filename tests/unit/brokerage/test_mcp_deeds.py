"""What waits for a yes on the way to MCP servers: a whole call, as it is shown, and nothing beside it."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import httpx2
import mcp
import pytest
from mcp.client.streamable_http import streamable_http_client

from app.approvals.rules import Deed, DeedKind
from app.runs.testing import (
    Before,
    GrantHooks,
    NotApprovedError,
    RunApprovals,
    StillWaitingError,
)
from tests.plain_http import NO_TLS
from tests.unit.brokerage.mcp_world import World, open_world


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with open_world() as world:
        yield world


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
