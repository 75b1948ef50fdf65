"""Accounts at an authorization server of our own for MCP servers: the device flow as the RFC has it, where GitHub's differs.

Source: RFC 8628, 3.2 and 3.5, RFC 6749, 2.3.1 and 5.2: errors are answered 400, and a client with a secret says it by Basic.
"""

import base64
import json
from dataclasses import dataclass, field

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from typing_extensions import override

from tests.github_accounts import CLIENT_ID, GitHubAccounts, read_form

SECRET = "secret of the client: 4711"  # noqa: S105 - made up


@dataclass
class OAuthAccounts(GitHubAccounts):
    """People log in there by a name; `guard` lets whoever has a good token reach an MCP server."""

    resources: set[str] = field(default_factory=set)
    """That tokens were asked for."""
    reached_by: list[str] = field(default_factory=list)
    """Who has reached the guarded server, by requests."""

    @override
    def add_to(self, app: FastAPI, *, api: str = "") -> None:
        app.post(f"{api}/device")(self._asked_for_code)
        app.post(f"{api}/token")(self._asked_for_token)

    async def _asked_for_code(self, request: Request) -> Response:
        return await self._checked(request) or _as_oauth(await self._begin(request))

    async def _asked_for_token(self, request: Request) -> Response:
        return await self._checked(request) or _as_oauth(await self._token(request))

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
