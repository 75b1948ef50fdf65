"""How a person links their GitHub account: a code that they type in at GitHub, without an address of ours that GitHub could reach; and how its tokens are refreshed.

Source: GitHub, "Generating a user access token for a GitHub App", device flow, and "Refreshing user access tokens", read 2026-11.
"""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import httpx

from app.accounts.links import DeviceCode, LinkError, Waiting
from app.accounts.records import Account, Service, TokenPair
from app.accounts.tokens import RevokedError
from app.brokerage.github_api import api_headers
from app.brokerage.http import trusted

TIMEOUT_S: Final = 10.0
_GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
_LEAST_INTERVAL_S: Final = 5.0
_MAX_LOGIN_CHARS: Final = 100
_LATER: Final = (403, 429)
"""Its limits. Source: GitHub REST API, "Rate limits", read 2026-11."""
_DEAD: Final = ("bad_refresh_token", "invalid_grant")
"""Errors of a pair that makes no more tokens."""
_WORDS: Final = {
    "access_denied": "you have said no to it at GitHub",
    "expired_token": "the code was not typed in in time",
    "device_flow_disabled": "the operator's GitHub App has the device flow switched off",
    "incorrect_client_credentials": "GitHub does not know the operator's GitHub App",
}


class GitHubLogin:
    """Implements Login, for one GitHub App."""

    def __init__(
        self, *, client_id: str, url: str, api_url: str, timeout_s: float = TIMEOUT_S
    ) -> None:
        """`url`: GitHub's, or that of a GitHub Enterprise Server."""
        self._client_id = client_id
        self._url = url.rstrip("/")
        self._api_url = api_url.rstrip("/")
        self._timeout_s = timeout_s

    async def begin(self) -> DeviceCode:
        """Asks for a code. Raises: LinkError: GitHub gives none. ConnectionError: it does not answer."""
        now = datetime.now(UTC)
        answer = await self._post("/login/device/code", {"client_id": self._client_id})
        try:
            return DeviceCode(
                user_code=str(answer["user_code"]),
                verification_url=str(answer["verification_uri"]),
                device_code=str(answer["device_code"]),
                expires_at=now + timedelta(seconds=float(answer["expires_in"])),
                interval_s=max(_LEAST_INTERVAL_S, float(answer.get("interval", 0))),
            )
        except (KeyError, TypeError, ValueError) as exc:
            raise LinkError(_reason(answer)) from exc

    async def ask(self, code: DeviceCode) -> TokenPair | Waiting:
        """Asks whether it was typed in. Raises: LinkError: it will not be. ConnectionError: GitHub does not answer."""
        answer = await self._post(
            "/login/oauth/access_token",
            {"client_id": self._client_id, "device_code": code.device_code, "grant_type": _GRANT},
        )
        match answer.get("error"):
            case None:
                return _read_pair(answer)
            case "authorization_pending":
                return Waiting(interval_s=code.interval_s)
            case "slow_down":
                wanted = answer.get("interval")
                slower = float(wanted) if isinstance(wanted, int | float) else 0.0
                return Waiting(interval_s=max(slower, code.interval_s + _LEAST_INTERVAL_S))
            case _:
                raise LinkError(_reason(answer))

    async def account_of(self, tokens: TokenPair) -> Account:
        """Returns whose tokens these are. Raises: LinkError, ConnectionError."""
        headers = api_headers(tokens.access)
        found = await self._request("GET", f"{self._api_url}/user", headers=headers)
        number, login = found.get("id"), found.get("login")
        if not isinstance(number, int) or not isinstance(login, str) or not login:
            raise LinkError("GitHub does not say whose account it is")
        return Account(
            service=Service.GITHUB, id=str(number), login=login[:_MAX_LOGIN_CHARS], tokens=tokens
        )

    async def refresh(self, tokens: TokenPair) -> TokenPair:
        """Implements Refresh."""
        if not tokens.refresh:
            raise RevokedError("the token has expired, and there is none to refresh it")
        answer = await self._post(
            "/login/oauth/access_token",
            {
                "client_id": self._client_id,
                "grant_type": "refresh_token",
                "refresh_token": tokens.refresh,
            },
        )
        if answer.get("error") in _DEAD:
            raise RevokedError(answer["error"])
        try:
            return _read_pair(answer)
        except LinkError as exc:
            raise ConnectionError(str(exc)) from exc

    async def _post(self, path: str, form: dict[str, str]) -> dict[str, Any]:
        return await self._request(
            "POST", f"{self._url}{path}", headers={"accept": "application/json"}, data=form
        )

    async def _request(self, method: str, url: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - httpx's own
        try:
            async with (
                asyncio.timeout(2 * self._timeout_s),  # httpx's is for each read
                httpx.AsyncClient(verify=trusted(), timeout=self._timeout_s) as http,
            ):
                answer = await http.request(method, url, **more)
                found = answer.json()
        except (TimeoutError, httpx.HTTPError, ValueError) as exc:
            raise ConnectionError(f"GitHub gave no answer: {type(exc).__name__}") from exc
        if not isinstance(found, dict):
            raise ConnectionError("GitHub gave no answer of its API")
        if answer.is_server_error or answer.status_code in _LATER:
            raise ConnectionError(f"GitHub is not well (HTTP {answer.status_code})")
        return found


def _read_pair(answer: dict[str, Any]) -> TokenPair:
    """Raises: LinkError: there is no token in it."""
    access, refresh, lifetime_s = (
        answer.get("access_token"),
        answer.get("refresh_token"),
        answer.get("expires_in"),
    )
    if not isinstance(access, str) or not access:
        raise LinkError(_reason(answer))
    expires_at = None
    if isinstance(lifetime_s, int | float):
        expires_at = datetime.now(UTC) + timedelta(seconds=lifetime_s)
    return TokenPair(
        access=access, refresh=refresh if isinstance(refresh, str) else "", expires_at=expires_at
    )


def _reason(answer: dict[str, Any]) -> str:
    error = str(answer.get("error") or "no reason given")[:100]
    return _WORDS.get(error, f"GitHub did not give a token ({error})")
