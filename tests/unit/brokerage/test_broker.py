"""The broker over its real unix socket, in front of the offline model."""

import json
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.brokerage.broker import ModelsBroker, Upstream, create_broker_app
from app.brokerage.http import MAX_REQUEST_BYTES
from app.brokerage.registry import (
    GrantRegistry,
    InvalidTokenError,
    create_token,
    load_signing_key,
    read_token,
)
from app.brokerage.rules import PROTOCOLS, Endpoint
from app.brokerage.usage import UsageReader
from app.playground.model.server import ModelPace, create_model_app
from app.runs.testing import BudgetRefusal, GrantHooks, ModelCall, ModelGrant, RunId, SystemClock
from app.web.hosting import serve
from tests.plain_http import NO_TLS

KEY = b"k" * 32
CANARY = "sk-ant-canary-0123456789abcdef"
MODEL = "claude-sonnet-5-5"


def grant(*, models: tuple[str, ...] = (MODEL,), minutes: float = 5) -> ModelGrant:
    return ModelGrant(
        run_id=RunId("run_1"),
        models=models,
        expires_at=datetime.now(UTC) + timedelta(minutes=minutes),
    )


_USER = {"role": "user", "content": "hello"}


def _offers(definition: dict[str, Any]) -> dict[str, Any]:
    """A message that adds a tool in the middle of the conversation (beta mid-conversation-tool-changes-2026-07-01)."""
    tool = {"type": "tool_definition", "definition": definition}
    return {"role": "system", "content": [{"type": "tool_addition", "tool": tool}]}


def _nested(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


def _shows(source: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "image", "source": source}]}


@dataclass
class World:
    registry: GrantRegistry
    inside: httpx.AsyncClient
    """What an agent would use."""
    model: httpx.AsyncClient
    calls: list[ModelCall]

    async def ask(
        self, token: str, *, model: str = MODEL, text: str = "hello", **fields: Any
    ) -> httpx.Response:
        body = {"model": model, "max_tokens": 100, "messages": [{"role": "user", "content": text}]}
        headers = {"authorization": f"Bearer {token}", "anthropic-version": "2026-10-21"}
        return await self.inside.post(
            "/broker/anthropic/v1/messages", content=json.dumps(body | fields), headers=headers
        )


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    socket_path = tmp_path / "broker.sock"
    async with (
        serve(create_model_app(pace=ModelPace(word_s=0))) as model_url,
        httpx.AsyncClient(verify=NO_TLS, trust_env=False) as http,
        httpx.AsyncClient(verify=NO_TLS, base_url=model_url, trust_env=False) as model,
    ):
        registry = GrantRegistry(signing_key=KEY, clock=SystemClock())
        broker = ModelsBroker(
            registry=registry,
            upstreams={
                "anthropic": Upstream(base_url=model_url, key_headers={"x-api-key": CANARY})
            },
            http=http,
            clock=SystemClock(),
        )
        transport = httpx.AsyncHTTPTransport(verify=NO_TLS, uds=str(socket_path))
        async with (
            serve(create_broker_app(broker.router()), uds=socket_path),
            httpx.AsyncClient(transport=transport, base_url="http://broker") as inside,
        ):
            yield World(registry=registry, inside=inside, model=model, calls=[])


async def test_a_streamed_call_passes_with_the_key_added(world: World) -> None:
    """The agent's token goes no further, the provider gets the key, the stream comes through, usage is counted."""
    with world.registry.open_grant(grant(), GrantHooks(on_call=world.calls.append)) as token:
        answer = await world.ask(token, stream=True)
    assert answer.status_code == 200
    assert "event: message_stop" in answer.text
    seen = (await world.model.get("/requests")).json()[-1]["headers"]
    assert seen["x-api-key"] == CANARY
    assert token not in json.dumps(seen)
    assert CANARY not in answer.text
    call = world.calls[0]
    assert (call.model, call.status, call.error) == (MODEL, 200, "")
    assert call.usage.output_tokens > 0
    assert call.started_at <= (call.first_token_at or call.started_at) <= call.ended_at


