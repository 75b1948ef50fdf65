"""How a person links their GitHub account: by the device flow of the operator's GitHub App.

Source: GitHub, "Generating a user access token for a GitHub App", device flow, and "Refreshing user access tokens", read 2026-11.
"""

from typing import Final

from app.accounts.links import LinkError
from app.accounts.records import GITHUB, Account, TokenPair
from app.brokerage.device_flow import DeviceFlow
from app.brokerage.github_api import api_headers
from app.brokerage.oauth import TIMEOUT_S, OAuthClient

_MAX_LOGIN_CHARS: Final = 100
_WORDS: Final = {
    "device_flow_disabled": "the operator's GitHub App has the device flow switched off",
    "incorrect_client_credentials": "GitHub does not know the operator's GitHub App",
}


class GitHubLogin(DeviceFlow):
    """Implements Login, for one GitHub App."""

    service = GITHUB
    title = "GitHub"
    promise = "what I push for you is pushed as you"
    returns_to = ""

    def __init__(
        self, *, client_id: str, url: str, api_url: str, timeout_s: float = TIMEOUT_S
    ) -> None:
        """`url`: GitHub's, or that of a GitHub Enterprise Server."""
        url = url.rstrip("/")
        client = OAuthClient(
            title=self.title,
            token_url=f"{url}/login/oauth/access_token",
            client_id=client_id,
            words=_WORDS,
        )
        super().__init__(client, url=f"{url}/login/device/code", timeout_s=timeout_s)
        self._api_url = api_url.rstrip("/")

    async def account_of(self, tokens: TokenPair) -> Account:
        headers = api_headers(tokens.access)
        found = await self.request("GET", f"{self._api_url}/user", headers=headers)
        number, login = found.get("id"), found.get("login")
        if not isinstance(number, int) or not isinstance(login, str) or not login:
            raise LinkError("GitHub does not say whose account it is")
        return Account(
            service=GITHUB, id=str(number), login=login[:_MAX_LOGIN_CHARS], tokens=tokens
        )
