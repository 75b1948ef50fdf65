"""What an agent's git holds: made from the run token, of which it is the part that is good for git alone."""

import base64
import hashlib
import hmac

RUN_PREFIX = "sk-ant-orion-"
"""Shaped like the key it stands for: some SDKs look at the shape, and maskers know it."""
GIT_PREFIX = f"{RUN_PREFIX}git-"
MAC_BYTES = 32
_PURPOSE = b"git"


def git_token(run_token: str) -> str:
    """Whoever has it cannot make the run token of it, and asks no model. Text of another form stays as it is."""
    try:
        raw = decode(run_token.removeprefix(RUN_PREFIX))
    except ValueError:
        return run_token
    return GIT_PREFIX + encode(git_mac(raw[:MAC_BYTES]) + raw[MAC_BYTES:])


def git_mac(run_mac: bytes) -> bytes:
    """Of the same payload, one way."""
    return hmac.new(run_mac, _PURPOSE, hashlib.sha256).digest()


def encode(raw: bytes) -> str:
    """As text that fits in a header."""
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def decode(text: str) -> bytes:
    """Raises: ValueError."""
    encoded = text.encode("ascii")
    return base64.urlsafe_b64decode(encoded + b"=" * (-len(encoded) % 4))
