"""Accounts at an authorization server of our own for MCP servers: the device flow as the RFC has it, where GitHub's differs, and the authorization code flow.

Source: RFC 8628, 3.2 and 3.5, RFC 6749, 2.3.1 and 5.2: errors are answered 400, and a client with a secret says it by Basic;
RFC 6749, 4.1, RFC 7636, 4.6, RFC 9700, 2.1.1: PKCE is demanded, a code is good once, for whoever has its verifier.
"""

import base64
import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from typing_extensions import override

from tests.github_accounts import CLIENT_ID, GitHubAccounts, read_form
from tests.plain_http import NO_TLS

SECRET = "secret of the client: 4711"  # noqa: S105 - made up
REDIRECT_URL = "http://localhost:3000/linked/crm"
"""That the client is known by."""


@dataclass(frozen=True, kw_only=True)
class _Given:
    """What stands behind an authorization code."""

    login: str
    challenge: str


@dataclass
class OAuthAccounts(GitHubAccounts):
    """People log in there by a name; `guard` lets whoever has a good token reach an MCP server."""

    resources: set[str] = field(default_factory=set)
    """That tokens were asked for."""
    reached_by: list[str] = field(default_factory=list)
    """Who has reached the guarded server, by requests."""
    redirect_url: str = REDIRECT_URL
    _given: dict[str, _Given] = field(default_factory=dict)

    async def say_yes(self, page: str, *, login: str) -> str:
        """A person opens the page, logs in and says yes; returns the address at which their browser ends. Empty login: they say no."""
        async with httpx.AsyncClient(verify=NO_TLS, trust_env=False) as browser:
            answer = await browser.get(page, headers={"x-login": login})
        assert answer.status_code == 303, answer.text
        return answer.headers["location"]

    @override
    def add_to(self, app: FastAPI, *, api: str = "") -> None:
        app.post(f"{api}/device")(self._asked_for_code)
        app.post(f"{api}/token")(self._asked_for_token)
        app.get(f"{api}/authorize")(self._authorize)

    async def _asked_for_code(self, request: Request) -> Response:
        return await self._checked(request) or _as_oauth(await self._begin(request))

    async def _asked_for_token(self, request: Request) -> Response:
        if refusal := await self._checked(request):
            return refusal
        form = await read_form(request)
        if form.get("grant_type") == "authorization_code" and not self.is_down:
            return _as_oauth(JSONResponse(self._of_code(form)))
        return _as_oauth(await self._token(request))

    async def _authorize(self, request: Request) -> Response:
        said = dict(request.query_params)
        self.resources.add(said.get("resource", ""))
        wanted = {
            "client_id": CLIENT_ID,
            "redirect_uri": self.redirect_url,  # Nobody is sent anywhere else. Source: RFC 6749, 3.1.2.4.
            "response_type": "code",
            "code_challenge_method": "S256",
        }
        wrong = [name for name, value in wanted.items() if said.get(name) != value]
        if wrong or len(said.get("code_challenge", "")) != 43:
            return JSONResponse({"error": "invalid_request", "wrong": wrong}, status_code=400)
        back = {"state": said.get("state", "")}
        login = request.headers["x-login"]
        if login:
            back["code"] = secrets.token_urlsafe(24)
            self._given[back["code"]] = _Given(login=login, challenge=said["code_challenge"])
        else:
            back["error"] = "access_denied"
        address = httpx.URL(self.redirect_url).copy_merge_params(back)
        return Response(status_code=303, headers={"location": str(address)})

    def _of_code(self, form: Mapping[str, str]) -> dict[str, Any]:
        given = self._given.pop(form.get("code", ""), None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        is_good = form.get("redirect_uri") == self.redirect_url
        if given is None or not is_good or given.challenge != challenge:
            return {"error": "invalid_grant"}
        return self._pair({"id": len(given.login), "login": given.login})

    async def _checked(self, request: Request) -> Response | None:
        self.resources.add((await read_form(request)).get("resource", ""))
        said = f"{CLIENT_ID}:secret%20of%20the%20client%3A%204711".encode()
        if request.headers.get("authorization") == f"Basic {base64.b64encode(said).decode()}":
            return None
        return JSONResponse({"error": "invalid_client"}, status_code=401)

    def guard(self, app: ASGIApp) -> ASGIApp:
        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                said = dict(scope["headers"]).get(b"authorization", b"").decode()
                account = self.tokens.get(said.removeprefix("Bearer "))
                if account is None:
                    refusal = JSONResponse({"error": "invalid_token"}, status_code=401)
                    await refusal(scope, receive, send)
                    return
                self.reached_by.append(account["login"])
            await app(scope, receive, send)

        return guarded


def _as_oauth(answer: Response) -> Response:
    is_error = answer.status_code == 200 and "error" in json.loads(bytes(answer.body))
    return Response(bytes(answer.body), 400) if is_error else answer
