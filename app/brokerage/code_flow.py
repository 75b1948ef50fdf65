"""OAuth's authorization code flow with PKCE: a person says yes at a service, and brings back the address at which their browser ends.

Nothing needs to be reachable at that address: the code in it is worth nothing without the verifier, which stays here.

Source: RFC 6749, 4.1; RFC 7636; RFC 8707.
"""

import base64
import hashlib
import html
import secrets
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import parse_qsl, urlsplit

import httpx

from app.accounts.links import LinkError
from app.accounts.records import LinkCode, TokenPair
from app.brokerage.oauth import TIMEOUT_S, OAuthClient, TokenEndpoint

LIFETIME: Final = timedelta(minutes=10)
"""Of a link that was begun, in which the person says yes and comes back; services' own codes live no longer. Source: RFC 6749, 4.1.2."""
_AGAIN_AFTER_S: Final = 2.0
"""Where the service gave no answer."""


class CodeFlow(TokenEndpoint):
    """Sends people to one service's page, and asks for the tokens that come of the code which they bring back."""

    def __init__(
        self,
        client: OAuthClient,
        *,
        url: str,
        redirect_url: str,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """`url`: of its authorization endpoint. `redirect_url`: where browsers end, which the service knows the client by."""
        super().__init__(client, timeout_s=timeout_s)
        self._url = url
        self.redirect_url = redirect_url

    async def begin(self) -> LinkCode:
        """Returns a page of the service's to say yes at."""
        verifier, state = secrets.token_urlsafe(48), secrets.token_urlsafe(24)
        digest = hashlib.sha256(verifier.encode()).digest()
        wanted = {
            "response_type": "code",
            "client_id": self.client.client_id,
            "redirect_uri": self.redirect_url,
            "state": state,
            "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
            "scope": self.client.scope,
            "resource": self.client.resource,
        }
        said = {name: value for name, value in wanted.items() if value}
        return LinkCode(
            user_code=state,
            verification_url=str(httpx.URL(self._url).copy_merge_params(said)),
            secret=verifier,
            expires_at=datetime.now(UTC) + LIFETIME,
            interval_s=_AGAIN_AFTER_S,
        )

    async def ask(self, code: LinkCode, brought: str) -> TokenPair:
        """Returns the tokens for the address that was brought back. Raises: LinkError: there are none."""
        address = html.unescape(brought).strip("<>").partition("|")[0]
        try:
            said = dict(parse_qsl(urlsplit(address).query))
        except ValueError:  # no address at all
            said = {}
        if said.get("state") != code.user_code:
            raise LinkError("that is not the address at which the link ends that I gave you last")
        if "code" not in said:
            raise LinkError(self.reason(said))
        answer = await self.post(
            self.client.token_url,
            grant_type="authorization_code",
            code=said["code"],
            redirect_uri=self.redirect_url,
            code_verifier=code.secret,
        )
        return self.read_pair(answer)
