"""OAuth's device flow: a person types a code in at a service, which need not reach any address of ours; and the tokens that come of it.

Source: RFC 8628; RFC 6749, 2.3.1, 5.2 and 6; RFC 8707 for `resource`.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote

import httpx

from app.accounts.links import LinkError, Waiting
from app.accounts.records import DeviceCode, TokenPair
from app.accounts.tokens import RevokedError
from app.brokerage.http import trusted

TIMEOUT_S: Final = 10.0
_GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
_LEAST_INTERVAL_S: Final = 5.0
_LATER: Final = (403, 429)
"""GitHub's limits. Source: GitHub REST API, "Rate limits", read 2026-11."""
_DEAD: Final = ("bad_refresh_token", "invalid_grant")
"""Errors of a pair that makes no more tokens: GitHub's, and OAuth's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceClient:
    """An OAuth client of the operator's at one service, which may use the device flow there."""

    title: str
    """The service, as people call it."""
    device_url: str
    """Its device authorization endpoint."""
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


class DeviceFlow:
    """Asks one service's endpoints for codes and tokens. Each method raises ConnectionError where the service does not answer."""

    def __init__(self, client: DeviceClient, *, timeout_s: float = TIMEOUT_S) -> None:
        self._client = client
        self._timeout_s = timeout_s

    async def begin(self) -> DeviceCode:
        """Asks for a code. Raises: LinkError: there is none."""
        now = datetime.now(UTC)
        answer = await self._post(self._client.device_url, scope=self._client.scope)
        try:
            return DeviceCode(
                user_code=str(answer["user_code"]),
                verification_url=str(answer["verification_uri"]),
                device_code=str(answer["device_code"]),
                expires_at=now + timedelta(seconds=float(answer["expires_in"])),
                interval_s=max(_LEAST_INTERVAL_S, float(answer.get("interval", 0))),
            )
        except (KeyError, TypeError, ValueError) as exc:
            raise LinkError(self._reason(answer)) from exc

    async def ask(self, code: DeviceCode) -> TokenPair | Waiting:
        """Asks whether it was typed in. Raises: LinkError: it will not be."""
        answer = await self._post(
            self._client.token_url, device_code=code.device_code, grant_type=_GRANT
        )
        match answer.get("error"):
            case None:
                return self._read_pair(answer)
            case "authorization_pending":
                return Waiting(interval_s=code.interval_s)
            case "slow_down":
                wanted = answer.get("interval")
                slower = float(wanted) if isinstance(wanted, int | float) else 0.0
                return Waiting(interval_s=max(slower, code.interval_s + _LEAST_INTERVAL_S))
            case _:
                raise LinkError(self._reason(answer))

    async def refresh(self, tokens: TokenPair) -> TokenPair:
        """Implements Refresh."""
        if not tokens.refresh:
            raise RevokedError("the token has expired, and there is none to refresh it")
        answer = await self._post(
            self._client.token_url, grant_type="refresh_token", refresh_token=tokens.refresh
        )
        if answer.get("error") in _DEAD:
            raise RevokedError(answer["error"])
        try:
            renewed = self._read_pair(answer)
        except LinkError as exc:
            raise ConnectionError(str(exc)) from exc
        # Whoever gives no new one lets the old one be used again. Source: RFC 6749, 6.
        return renewed if renewed.refresh else replace(renewed, refresh=tokens.refresh)

    async def request(self, method: str, url: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - httpx's own
        """Returns a JSON object that the service answers with, an error's among them."""
        title = self._client.title
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

    async def _post(self, url: str, **form: str) -> dict[str, Any]:
        client = self._client
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

    def _read_pair(self, answer: Mapping[str, Any]) -> TokenPair:
        """Raises: LinkError: there is no token in it."""
        access, refresh, lifetime_s = (
            answer.get("access_token"),
            answer.get("refresh_token"),
            answer.get("expires_in"),
        )
        if not isinstance(access, str) or not access:
            raise LinkError(self._reason(answer))
        expires_at = None
        if isinstance(lifetime_s, int | float):
            expires_at = datetime.now(UTC) + timedelta(seconds=lifetime_s)
        return TokenPair(
            access=access,
            refresh=refresh if isinstance(refresh, str) else "",
            expires_at=expires_at,
        )

    def _reason(self, answer: Mapping[str, Any]) -> str:
        client, error = self._client, str(answer.get("error") or "no reason given")[:100]
        words = {
            "access_denied": f"you have said no to it at {client.title}",
            "expired_token": "the code was not typed in in time",
            **client.words,
        }
        return words.get(error, f"{client.title} did not give a token ({error})")
