"""A broker over its real unix socket, in front of the offline model, with a run that goes."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from app.brokerage.broker import ModelsBroker, create_broker_app
from app.brokerage.registry import GrantRegistry
from app.playground.model.server import ModelPace, create_model_app
from app.runs.testing import GrantHooks, SystemClock
from app.web.hosting import serve
from tests.plain_http import NO_TLS
from tests.unit.brokerage.asking import World, grant, upstreams


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """The broker knows OpenAI and Google."""
    async with (
        serve(create_model_app(pace=ModelPace(word_s=0))) as url,
        httpx.AsyncClient(verify=NO_TLS, trust_env=False) as http,
        httpx.AsyncClient(verify=NO_TLS, base_url=url, trust_env=False) as model,
    ):
        registry = GrantRegistry(signing_key=b"k" * 32, clock=SystemClock())
        broker = ModelsBroker(
            registry=registry, upstreams=upstreams(url), http=http, clock=SystemClock()
        )
        socket = tmp_path / "broker.sock"
        transport = httpx.AsyncHTTPTransport(verify=NO_TLS, uds=str(socket))
        async with (
            serve(create_broker_app(broker.router()), uds=socket),
            httpx.AsyncClient(transport=transport, base_url="http://broker") as inside,
        ):
            world = World(registry=registry, inside=inside, model=model)
            with registry.open_grant(
                grant(), GrantHooks(on_call=world.calls.append)
            ) as world.token:
                yield world
