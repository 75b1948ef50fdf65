"""Tokens by client credentials: over HTTP, from an endpoint that hands out numbered ones."""

import asyncio
import base64
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import httpx
import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from app.brokerage.mcp import (
    TOKEN_TIMEOUT_S,
    ClientCredentialsAuth,
    OAuthClient,
    TokenRefusedError,
)
from app.web.hosting import serve
from tests.plain_http import NO_TLS


@dataclass(kw_only=True)
class Place:
    """A server and its token endpoint."""

    url: str = ""
    expires_in: object = 3600
    forms: list[str] = field(default_factory=list)
    revoked: set[str] = field(default_factory=set)
    bodies: list[bytes] = field(default_factory=list)
    is_silent: bool = False

    def app(self) -> FastAPI:
        app = FastAPI()
        app.add_api_route("/token", self.token, methods=["POST"])
        app.add_api_route("/mcp", self.use, methods=["POST"])
        return app

    async def token(self, request: Request) -> Response:
        if self.is_silent:
            await asyncio.sleep(60)
        login = base64.b64encode(b"me%3A:s%20cret").decode()
        if request.headers["authorization"] != f"Basic {login}":
            return JSONResponse({"error": "invalid_client"}, 401)
        self.forms.append((await request.body()).decode())
        token = f"t{len(self.forms)}"
        return JSONResponse({"access_token": token, "expires_in": self.expires_in})

    async def use(self, request: Request) -> Response:
        self.bodies.append(await request.body())
        token = request.headers["authorization"].removeprefix("Bearer ")
        return Response(token, 401 if token in self.revoked else 200)

    def login(
        self,
        secret: str = "s cret",  # noqa: S107 - made up
        *,
        timeout_s: float = TOKEN_TIMEOUT_S,
    ) -> ClientCredentialsAuth:
        client = OAuthClient(
            token_url=f"{self.url}/token", client_id="me:", client_secret=secret, scope="a b"
        )
        return ClientCredentialsAuth(client, timeout_s=timeout_s)


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    place = Place()
    async with serve(place.app()) as url:
        place.url = url
        yield place


async def _ask(place: Place, login: ClientCredentialsAuth) -> httpx.Response:
    async with httpx.AsyncClient(verify=NO_TLS, trust_env=False) as http:
        request = http.build_request("POST", f"{place.url}/mcp", content=b"body")
        answer = await http.send(request, stream=True, auth=login)
        await answer.aread()
        return answer


async def test_one_token_serves_many_requests(place: Place) -> None:
    """The first fetches it, with the scope."""
    login = place.login()
    assert [(await _ask(place, login)).text for _ in range(3)] == ["t1", "t1", "t1"]
    assert place.forms == ["grant_type=client_credentials&scope=a+b"]


async def test_a_token_is_replaced_before_it_expires(place: Place) -> None:
    """One that is as good as over is not used again."""
    place.expires_in = 20
    login = place.login()
    assert [(await _ask(place, login)).text for _ in range(2)] == ["t1", "t2"]


async def test_a_refused_token_is_replaced_once(place: Place) -> None:
    """The request is made again, whole; a new token that is refused too is the server's answer."""
    login = place.login()
    await _ask(place, login)
    place.revoked.add("t1")
    answer = await _ask(place, login)
    assert (answer.status_code, answer.text) == (200, "t2")
    assert place.bodies == [b"body"] * 3
    place.revoked |= {"t2", "t3"}
    assert (await _ask(place, login)).status_code == 401
    assert len(place.forms) == 3


@pytest.mark.parametrize("expires_in", ["soon", [], None])
async def test_an_answer_without_a_good_token(place: Place, expires_in: object) -> None:
    """It is named with its address and status, and never used."""
    place.expires_in = expires_in
    with pytest.raises(TokenRefusedError, match="/token: HTTP 200"):
        await _ask(place, place.login())


async def test_a_wrong_secret_is_not_repeated_in_the_error(place: Place) -> None:
    """Nor is anything sent to the server itself."""
    with pytest.raises(TokenRefusedError, match="HTTP 401") as failure:
        await _ask(place, place.login("canary-wrong"))
    assert "canary" not in str(failure.value)
    assert not place.bodies


async def test_a_refusal_does_not_tell_what_the_address_holds_besides(place: Place) -> None:
    """A query or a login in it may be secret; which endpoint it was is told."""
    address = f"{place.url}/token?key=canary".replace("://", "://me:canary@")
    client = OAuthClient(token_url=address, client_id="me:", client_secret="wrong")
    with pytest.raises(TokenRefusedError, match="/token: HTTP 401") as failure:
        await _ask(place, ClientCredentialsAuth(client))
    assert "canary" not in str(failure.value)


async def test_an_endpoint_that_hangs_is_not_waited_for(place: Place) -> None:
    """Whatever time a tool may take."""
    place.is_silent = True
    with pytest.raises(httpx.ReadTimeout):
        async with asyncio.timeout(10):
            await _ask(place, place.login(timeout_s=0.1))
