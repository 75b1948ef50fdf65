"""Run tokens: what a sandbox holds where a key would be. Signed, so any worker can check one, also after a restart."""

import base64
import hashlib
import hmac
import json
import secrets
from datetime import UTC, datetime
from pathlib import Path

from app.runs.model import RunId
from app.runs.ports import ModelGrant

PREFIX = "sk-ant-orion-"
"""Shaped like the key it stands for: some SDKs look at the shape, and maskers know it."""
_MAC_BYTES = 32


class InvalidTokenError(Exception):
    """Not a token of ours, altered, or expired; the message says which."""


def load_signing_key(path: Path) -> bytes:
    """The key in this file (mode 0600), made on first use; the caller owns the directory alone."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = path.with_suffix(".new")
        temporary.touch(mode=0o600)
        temporary.write_bytes(secrets.token_bytes(32))
        temporary.replace(path)
    return path.read_bytes()


def create_token(key: bytes, grant: ModelGrant) -> str:
    """A token for this grant; it fits in an HTTP header."""
    payload = json.dumps(
        {"r": grant.run_id, "m": grant.models, "e": int(grant.expires_at.timestamp())}
    ).encode()
    return PREFIX + base64.urlsafe_b64encode(_mac(key, payload) + payload).decode().rstrip("=")


def read_token(key: bytes, token: str) -> ModelGrant:
    """The grant in a token; whether it is still valid is for the caller to say.

    Raises:
        InvalidTokenError
    """
    try:
        encoded = token.removeprefix(PREFIX).encode("ascii")
        raw = base64.urlsafe_b64decode(encoded + b"=" * (-len(encoded) % 4))
    except ValueError:
        raise InvalidTokenError("not a run token") from None
    mac, payload = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
    if not token.startswith(PREFIX) or not hmac.compare_digest(mac, _mac(key, payload)):
        raise InvalidTokenError("not a run token")
    fields = json.loads(payload)
    expires_at = datetime.fromtimestamp(fields["e"], UTC)
    return ModelGrant(run_id=RunId(fields["r"]), models=tuple(fields["m"]), expires_at=expires_at)


def _mac(key: bytes, payload: bytes) -> bytes:
    return hmac.new(key, payload, hashlib.sha256).digest()