async def test_a_plain_call_is_counted_too(world: World) -> None:
    """Usage is read from an answer that is not streamed."""
    with world.registry.open_grant(grant(), GrantHooks(on_call=world.calls.append)) as token:
        answer = await world.ask(token)
    assert answer.json()["usage"]["output_tokens"] == world.calls[0].usage.output_tokens > 0


async def test_a_refusal_of_the_runs_owner_keeps_a_call_from_the_model(world: World) -> None:
    """IncomingRequest before each call: once it says no, the model is asked no more, and the agent is told why in its protocol."""
    replies = [
        None,
        BudgetRefusal(reason="wait", may_pass=True),
        BudgetRefusal(reason="the budget is used up"),
    ]
    told: list[tuple[str, int]] = []

    def refusal(model: str, asked_tokens: int) -> BudgetRefusal | None:
        told.append((model, asked_tokens))
        return replies.pop(0)

    with world.registry.open_grant(
        grant(), GrantHooks(on_call=world.calls.append, refusal=refusal)
    ) as token:
        assert (await world.ask(token)).status_code == 200
        ((model, asked_tokens),) = told
        assert model == world.calls[0].model
        assert 10 < asked_tokens < 10_000
        answer = await world.ask(token)
        assert (answer.status_code, answer.json()["error"]["type"]) == (429, "rate_limit_error")
        asked = len((await world.model.get("/requests")).json())
        answer = await world.ask(token)
    assert answer.status_code == 403
    assert answer.json()["error"]["message"] == "the budget is used up"
    assert len((await world.model.get("/requests")).json()) == asked
    assert [call.is_refused for call in world.calls] == [False, True, True]


async def test_provider_errors_come_through_untouched(world: World) -> None:
    """Status and error type are the provider's own, so every SDK reacts as it should."""
    with world.registry.open_grant(grant(), GrantHooks(on_call=world.calls.append)) as token:
        answer = await world.ask(token, text="!529")
    assert answer.status_code == 529
    assert answer.json()["error"]["type"] == "overloaded_error"
    assert (world.calls[0].status, world.calls[0].error) == (529, "overloaded_error")


@pytest.mark.parametrize(
    ("model", "status"),
    [(MODEL, 200), ("claude-opus-5-5", 403), ("", 403), ("claude-sonnet-5-5 ", 403)],
)
async def test_only_granted_models(world: World, model: str, status: int) -> None:
    """A run may use its own models and no other."""
    with world.registry.open_grant(grant(), GrantHooks(on_call=world.calls.append)) as token:
        assert (await world.ask(token, model=model)).status_code == status


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"max_tokens": 8192}, 200),
        ({"max_tokens": 8193}, 403),
        ({"max_tokens": "9"}, 403),
        ({"mcp_servers": [{"type": "url", "url": "https://elsewhere.example"}]}, 403),
        ({"tools": [{"type": "web_fetch_20250910", "name": "web_fetch"}]}, 403),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, 403),
        ({"tools": [{"name": "shell", "input_schema": {"type": "object"}}]}, 200),
        ({"fallbacks": [{"model": "claude-opus-5-5"}]}, 403),
        ({"container": {"skills": []}}, 403),
        ({"something_new": None}, 403),
        ({"metadata": _nested(400)}, 200),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}, 200),
        ({"messages": [{"role": "user", "content": "hello", "model": "claude-opus-5-5"}]}, 403),
        ({"messages": [_USER, _offers({"type": "web_search_20250305"})]}, 403),
        ({"messages": [_USER, _offers({"name": "shell", "input_schema": {}})]}, 200),
        ({"messages": [_shows({"type": "file", "file_id": "file_1"})]}, 403),
        (
            {"messages": [_shows({"type": "base64", "media_type": "image/png", "data": "AA=="})]},
            200,
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "image", "source": {"type": "url", "url": "https://e.example"}}
                        ],
                    }
                ]
            },
            403,
        ),
    ],
)
async def test_nothing_reaches_the_network_through_the_model(
    world: World, fields: dict[str, Any], status: int
) -> None:
    """Server-side tools, remote servers and content by URL are refused, and an answer is no longer than allowed."""
    with world.registry.open_grant(grant(), GrantHooks(on_call=world.calls.append)) as token:
        assert (await world.ask(token, **fields)).status_code == status


