"""OAuth's device flow: a person types a code in at a service, which need not reach any address of ours.

Source: RFC 8628.
"""

from datetime import UTC, datetime, timedelta
from typing import Final

from app.accounts.links import LinkError, Waiting
from app.accounts.records import LinkCode, TokenPair
from app.brokerage.oauth import TIMEOUT_S, OAuthClient, TokenEndpoint

_GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
_LEAST_INTERVAL_S: Final = 5.0


class DeviceFlow(TokenEndpoint):
    """Asks one service for codes, and for the tokens that come of them."""

    def __init__(self, client: OAuthClient, *, url: str, timeout_s: float = TIMEOUT_S) -> None:
        """`url`: of its device authorization endpoint."""
        super().__init__(client, timeout_s=timeout_s)
        self._url = url

    async def begin(self) -> LinkCode:
        """Asks for a code. Raises: LinkError: there is none."""
        now = datetime.now(UTC)
        answer = await self.post(self._url, scope=self.client.scope)
        try:
            return LinkCode(
                user_code=str(answer["user_code"]),
                verification_url=str(answer["verification_uri"]),
                secret=str(answer["device_code"]),
                expires_at=now + timedelta(seconds=float(answer["expires_in"])),
                interval_s=max(_LEAST_INTERVAL_S, float(answer.get("interval", 0))),
            )
        except (KeyError, TypeError, ValueError) as exc:
            raise LinkError(self.reason(answer)) from exc

    async def ask(self, code: LinkCode, brought: str) -> TokenPair | Waiting:
        """Asks whether it was typed in. Raises: LinkError: it will not be."""
        del brought  # nothing can be
        answer = await self.post(self.client.token_url, device_code=code.secret, grant_type=_GRANT)
        match answer.get("error"):
            case None:
                return self.read_pair(answer)
            case "authorization_pending":
                return Waiting(interval_s=code.interval_s)
            case "slow_down":
                wanted = answer.get("interval")
                slower = float(wanted) if isinstance(wanted, int | float) else 0.0
                return Waiting(interval_s=max(slower, code.interval_s + _LEAST_INTERVAL_S))
            case _:
                raise LinkError(self.reason(answer))
