"""Access tokens of an MCP server by OAuth's client credentials: fetched when needed, held in memory, never in a sandbox."""

import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from urllib.parse import quote

import httpx
from pydantic import BaseModel, Field, ValidationError
from typing_extensions import override

_EARLY_S = 30.0
"""A token is replaced this long before it expires."""
TIMEOUT_S = 10.0
"""To connect, and between the bytes of the token endpoint's answer."""
_UNSAID_S = 300.0
"""How long one is kept whose server does not say when it expires."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthClient:
    """Who asks for tokens, and where."""

    token_url: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str = ""
    """Names with spaces between them; empty = what the server gives."""


class TokenRefusedError(httpx.RequestError):
    """The token endpoint gave none; its words are not repeated here."""


class _Answer(BaseModel):
    access_token: str = Field(min_length=1, pattern=r"^[\x21-\x7e]+$")
    expires_in: float = _UNSAID_S


class ClientCredentialsAuth(httpx.Auth):
    """RFC 6749, 4.4, the client's name and secret as in 2.3.1. A token that the server refuses is replaced once.

    Requests at the same time may each fetch a token; either is good.

    Raises:
        TokenRefusedError: from `send`, as other failures of a request.
    """

    requires_request_body = True

    def __init__(self, client: OAuthClient) -> None:
        self._client = client
        self._token = ""
        self._stale_at = 0.0

    @override
    async def async_auth_flow(
        self, request: httpx.Request
    ) -> AsyncGenerator[httpx.Request, httpx.Response]:
        for _ in range(2):
            is_new = time.monotonic() >= self._stale_at
            if is_new:
                answer = yield self._asking()
                await answer.aread()
                self._keep(answer)
            request.headers["Authorization"] = f"Bearer {self._token}"
            response = yield request
            if response.status_code != httpx.codes.UNAUTHORIZED or is_new:
                return
            self._stale_at = 0.0

    def _asking(self) -> httpx.Request:
        form = {"grant_type": "client_credentials"}
        if self._client.scope:
            form["scope"] = self._client.scope
        login = httpx.BasicAuth(
            quote(self._client.client_id, safe=""), quote(self._client.client_secret, safe="")
        )
        # A request of an auth flow has no time limit of the client's.
        limits = {"timeout": httpx.Timeout(TIMEOUT_S).as_dict()}
        request = httpx.Request("POST", self._client.token_url, data=form, extensions=limits)
        request.headers["Accept"] = "application/json"
        return next(login.auth_flow(request))

    def _keep(self, answer: httpx.Response) -> None:
        try:
            found = _Answer.model_validate_json(answer.content)
        except ValidationError as exc:
            # A query, or a name before the host, may hold a secret.
            url = httpx.URL(self._client.token_url).copy_with(query=None, userinfo=b"")
            raise TokenRefusedError(f"no token from {url}: HTTP {answer.status_code}") from exc
        self._token = found.access_token
        self._stale_at = time.monotonic() + max(0.0, found.expires_in - _EARLY_S)
