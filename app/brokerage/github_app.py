"""Tokens of a GitHub App's installations: the deployment's own right, for one repository each, and for an hour.

Source: GitHub, "Authenticating as a GitHub App", "Generating an installation access token for a GitHub App", read 2026-11.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import httpx

from app.brokerage.github_api import api_headers
from app.brokerage.http import trusted
from app.log import get_logger

TIMEOUT_S: Final = 10.0
EARLY: Final = timedelta(minutes=5)
"""A token is replaced so long before it expires."""
UNKNOWN_FOR: Final = timedelta(minutes=1)
"""So long it is believed that the App is not installed somewhere."""
PERMISSIONS: Final = {
    "contents": "write",
    "pull_requests": "write",
    "checks": "read",
    "statuses": "read",
}
"""Of each token, whatever else the App may do."""
_JWT_LIFE: Final = timedelta(minutes=9)
"""GitHub takes ten minutes at most, and clocks differ."""
_SKEW: Final = timedelta(seconds=60)
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Token:
    token: str = field(repr=False)
    """Empty: the App is not installed there."""
    until: datetime


class AppTokens:
    """Kept in memory only."""

    def __init__(
        self,
        *,
        client_id: str,
        private_key: str,
        api_url: str,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`private_key`: PEM, as GitHub gives it."""
        self._client_id = client_id
        self._private_key = private_key
        self._api_url = api_url.rstrip("/")
        self._now = now
        self._tokens: dict[str, _Token] = {}
        self._asking: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def of(self, name: str) -> str:
        """Returns a token for the repository `owner/name` alone, good for minutes; empty = the App is not installed there.

        Raises:
            ConnectionError: GitHub gives none now; the message says why, and holds no secret.
        """
        async with self._asking[name.lower()]:
            known = self._tokens.get(name.lower())
            if known is None or known.until <= self._now():
                known = self._tokens[name.lower()] = await self._ask(name)
        return known.token

    async def _ask(self, name: str) -> _Token:
        try:
            async with httpx.AsyncClient(
                verify=trusted(),
                headers=api_headers(self._signed()),
                timeout=TIMEOUT_S,
                follow_redirects=True,  # a repository that was renamed
            ) as http:
                found = await http.get(f"{self._api_url}/repos/{name}/installation")
                if found.status_code == httpx.codes.NOT_FOUND:
                    return _Token(token="", until=self._now() + UNKNOWN_FOR)
                url = f"{self._api_url}/app/installations/{_read(found)['id']}/access_tokens"
                wanted = {"repositories": [name.partition("/")[2]]}
                made = await http.post(url, json=wanted | {"permissions": PERMISSIONS})
                if made.status_code == httpx.codes.UNPROCESSABLE_ENTITY:  # it has not all of them
                    made = await http.post(url, json=wanted)
            given = _read(made)
            until = datetime.fromisoformat(str(given["expires_at"])) - EARLY
            _log.info("github_app.token", repo=name)
            return _Token(token=str(given["token"]), until=until)
        except httpx.HTTPStatusError as exc:
            status = exc.response.status_code
            raise ConnectionError(f"GitHub gives my App no token (HTTP {status})") from exc
        except (httpx.HTTPError, KeyError, TypeError, ValueError) as exc:
            raise ConnectionError(f"GitHub gives my App no token ({type(exc).__name__})") from exc

    def _signed(self) -> str:
        """Returns the JWT by which the App says who it is."""
        import jwt  # noqa: PLC0415 - for those who have an App

        now = self._now()
        claims = {"iat": now - _SKEW, "exp": now + _JWT_LIFE, "iss": self._client_id}
        return jwt.encode(claims, self._private_key, algorithm="RS256")


def _read(answer: httpx.Response) -> dict[str, Any]:
    """Returns the object of a good answer. Raises: httpx.HTTPStatusError, ValueError."""
    answer.raise_for_status()
    found = answer.json()
    if not isinstance(found, dict):
        raise TypeError("no object")
    return found
