"""Who may see the operators' page: whoever has said `ORION_OPS_TOKEN`, by a cookie that does not hold it."""

import hashlib
import hmac
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

STAYS: Final = timedelta(hours=12)
"""How long a cookie is good."""


class Door:
    """Makes and checks the cookie. A new token ends all of them."""

    def __init__(self, token: str, *, now: Callable[[], datetime]) -> None:
        self._token = token.encode()
        self._key = hashlib.sha256(b"orion operators' page\0" + self._token).digest()
        self._now = now

    def opens_to(self, token: str) -> bool:
        """Whether that is the token."""
        return hmac.compare_digest(token.encode(errors="replace"), self._token)

    def cookie(self) -> str:
        """Returns a cookie's value, good for `STAYS`: until when, and a signature of that."""
        until_s = int((self._now() + STAYS).timestamp())
        return f"{until_s}.{self._sign(until_s)}"

    def knows(self, cookie: str) -> bool:
        """Whether it made that value, not too long ago."""
        until, _, signature = cookie.partition(".")
        if not (until.isascii() and until.isdecimal() and len(until) <= 12):  # noqa: PLR2004 - digits of seconds, with room
            return False
        is_ours = hmac.compare_digest(signature.encode(), self._sign(int(until)).encode())
        return is_ours and self._now().timestamp() < int(until)

    def _sign(self, until_s: int) -> str:
        return hmac.new(self._key, str(until_s).encode(), hashlib.sha256).hexdigest()
