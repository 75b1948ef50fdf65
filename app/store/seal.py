"""Seals what people entrust Orion with, so that the database alone tells none of it."""

import json
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # 7 MiB, for those alone who keep people's keys or accounts
    from cryptography.fernet import Fernet

OWN_KEYS: Final = b"orion own keys"
ACCOUNTS: Final = b"orion accounts"
"""Purposes: what is sealed for one does not open for another."""


class Seal:
    """Seals and opens what people entrust Orion with for one purpose."""

    def __init__(self, secrets: Sequence[str], *, purpose: bytes) -> None:
        """`secrets`: random texts of 32 characters or more; the first seals, each opens what it has sealed before."""
        from cryptography.fernet import MultiFernet  # noqa: PLC0415 - see above

        self._fernet = MultiFernet([_fernet(secret, purpose) for secret in secrets])

    def close(self, place: Sequence[str], text: str) -> str:
        # With its place: a row that somebody has copied to another person's does not open there.
        return self._fernet.encrypt(json.dumps([*place, text]).encode()).decode()

    def open(self, place: Sequence[str], sealed: str) -> str:
        """Returns the text; empty where it was sealed with another secret, or for another place."""
        from cryptography.fernet import InvalidToken  # noqa: PLC0415 - see above

        try:
            *found, text = json.loads(self._fernet.decrypt(sealed.encode()))
        except InvalidToken:
            return ""
        return str(text) if found == list(place) else ""


def read_secrets(text: str) -> Sequence[str]:
    """Returns what ORION_OWN_KEYS_SECRET names: one secret, or several separated by commas, the newest first."""
    return tuple(word for part in text.split(",") if (word := part.strip()))


def _fernet(secret: str, purpose: bytes) -> "Fernet":
    from cryptography.fernet import Fernet  # noqa: PLC0415 - see above
    from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415 - see above
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415 - see above

    key = HKDF(algorithm=SHA256(), length=32, salt=None, info=purpose).derive(secret.encode())
    return Fernet(urlsafe_b64encode(key))
