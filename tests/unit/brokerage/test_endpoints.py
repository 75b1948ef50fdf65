"""Each way to the broker admits a token of the run alone; at the endpoint of a thread only by its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI, Request, Response

from agent_scripts.adapter import ModelProtocol
from app.aio import open_task_group
from app.brokerage.broker import ModelsBroker, Upstream, create_broker_app
from app.brokerage.endpoints import STAND_IN, DirectBroker, PublicBroker, SocketBroker
from app.brokerage.registry import GrantRegistry, RequestKind
from app.compose.models import injected_headers
from app.egress.proxy import EgressProxy
from app.playground.model.server import ModelPace, create_model_app
from app.runs.testing import GrantHooks, ModelCall, ModelGrant, RunId, SessionId, SystemClock
from app.web.hosting import serve, serve_sockets
from tests.plain_http import NO_TLS

# ruff: noqa: ASYNC240  # short looks at the file system, in tests


MODEL = "claude-sonnet-5-5"
ONE, OTHER = SessionId("ses_1111111111111111"), SessionId("ses_2222222222222222")


def _grant(session_id: SessionId, *, minutes: float = 5) -> ModelGrant:
    return ModelGrant(
        run_id=RunId(f"run_of_{session_id}"),
        models=(MODEL,),
        expires_at=datetime.now(UTC) + timedelta(minutes=minutes),
        session_id=session_id,
    )


@dataclass
class World:
    broker: SocketBroker
    directory: Path
    port: FastAPI
    """What Orion serves over HTTP, for sandboxes elsewhere."""

    async def ask(self, session_id: SessionId, token: str, **fields: Any) -> int:
        """As an agent in that thread's sandbox."""
        path = self.broker.endpoint_for(session_id).address
        transport = httpx.AsyncHTTPTransport(verify=NO_TLS, uds=path)
        return await self._ask(transport, token, fields)

    async def ask_at_port(self, token: str) -> int:
        """As whoever has got hold of the token."""
        return await self._ask(httpx.ASGITransport(self.port), token, {})

    async def _ask(
        self, transport: httpx.AsyncBaseTransport, token: str, fields: dict[str, Any]
    ) -> int:
        body = {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "hello"}]}
        async with httpx.AsyncClient(transport=transport, base_url="http://broker") as inside:
            answer = await inside.post(
                "/broker/anthropic/v1/messages",
                json=body | fields,
                headers={"x-api-key": token, "anthropic-version": "2026-10-21"},
            )
            return answer.status_code


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with (
        serve(create_model_app(pace=ModelPace(word_s=0))) as model_url,
        httpx.AsyncClient(verify=NO_TLS, trust_env=False) as http,
    ):
        registry = GrantRegistry(signing_key=b"k" * 32, clock=SystemClock())
        messages = ModelsBroker(
            registry=registry,
            upstreams={"anthropic": Upstream(base_url=model_url, key_headers={"x-api-key": "key"})},
            http=http,
            clock=SystemClock(),
        )
        router = messages.router()
        async with (
            serve_sockets(create_broker_app(router)) as listeners,
            open_task_group() as group,
        ):
            made = SocketBroker(
                registry,
                router=router,
                directory=tmp_path,
                open_listener=listeners.open,
                egress=EgressProxy(group),
            )
            yield World(broker=made, directory=tmp_path, port=create_broker_app(router))


async def test_a_token_is_good_at_its_own_door_alone(world: World) -> None:
    """That of a run which is going elsewhere is refused, and the run that tried is told of in its trace."""
    one: list[ModelCall] = []
    other: list[ModelCall] = []
    async with (
        world.broker.open_grant(_grant(ONE), GrantHooks(on_call=one.append)) as token,
        world.broker.open_grant(_grant(OTHER), GrantHooks(on_call=other.append)) as token_of_other,
    ):
        assert await world.ask(ONE, token) == 200
        assert await world.ask(OTHER, token_of_other) == 200
        assert await world.ask(ONE, token_of_other) == 401
        assert await world.ask_at_port(token) == 401
        assert await world.ask(ONE, "no token") == 401
        assert await world.ask(ONE, token, model="claude-opus-5") == 403
    assert [(call.status, call.is_refused) for call in one] == [
        *((200, False), (401, True), (401, True), (403, True))
    ]
    assert [call.status for call in other] == [200]


