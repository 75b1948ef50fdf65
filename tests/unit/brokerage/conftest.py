"""A broker over its real unix socket, in front of the offline model, with a run that goes."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from app.brokerage.admission import Admission
from app.brokerage.broker import ModelsBroker, create_broker_app
from app.playground.model import ModelPace, create_model_app
from app.runs.clock import SystemClock
from app.web.hosting import serve
from tests.unit.brokerage.asking import World, grant, upstreams


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """The broker knows OpenAI and Google."""
    async with (
        serve(create_model_app(pace=ModelPace(word_s=0))) as url,
        httpx.AsyncClient(trust_env=False) as http,
        httpx.AsyncClient(base_url=url, trust_env=False) as model,
    ):
        admission = Admission(signing_key=b"k" * 32, clock=SystemClock())
        broker = ModelsBroker(
            admission=admission, upstreams=upstreams(url), http=http, clock=SystemClock()
        )
        socket = tmp_path / "broker.sock"
        transport = httpx.AsyncHTTPTransport(uds=str(socket))
        async with (
            serve(create_broker_app(broker.router()), uds=socket),
            httpx.AsyncClient(transport=transport, base_url="http://broker") as inside,
        ):
            world = World(admission=admission, inside=inside, model=model)
            with admission.open_grant(grant(), world.calls.append) as world.token:
                yield world