async def test_the_model_that_is_checked_is_the_model_that_is_asked(world: World) -> None:
    """A key given twice is passed on once, so that no reader can find another model in it."""
    body = (
        b'{"model": "claude-opus-5-5", "model": "claude-sonnet-5-5", "max_tokens": 9,'
        b' "messages": [{"role": "user", "content": "hello"}]}'
    )
    with world.registry.open_grant(grant(), GrantHooks(on_call=world.calls.append)) as token:
        headers = {"x-api-key": token, "anthropic-version": "2026-10-21"}
        path = "/broker/anthropic/v1/messages"
        assert (await world.inside.post(path, content=body, headers=headers)).status_code == 200
    seen = (await world.model.get("/requests")).json()[-1]
    assert seen["body"]["model"] == MODEL
    assert seen["headers"]["content-length"] != str(len(body))


async def test_a_run_has_only_so_many_calls(world: World) -> None:
    """A loop in the sandbox cannot spend without end."""
    bounded = ModelGrant(
        run_id=RunId("run_1"), models=(MODEL,), expires_at=grant().expires_at, max_calls=2
    )
    with world.registry.open_grant(bounded, GrantHooks(on_call=world.calls.append)) as token:
        statuses = [(await world.ask(token)).status_code for _ in range(4)]
    assert statuses == [200, 200, 403, 403]


async def test_tokens_end_with_the_run(world: World) -> None:
    """Forged, altered, expired, foreign and finished tokens are refused, in the provider's own error shape."""
    with world.registry.open_grant(grant(), GrantHooks(on_call=world.calls.append)) as token:
        pass
    foreign = create_token(b"x" * 32, grant())
    expired = create_token(KEY, grant(minutes=-1))
    with world.registry.open_grant(grant(), GrantHooks(on_call=world.calls.append)) as live:
        for bad in (foreign, expired, live[:-4], "x", "sk-ant-orion-", CANARY):
            answer = await world.ask(bad)
            assert answer.status_code == 401
            assert answer.json()["error"]["type"] == "authentication_error"
    assert (await world.ask(token)).status_code == 401
    assert world.calls == []


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"model": 5}', b"[" * 100_000, b"\xff"])
async def test_malformed_bodies_are_refused(world: World, body: bytes) -> None:
    """What is no JSON object with a model is a 400."""
    with world.registry.open_grant(grant(), GrantHooks(on_call=world.calls.append)) as token:
        answer = await world.inside.post(
            "/broker/anthropic/v1/messages", content=body, headers={"x-api-key": token}
        )
    assert answer.status_code == 400


async def test_odd_text_is_refused_in_a_short_sentence(world: World) -> None:
    """What no answer and no header can have, and what is very long, is no failure of the broker's."""
    half = "\ud800"
    with world.registry.open_grant(grant(), GrantHooks(on_call=world.calls.append)) as token:
        for odd in (half, "x" * 100_000):
            for fields in (
                {"model": odd},
                {"max_tokens": odd},
                {odd: 1},
                {"tools": [{"type": odd}]},
                {"messages": [_shows({"type": odd})]},
            ):
                answer = await world.ask(token, **fields)
                assert answer.status_code == 403
                assert len(answer.text) < 300
        headers = [(b"x-api-key", token.encode()), (b"anthropic-beta", b"caf\xe9")]
        path = "/broker/anthropic/v1/messages"
        body = {"model": MODEL, "max_tokens": 9, "messages": [_USER]}
        answer = await world.inside.post(path, json=body, headers=headers)
    assert answer.status_code == 400
    assert "anthropic-beta" in answer.json()["error"]["message"]


async def test_no_nesting_is_a_failure(world: World) -> None:
    """What can be read but not be written again is refused."""
    statuses = set()
    with world.registry.open_grant(grant(), GrantHooks(on_call=world.calls.append)) as token:
        headers = {"x-api-key": token, "anthropic-version": "2026-10-21"}
        for levels in range(700, 1000, 3):
            body = b'{"model": "%s", "max_tokens": 9, "metadata": %s, "messages": [%s]}' % (
                MODEL.encode(),
                b"[" * levels + b"]" * levels,
                json.dumps(_USER).encode(),
            )
            answer = await world.inside.post(
                "/broker/anthropic/v1/messages", content=body, headers=headers
            )
            statuses.add(answer.status_code)
    assert statuses == {200, 400}


