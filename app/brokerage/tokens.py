"""Run tokens: what a sandbox holds where a key would be. Signed, so any worker can check one, also after a restart."""

import hashlib
import hmac
import json
import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from app.runs.broker_ports import ModelGrant
from app.runs.git_token import GIT_PREFIX, MAC_BYTES, RUN_PREFIX, decode, encode, git_mac
from app.runs.model import RunId

PREFIX = RUN_PREFIX


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
    return PREFIX + encode(_mac(key, payload) + payload)


def read_token(key: bytes, token: str) -> ModelGrant:
    """The grant in a token; whether it is still valid is for the caller to say.

    Raises:
        InvalidTokenError
    """
    return _read(token, PREFIX, lambda payload: _mac(key, payload))


def read_git_token(key: bytes, token: str) -> ModelGrant:
    """The same for what `runs.git_token` makes of one.

    Raises:
        InvalidTokenError
    """
    return _read(token, GIT_PREFIX, lambda payload: git_mac(_mac(key, payload)))


def _read(token: str, prefix: str, mac_of: Callable[[bytes], bytes]) -> ModelGrant:
    try:
        raw = decode(token.removeprefix(prefix))
    except ValueError:
        raise InvalidTokenError("not a run token") from None
    mac, payload = raw[:MAC_BYTES], raw[MAC_BYTES:]
    if not token.startswith(prefix) or not hmac.compare_digest(mac, mac_of(payload)):
        raise InvalidTokenError("not a run token")
    fields = json.loads(payload)
    expires_at = datetime.fromtimestamp(fields["e"], UTC)
    return ModelGrant(run_id=RunId(fields["r"]), models=tuple(fields["m"]), expires_at=expires_at)


def _mac(key: bytes, payload: bytes) -> bytes:
    return hmac.new(key, payload, hashlib.sha256).digest()
