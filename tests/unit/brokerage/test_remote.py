"""Brokers for sandboxes that run elsewhere."""

from __future__ import annotations

from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta

import httpx
from fastapi import APIRouter, FastAPI, Request, Response

from agent_scripts.adapter import ModelProtocol
from app.brokerage.admission import Admission, Kind
from app.brokerage.remote import STAND_IN, DirectBroker, PublicBroker
from app.model_access import injected_headers
from app.runs.broker_ports import ModelGrant
from app.runs.clock import SystemClock
from app.runs.model import RunId
from app.runs.session import SessionId

ONE = SessionId("s-one")
GRANT = ModelGrant(
    run_id=RunId("run_1"),
    models=("m",),
    expires_at=datetime.now(UTC) + timedelta(hours=1),
    session_id=ONE,
)


def _service(admission: Admission) -> FastAPI:
    router = APIRouter()

    async def look(request: Request) -> Response:
        async with AsyncExitStack() as held:
            found = admission.admit(request, held, Kind.MODEL)
        return found if isinstance(found, Response) else Response(found.grant.run_id)

    router.add_api_route("/look", look, response_model=None)
    app = FastAPI()
    app.include_router(router)
    return app


async def test_a_token_is_good_at_the_public_address_while_its_run_goes() -> None:
    """The same tokens as at the doors; before, after and altered they are refused."""
    admission = Admission(signing_key=b"k" * 32, clock=SystemClock())
    broker = PublicBroker(admission, url="https://orion.example.com/")
    assert broker.endpoint_for(ONE).address == "https://orion.example.com"
    assert broker.endpoint_for(ONE).headers == {}
    transport = httpx.ASGITransport(app=_service(admission))
    async with httpx.AsyncClient(transport=transport, base_url="http://orion") as http:

        async def status(token: str) -> int:
            return (await http.get("/look", headers={"x-api-key": token})).status_code

        async with broker.open_grant(GRANT, lambda _call: None) as token:
            assert await status(token) == 200
            assert await status(token[:-2]) == 401
        assert await status(token) == 401


async def test_without_a_broker_the_network_is_told_the_key_and_the_agent_is_not() -> None:
    """The agent holds a stand-in; neither the endpoint's text nor its URL tells the key."""
    headers = injected_headers(ModelProtocol.ANTHROPIC, "sk-real-key")
    broker = DirectBroker(base_url="https://api.example.com/", headers=headers)
    endpoint = broker.endpoint_for(ONE)
    assert (endpoint.address, endpoint.model_url) == ("https://api.example.com", "{relay}")
    assert endpoint.headers == {
        "x-api-key": "sk-real-key",
        "authorization": "Bearer sk-real-key",
    }
    assert "sk-real-key" not in repr(endpoint)
    async with broker.open_grant(GRANT, lambda _call: None) as token:
        assert token == STAND_IN