async def test_a_loop_of_refusals_does_not_fill_the_trace(world: World) -> None:
    """Twenty are told."""
    calls: list[ModelCall] = []
    async with world.broker.open_grant(_grant(ONE), GrantHooks(on_call=calls.append)):
        for _ in range(25):
            assert await world.ask(ONE, "no token") == 401
    assert len(calls) == 20


async def test_a_door_is_open_while_a_run_goes(world: World) -> None:
    """Its directory stays for the sandbox that sees it, and opens again for the next run; closed, it is gone."""
    for _ in range(2):
        async with world.broker.open_grant(
            _grant(ONE), GrantHooks(on_call=lambda _call: None)
        ) as token:
            assert await world.ask(ONE, token) == 200
        path = Path(world.broker.endpoint_for(ONE).address)
        assert not path.exists()
        assert path.parent.is_dir()
    world.broker.close(ONE)
    world.broker.close(ONE)
    assert list(world.directory.iterdir()) == []


async def test_a_grant_is_kept_between_slices(world: World) -> None:
    """Its agent works on and is let through, at whoever's expense was last; the next slice goes on with it and ends it."""
    first: list[ModelCall] = []
    second: list[ModelCall] = []
    grant = _grant(ONE)
    async with world.broker.open_grant(grant, GrantHooks(on_call=first.append)) as token:
        world.broker.keep(grant.run_id)
    assert await world.ask(ONE, token) == 200
    async with world.broker.open_grant(grant, GrantHooks(on_call=second.append)) as again:
        assert await world.ask(ONE, token) == 200
        assert again == token
    assert (len(first), len(second)) == (1, 1)
    assert not Path(world.broker.endpoint_for(ONE).address).exists()


async def test_a_kept_grant_expires(world: World) -> None:
    """A run that goes on in another process leaves none behind: past its time nothing is let through, and its listener goes."""
    over = replace(_grant(ONE), expires_at=SystemClock().now() + timedelta(seconds=0.3))
    path = Path(world.broker.endpoint_for(ONE).address)
    async with world.broker.open_grant(over, GrantHooks(on_call=lambda _call: None)) as token:
        world.broker.keep(over.run_id)
    assert path.exists()
    await asyncio.sleep(0.5)
    assert await world.ask(ONE, token) == 401
    async with world.broker.open_grant(_grant(OTHER), GrantHooks(on_call=lambda _call: None)):
        assert not path.exists()


async def test_all_kept_grants_end_with_the_broker(world: World) -> None:
    """Whatever was kept is closed when the service ends; and a block that fails keeps nothing."""
    path = Path(world.broker.endpoint_for(ONE).address)
    async with world.broker.open_grant(_grant(ONE), GrantHooks(on_call=lambda _call: None)):
        world.broker.keep(_grant(ONE).run_id)
    await world.broker.registry.close()
    assert not path.exists()

    async def fail() -> None:
        async with world.broker.open_grant(_grant(ONE), GrantHooks(on_call=lambda _call: None)):
            world.broker.keep(_grant(ONE).run_id)
            raise RuntimeError("in its midst")

    with pytest.raises(RuntimeError, match="in its midst"):
        await fail()
    assert not path.exists()


async def test_a_door_that_another_process_has_opened_stays(world: World) -> None:
    """Whoever listened there before removes only a socket of its own."""
    path = Path(world.broker.endpoint_for(ONE).address)
    async with world.broker.open_grant(_grant(ONE), GrantHooks(on_call=lambda _call: None)):
        path.unlink()
        path.touch()
    assert path.exists()


async def test_doors_that_a_dead_process_left(world: World) -> None:
    """Only those stay, socket and all, whose sandboxes may be attached to."""
    for session_id in (ONE, OTHER):
        Path(world.broker.endpoint_for(session_id).address).touch()
    world.broker.close_others([OTHER])
    assert [path.name for path in world.directory.iterdir()] == [OTHER[-12:]]
    async with world.broker.open_grant(
        _grant(OTHER), GrantHooks(on_call=lambda _call: None)
    ) as token:
        assert await world.ask(OTHER, token) == 200