async def test_huge_bodies_are_refused(world: World) -> None:
    """More than the provider would take is cut off here."""
    with world.registry.open_grant(grant(), GrantHooks(on_call=world.calls.append)) as token:
        answer = await world.inside.post(
            "/broker/anthropic/v1/messages",
            content=b" " * (MAX_REQUEST_BYTES + 1),
            headers={"x-api-key": token},
        )
    assert answer.status_code == 413


async def test_other_paths_do_not_exist(world: World) -> None:
    """The broker is no proxy: only the messages endpoint is served."""
    with world.registry.open_grant(grant(), GrantHooks(on_call=world.calls.append)) as token:
        for path in ("/", "/broker/anthropic/v1/files", "/v1/messages", "/requests"):
            assert (await world.inside.post(path, headers={"x-api-key": token})).status_code == 404


async def test_an_unreachable_provider_is_a_502(tmp_path: Path) -> None:
    """Nobody listening upstream is an answer the SDK retries, and a call that the trace shows."""
    calls: list[ModelCall] = []
    socket_path = tmp_path / "broker.sock"
    async with httpx.AsyncClient(verify=NO_TLS, trust_env=False) as http:
        registry = GrantRegistry(signing_key=KEY, clock=SystemClock())
        broker = ModelsBroker(
            registry=registry,
            upstreams={"anthropic": Upstream(base_url="http://127.0.0.1:9", key_headers={})},
            http=http,
            clock=SystemClock(),
        )
        async with serve(create_broker_app(broker.router()), uds=socket_path):
            transport = httpx.AsyncHTTPTransport(verify=NO_TLS, uds=str(socket_path))
            async with httpx.AsyncClient(transport=transport, base_url="http://broker") as inside:
                world = World(registry=registry, inside=inside, model=inside, calls=calls)
                with registry.open_grant(grant(), GrantHooks(on_call=calls.append)) as token:
                    assert (await world.ask(token)).status_code == 502
    assert (calls[0].status, calls[0].error) == (502, "ConnectError")


def test_tokens_carry_their_grant() -> None:
    """What is signed is read back, to the second."""
    given_ = grant(models=("a", "b"))
    read = read_token(KEY, create_token(KEY, given_))
    assert (read.run_id, read.models) == (given_.run_id, given_.models)


@given(st.text(max_size=300))
def test_no_text_is_a_token(text: str) -> None:
    """Whatever is sent as a token, reading it gives a clear refusal, never another error."""
    for candidate in (text, "sk-ant-orion-" + text):
        with pytest.raises(InvalidTokenError):
            read_token(KEY, candidate)


def test_the_signing_key_is_made_once_and_closed(tmp_path: Path) -> None:
    """A restart finds the same key, and nobody else may read it."""
    path = tmp_path / "state" / "broker.key"
    assert load_signing_key(path) == load_signing_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(path.read_bytes()) == 32


@pytest.mark.parametrize(
    "endpoint",
    [endpoint for protocol in PROTOCOLS for endpoint in protocol.endpoints],
    ids=lambda endpoint: endpoint.path,
)
@given(chunks=st.lists(st.binary(max_size=40), max_size=30), is_stream=st.booleans())
def test_usage_reading_survives_anything(
    endpoint: Endpoint, chunks: list[bytes], is_stream: bool
) -> None:
    """Bytes that are no model's answer count nothing and raise nothing."""
    reader = UsageReader(endpoint.read_event, is_stream=is_stream)
    for chunk in chunks:
        reader.feed(chunk)
    assert reader.finish().output_tokens == 0


async def test_the_end_of_an_attempt_leaves_the_next_ones_token(world: World) -> None:
    """Two attempts of one run may overlap for a moment: the older one takes only its own grant along."""
    hooks = GrantHooks(on_call=world.calls.append)
    with ExitStack() as older, ExitStack() as newer:
        older.enter_context(world.registry.open_grant(grant(), hooks))
        token = newer.enter_context(world.registry.open_grant(grant(), hooks))
        older.close()
        assert (await world.ask(token)).status_code == 200
    assert (await world.ask(token)).status_code == 401
