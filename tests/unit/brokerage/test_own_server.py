"""Orion's own MCP server, by the client of the protocol's own SDK, and by requests that no client makes."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import httpx2
import mcp
import pytest
from fastapi import FastAPI
from mcp.client.streamable_http import streamable_http_client

from app.approvals.questions import Question
from app.approvals.rules import Deed, DeedKind
from app.brokerage.mcp import McpBroker
from app.brokerage.registry import GrantRegistry
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
from tests.plain_http import NO_TLS

CALL = {"name": "ask_person", "arguments": {"text": "Which?", "otherwise": "none"}}


@dataclass
class People:
    """Answer as they are told to."""

    answer: str | Exception = "U1 answered: the second"
    asked: list[Question] = field(default_factory=list)

    async def ask_person(self, question: Question) -> str:
        self.asked.append(question)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def approve(self, deed: Deed, before: Before) -> None:
        raise AssertionError(f"{deed} waits for nothing, nor does {before}")

    async def state_of(self, kind: DeedKind) -> None:
        """It has asked for nothing."""


@dataclass
class World:
    url: str
    token: str
    people: People
    refused: list[ModelCall]

    @asynccontextmanager
    async def client(self) -> AsyncIterator[mcp.Client]:
        headers = {"authorization": f"Bearer {self.token}"}
        async with (
            httpx2.AsyncClient(headers=headers, trust_env=False) as http,
            mcp.Client(streamable_http_client(self.url, http_client=http)) as client,
        ):
            yield client

    async def post(self, body: object, method: str = "POST") -> httpx.Response:
        headers = {"authorization": f"Bearer {self.token}", "content-type": "application/json"}
        async with httpx.AsyncClient(verify=NO_TLS, trust_env=False) as http:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            return await http.request(method, self.url, content=content, headers=headers)


@asynccontextmanager
async def open_world(*, may_ask: bool = True) -> AsyncIterator[World]:
    async with httpx.AsyncClient(verify=NO_TLS) as http:
        registry = GrantRegistry(signing_key=b"k" * 32, clock=SystemClock())
        app = FastAPI()
        app.include_router(McpBroker(registry=registry, servers={}, http=http).router())
        people, refused = People(), list[ModelCall]()
        approvals = RunApprovals(
            approve=people.approve,
            covers=bool,
            state_of=people.state_of,
            max_wait_s=0,
            ask_person=people.ask_person,
        )
        if not may_ask:
            approvals = replace(approvals, ask_person=None)
        grant = ModelGrant(
            run_id=RunId("run_1"), models=("m",), expires_at=datetime.now(UTC) + timedelta(hours=1)
        )
        hooks = GrantHooks(on_call=refused.append, approvals=approvals)
        with registry.open_grant(grant, hooks) as token:
            async with serve(app) as url:
                yield World(f"{url}/broker/mcp/orion", token, people, refused)


async def test_a_client_asks_a_person() -> None:
    """The tool is there with what it takes, and gives back what was answered."""
    async with open_world() as world, world.client() as client:
        (tool,) = (await client.list_tools()).tools
        assert tool.name == "ask_person"
        assert tool.input_schema["required"] == ["text", "otherwise"]
        answer = await client.call_tool("ask_person", {"text": "Which?", "otherwise": "none"})
        assert "the second" in str(answer.content)
        assert not answer.is_error
        assert world.people.asked == [Question(text="Which?", otherwise="none")]
        with pytest.raises(mcp.MCPError, match="one tool, ask_person"):
            await client.call_tool("other", {})


@pytest.mark.parametrize(
    ("answer", "arguments", "words", "is_error"),
    [
        (StillWaitingError("call it again"), CALL["arguments"], "call it again", False),
        (NotApprovedError("the run is over"), CALL["arguments"], "the run is over", False),
        (OSError("gone"), CALL["arguments"], "nobody can be asked now", True),
        ("", {"text": "Which?"}, "otherwise must be a text", True),
        ("", [1], "must be an object", True),
    ],
)
async def test_why_there_is_no_answer_is_told_to_the_model(
    answer: str | Exception, arguments: object, words: str, is_error: bool
) -> None:
    async with open_world() as world:
        world.people.answer = answer
        params = {"name": "ask_person", "arguments": arguments}
        message = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}
        told = (await world.post(message)).json()
        assert told["id"] == 7
        assert words in told["result"]["content"][0]["text"]
        assert told["result"]["isError"] is is_error


async def test_who_may_not_ask_has_no_such_server() -> None:
    async with open_world(may_ask=False) as world:
        answer = await world.post({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
        assert answer.status_code == 404
        assert len(world.refused) == 1


async def test_versions() -> None:
    """One that is known is spoken; of others the newest that is known."""
    async with open_world() as world:
        for wanted, spoken in (
            ("2025-03-26", "2025-03-26"),
            ("1999-01-01", "2025-11-25"),
            (7, "2025-11-25"),
        ):
            params = {"protocolVersion": wanted}
            message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
            told = (await world.post(message)).json()
            assert told["result"]["protocolVersion"] == spoken


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ([{"jsonrpc": "2.0", "id": 1, "method": "ping"}] * 2, 400, -32600),
        ({"jsonrpc": "2.0", "id": 1}, 400, -32600),
        ({"jsonrpc": "2.0", "id": 1, "method": 7}, 400, -32600),
        ("text", 400, -32600),
        ({"jsonrpc": "2.0", "id": 1, "method": "resources/list"}, 200, -32601),
        ({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": [1]}, 200, -32602),
        ({"jsonrpc": "2.0", "method": "notifications/initialized"}, 202, None),
        ({"jsonrpc": "2.0", "id": 1, "method": "ping"}, 200, None),
    ],
)
async def test_requests_of_any_form_have_an_answer(
    body: Any, status: int, code: int | None
) -> None:
    async with open_world() as world:
        answer = await world.post(body)
        assert answer.status_code == status
        if code is not None:
            assert answer.json()["error"]["code"] == code
        assert world.people.asked == []


async def test_there_are_no_streams() -> None:
    async with open_world() as world:
        assert (await world.post(b"", "GET")).status_code == 405
