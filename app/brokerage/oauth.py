"""OAuth at one service, for a client of the operator's: the token endpoint, and the tokens that it gives to people.

Source: RFC 6749, 2.3.1, 5.2 and 6; RFC 8707 for `resource`.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote

import httpx

from app.accounts.links import LinkError
from app.accounts.records import TokenPair
from app.accounts.tokens import RevokedError
from app.brokerage.http import trusted

TIMEOUT_S: Final = 10.0
_LATER: Final = (403, 429)
"""GitHub's limits. Source: GitHub REST API, "Rate limits", read 2026-11."""
_DEAD: Final = ("bad_refresh_token", "invalid_grant")
"""Errors of a pair that makes no more tokens: GitHub's, and OAuth's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthClient:
    """A client of the operator's at one service."""

    title: str
    """The service, as people call it."""
    token_url: str
    client_id: str
    client_secret: str = field(default="", repr=False)
    """Empty = it has none."""
    scope: str = ""
    """Names with spaces between them; empty for the service's default."""
    resource: str = ""
    """The server that its tokens are for; empty = it does not say."""
    words: Mapping[str, str] = field(default_factory=dict)
    """What the person is told for errors of the service's own."""


class TokenEndpoint:
    """Asks one service for tokens. Each method raises ConnectionError where the service does not answer."""

    def __init__(self, client: OAuthClient, *, timeout_s: float = TIMEOUT_S) -> None:
        self.client = client
        self._timeout_s = timeout_s

    async def refresh(self, tokens: TokenPair) -> TokenPair:
        """Implements Refresh."""
        if not tokens.refresh:
            raise RevokedError("the token has expired, and there is none to refresh it")
        answer = await self.post(
            self.client.token_url, grant_type="refresh_token", refresh_token=tokens.refresh
        )
        if answer.get("error") in _DEAD:
            raise RevokedError(answer["error"])
        try:
            renewed = self.read_pair(answer)
        except LinkError as exc:
            raise ConnectionError(str(exc)) from exc
        # Whoever gives no new one lets the old one be used again. Source: RFC 6749, 6.
        return renewed if renewed.refresh else replace(renewed, refresh=tokens.refresh)

    async def request(self, method: str, url: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - httpx's own
        """Returns a JSON object that the service answers with, an error's among them."""
        title = self.client.title
        try:
            async with (
                asyncio.timeout(2 * self._timeout_s),  # httpx's is for each read
                httpx.AsyncClient(verify=trusted(), timeout=self._timeout_s) as http,
            ):
                answer = await http.request(method, url, **more)
                found = answer.json()
        except (TimeoutError, httpx.HTTPError, ValueError) as exc:
            raise ConnectionError(f"{title} gave no answer: {type(exc).__name__}") from exc
        if not isinstance(found, dict):
            raise ConnectionError(f"{title} gave no answer of its API")
        if answer.is_server_error or answer.status_code in _LATER:
            raise ConnectionError(f"{title} is not well (HTTP {answer.status_code})")
        return found

    async def post(self, url: str, **form: str) -> dict[str, Any]:
        """Returns what an endpoint of the service answers to a form, with what says who asks."""
        client = self.client
        form |= {"client_id": client.client_id}
        if client.resource:
            form["resource"] = client.resource
        login = None
        if client.client_secret:
            login = httpx.BasicAuth(
                quote(client.client_id, safe=""), quote(client.client_secret, safe="")
            )
        said = {name: value for name, value in form.items() if value}
        headers = {"accept": "application/json"}
        return await self.request("POST", url, headers=headers, data=said, auth=login)

    def read_pair(self, answer: Mapping[str, Any]) -> TokenPair:
        """Returns the tokens of an answer. Raises: LinkError: there is none in it."""
        access, refresh, lifetime_s = (
            answer.get("access_token"),
            answer.get("refresh_token"),
            answer.get("expires_in"),
        )
        if not isinstance(access, str) or not access:
            raise LinkError(self.reason(answer))
        expires_at = None
        if isinstance(lifetime_s, int | float):
            expires_at = datetime.now(UTC) + timedelta(seconds=lifetime_s)
        return TokenPair(
            access=access,
            refresh=refresh if isinstance(refresh, str) else "",
            expires_at=expires_at,
        )

    def reason(self, answer: Mapping[str, Any]) -> str:
        """Returns why there is no token in an answer, for the person."""
        client, error = self.client, str(answer.get("error") or "no reason given")[:100]
        words = {
            "access_denied": f"you have said no to it at {client.title}",
            "expired_token": "the code was not typed in in time",
            **client.words,
        }
        return words.get(error, f"{client.title} did not give a token ({error})")