async def test_a_door_that_is_adopted(world: World) -> None:
    """The thread's tokens are good at the endpoint that the sandbox was given before it had a thread, and no other's are."""
    waiting = SessionId("pool_3333333333333333")
    seen_inside = Path(world.broker.endpoint_for(waiting).address)
    world.broker.endpoint_for(ONE)
    world.broker.rebind(ONE, waiting)
    async with (
        world.broker.open_grant(_grant(ONE), GrantHooks(on_call=lambda _call: None)) as token,
        world.broker.open_grant(
            _grant(OTHER), GrantHooks(on_call=lambda _call: None)
        ) as token_of_other,
    ):
        assert seen_inside.is_socket()
        assert await world.ask(waiting, token) == 200
        assert await world.ask(waiting, token_of_other) == 401
        assert await world.ask(OTHER, token) == 401
    assert not seen_inside.exists()
    world.broker.close_others([ONE])
    assert len(list(world.directory.iterdir())) == 2
    async with world.broker.open_grant(
        _grant(ONE), GrantHooks(on_call=lambda _call: None)
    ) as token:
        assert await world.ask(waiting, token) == 200
    world.broker.close(ONE)
    world.broker.close(OTHER)
    assert list(world.directory.iterdir()) == []


async def test_adopted_doors_that_a_dead_process_left(world: World) -> None:
    """Both names go when their sandbox is not attached to, and so do those of sandboxes that waited."""
    for session_id, waiting in ((ONE, "pool_3333333333333333"), (OTHER, "pool_4444444444444444")):
        world.broker.endpoint_for(SessionId(waiting))
        world.broker.rebind(session_id, SessionId(waiting))
    world.broker.endpoint_for(SessionId("pool_5555555555555555"))
    world.broker.close_others([OTHER])
    names = {path.name for path in world.directory.iterdir()}
    assert names == {OTHER[-12:], "4" * 12}


async def test_a_path_that_no_socket_can_have(world: World, tmp_path: Path) -> None:
    """It is refused at the start, not in the first run."""
    with pytest.raises(OSError, match="too long"):
        SocketBroker(
            world.broker.registry,
            router=world.broker.router,
            directory=tmp_path / ("x" * 90),
            open_listener=None,  # type: ignore[arg-type]  # never opened
            egress=None,  # type: ignore[arg-type]  # never asked
        )


REMOTE = SessionId("s-one")
GRANT = ModelGrant(
    run_id=RunId("run_1"),
    models=("m",),
    expires_at=datetime.now(UTC) + timedelta(hours=1),
    session_id=REMOTE,
)


def _service(registry: GrantRegistry) -> FastAPI:
    router = APIRouter()

    async def look(request: Request) -> Response:
        async with AsyncExitStack() as held:
            found = await registry.admit(request, held, RequestKind.MODEL)
        return found if isinstance(found, Response) else Response(found.grant.run_id)

    router.add_api_route("/look", look, response_model=None)
    app = FastAPI()
    app.include_router(router)
    return app


async def test_a_token_is_good_at_the_public_address_while_its_run_goes() -> None:
    """The same tokens as at the sockets; before, after and altered they are refused."""
    registry = GrantRegistry(signing_key=b"k" * 32, clock=SystemClock())
    broker = PublicBroker(registry, url="https://orion.example.com/")
    assert broker.endpoint_for(REMOTE).address == "https://orion.example.com"
    assert broker.endpoint_for(REMOTE).headers == {}
    transport = httpx.ASGITransport(app=_service(registry))
    async with httpx.AsyncClient(transport=transport, base_url="http://orion") as http:

        async def status(token: str) -> int:
            return (await http.get("/look", headers={"x-api-key": token})).status_code

        async with broker.open_grant(GRANT, GrantHooks(on_call=lambda _call: None)) as token:
            assert await status(token) == 200
            assert await status(token[:-2]) == 401
        assert await status(token) == 401


async def test_without_a_broker_the_network_is_told_the_key_and_the_agent_is_not() -> None:
    """The agent holds a stand-in; neither the endpoint's text nor its URL tells the key."""
    headers = injected_headers(ModelProtocol.ANTHROPIC, "sk-real-key")
    broker = DirectBroker(base_url="https://api.example.com/", headers=headers)
    endpoint = broker.endpoint_for(REMOTE)
    assert (endpoint.address, endpoint.url("anthropic")) == ("https://api.example.com", "{relay}")
    assert endpoint.headers == {
        "x-api-key": "sk-real-key",
        "authorization": "Bearer sk-real-key",
    }
    assert "sk-real-key" not in repr(endpoint)
    async with broker.open_grant(GRANT, GrantHooks(on_call=lambda _call: None)) as token:
        assert token == STAND_IN
