# ruff: noqa: ASYNC240  # short looks at the file system, in tests
"""A token is good at the door of its own thread, and at no other."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.brokerage.admission import Admission
from app.brokerage.broker import ModelsBroker, Upstream, create_broker_app
from app.brokerage.doors import DoorBroker
from app.playground.model import ModelPace, create_model_app
from app.runs.broker_ports import ModelGrant
from app.runs.clock import SystemClock
from app.runs.model import ModelCall, RunId
from app.runs.session import SessionId
from app.web.hosting import serve, serve_doors

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
    broker: DoorBroker
    directory: Path

    async def ask(self, session_id: SessionId, token: str, **fields: Any) -> int:
        """As an agent in that thread's sandbox."""
        transport = httpx.AsyncHTTPTransport(uds=self.broker.endpoint_for(session_id).address)
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
        httpx.AsyncClient(trust_env=False) as http,
    ):
        admission = Admission(signing_key=b"k" * 32, clock=SystemClock())
        messages = ModelsBroker(
            admission=admission,
            upstreams={"anthropic": Upstream(base_url=model_url, key_headers={"x-api-key": "key"})},
            http=http,
            clock=SystemClock(),
        )
        router = messages.router()
        async with serve_doors(create_broker_app(router)) as doors:
            made = DoorBroker(admission, router=router, directory=tmp_path, open_door=doors.open)
            yield World(broker=made, directory=tmp_path)


async def test_a_token_is_good_at_its_own_door_alone(world: World) -> None:
    """That of a run which is going elsewhere is refused, and the run that tried is told of in its trace."""
    one: list[ModelCall] = []
    other: list[ModelCall] = []
    async with (
        world.broker.open_grant(_grant(ONE), one.append) as token,
        world.broker.open_grant(_grant(OTHER), other.append) as token_of_other,
    ):
        assert await world.ask(ONE, token) == 200
        assert await world.ask(OTHER, token_of_other) == 200
        assert await world.ask(ONE, token_of_other) == 401
        assert await world.ask(ONE, "no token") == 401
        assert await world.ask(ONE, token, model="claude-opus-5") == 403
    assert [(call.status, call.is_refused) for call in one] == [
        *((200, False), (401, True), (401, True), (403, True))
    ]
    assert [call.status for call in other] == [200]


async def test_a_loop_of_refusals_does_not_fill_the_trace(world: World) -> None:
    """Twenty are told."""
    calls: list[ModelCall] = []
    async with world.broker.open_grant(_grant(ONE), calls.append):
        for _ in range(25):
            assert await world.ask(ONE, "no token") == 401
    assert len(calls) == 20


async def test_a_door_is_open_while_a_run_goes(world: World) -> None:
    """Its directory stays for the sandbox that sees it, and opens again for the next run; closed, it is gone."""
    for _ in range(2):
        async with world.broker.open_grant(_grant(ONE), lambda _call: None) as token:
            assert await world.ask(ONE, token) == 200
        path = Path(world.broker.endpoint_for(ONE).address)
        assert not path.exists()
        assert path.parent.is_dir()
    world.broker.close(ONE)
    world.broker.close(ONE)
    assert list(world.directory.iterdir()) == []


async def test_doors_that_a_dead_process_left(world: World) -> None:
    """Only those stay, socket and all, whose sandboxes may be attached to."""
    for session_id in (ONE, OTHER):
        Path(world.broker.endpoint_for(session_id).address).touch()
    world.broker.close_others([OTHER])
    assert [path.name for path in world.directory.iterdir()] == [OTHER[-12:]]
    async with world.broker.open_grant(_grant(OTHER), lambda _call: None) as token:
        assert await world.ask(OTHER, token) == 200


async def test_a_door_that_is_adopted(world: World) -> None:
    """The thread's tokens are good at the door that the sandbox was given before it had a thread, and no other's are."""
    waiting = SessionId("pool_3333333333333333")
    seen_inside = Path(world.broker.endpoint_for(waiting).address)
    world.broker.endpoint_for(ONE)
    world.broker.adopt(ONE, waiting)
    async with (
        world.broker.open_grant(_grant(ONE), lambda _call: None) as token,
        world.broker.open_grant(_grant(OTHER), lambda _call: None) as token_of_other,
    ):
        assert seen_inside.is_socket()
        assert await world.ask(waiting, token) == 200
        assert await world.ask(waiting, token_of_other) == 401
        assert await world.ask(OTHER, token) == 401
    assert not seen_inside.exists()
    world.broker.close_others([ONE])
    assert len(list(world.directory.iterdir())) == 2
    async with world.broker.open_grant(_grant(ONE), lambda _call: None) as token:
        assert await world.ask(waiting, token) == 200
    world.broker.close(ONE)
    world.broker.close(OTHER)
    assert list(world.directory.iterdir()) == []


async def test_adopted_doors_that_a_dead_process_left(world: World) -> None:
    """Both names go when their sandbox is not attached to, and so do those of sandboxes that waited."""
    for session_id, waiting in ((ONE, "pool_3333333333333333"), (OTHER, "pool_4444444444444444")):
        world.broker.endpoint_for(SessionId(waiting))
        world.broker.adopt(session_id, SessionId(waiting))
    world.broker.endpoint_for(SessionId("pool_5555555555555555"))
    world.broker.close_others([OTHER])
    names = {path.name for path in world.directory.iterdir()}
    assert names == {OTHER[-12:], "4" * 12}


async def test_a_path_that_no_socket_can_have(world: World, tmp_path: Path) -> None:
    """It is refused at the start, not in the first run."""
    with pytest.raises(OSError, match="too long"):
        DoorBroker(
            world.broker.admission,
            router=world.broker.router,
            directory=tmp_path / ("x" * 90),
            open_door=None,  # type: ignore[arg-type]  # never opened
        )
