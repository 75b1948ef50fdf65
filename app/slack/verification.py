"""Whether an HTTP request is really Slack's, and well-formed enough that nothing behind this check can raise on it."""

import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn
from urllib.parse import parse_qsl

from app.slack.shapes import bad_field

MAX_BODY_BYTES: Final = 1_048_576
"""Events are a few kB; interactive payloads carry the whole message, at most some 100 kB."""
MAX_AGE_S: Final = 300
"""Source: Slack, "Verifying requests from Slack", replay window of five minutes, read 2026-11."""

_JSON: Final = "application/json"
_FORM: Final = "application/x-www-form-urlencoded"
_TIMESTAMP: Final = re.compile(r"[0-9]{1,12}")
_SIGNATURE: Final = re.compile(r"v0=[0-9a-f]{64}")
_SURROGATE_ESCAPE: Final = re.compile(rb"\\u[dD][89a-fA-F]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """What the caller is told: an HTTP status and a sentence naming the cause."""

    status: int
    error: str


def check_request(
    *, headers: Mapping[str, str], body: bytes, signing_secret: str, now: float
) -> Rejection | None:
    """None when the request may be handed to Bolt; `now` is in seconds since the epoch."""
    if len(body) > MAX_BODY_BYTES:
        return Rejection(status=413, error=f"body: larger than {MAX_BODY_BYTES} bytes")
    lowered = {name.lower(): value for name, value in headers.items()}
    return _check_signature(
        lowered, body=body, signing_secret=signing_secret, now=now
    ) or _check_body(lowered, body=body)


def media_type(headers: Mapping[str, str]) -> str:
    """Content type without parameters, lower case."""
    for name, value in headers.items():
        if name.lower() == "content-type":
            return value.split(";")[0].strip().lower()
    return ""


def _check_signature(
    headers: Mapping[str, str], *, body: bytes, signing_secret: str, now: float
) -> Rejection | None:
    """Source: Slack, "Verifying requests from Slack": HMAC-SHA256 over `v0:timestamp:body`, read 2026-11."""
    timestamp = headers.get("x-slack-request-timestamp", "")
    signature = headers.get("x-slack-signature", "")
    if not timestamp or not signature:
        return Rejection(status=401, error="signature: missing")
    if not _TIMESTAMP.fullmatch(timestamp) or not _SIGNATURE.fullmatch(signature):
        return Rejection(status=401, error="signature: malformed")
    if abs(now - int(timestamp)) > MAX_AGE_S:
        return Rejection(status=401, error=f"signature: older than {MAX_AGE_S} s")
    base = f"v0:{timestamp}:".encode() + body
    expected = "v0=" + hmac.new(signing_secret.encode(), base, hashlib.sha256).hexdigest()
    if not signing_secret or not hmac.compare_digest(expected, signature):
        return Rejection(status=401, error="signature: wrong")
    return None


def _check_body(headers: Mapping[str, str], *, body: bytes) -> Rejection | None:
    try:
        payload = _parse(body, media_type=media_type(headers))
    except (ValueError, RecursionError) as exc:
        return Rejection(status=400, error=f"body: {_reason(exc)}")
    if not isinstance(payload, dict):
        return Rejection(status=400, error="body: not a JSON object")
    if not isinstance(payload.get("type"), str) and "command" not in payload:
        return Rejection(status=400, error="type: missing or of the wrong kind")
    if field := bad_field(payload):
        return Rejection(status=400, error=f"{field}: missing or of the wrong kind")
    return None


def _parse(body: bytes, *, media_type: str) -> Any:  # noqa: ANN401 - a foreign payload
    if media_type not in (_JSON, _FORM):
        message = "content type must be JSON or form"
        raise ValueError(message)
    text = body.decode()
    # Bolt takes whatever starts with a brace for JSON. Source: slack-bolt 1.30, request/internals.py, parse_body.
    if media_type == _JSON or text.startswith("{"):
        return _parse_json(text)
    fields = dict(parse_qsl(text, keep_blank_values=True, max_num_fields=100))
    if "payload" in fields:
        return _parse_json(fields["payload"])
    return fields


def _parse_json(text: str) -> Any:  # noqa: ANN401 - a foreign payload
    payload = json.loads(text, parse_constant=_refuse_constant)
    if _SURROGATE_ESCAPE.search(text.encode()):
        # Half a surrogate pair is legal JSON, but can be neither stored nor logged as UTF-8.
        json.dumps(payload, ensure_ascii=False).encode()
    return payload


def _refuse_constant(name: str) -> NoReturn:
    message = f"{name} is not JSON"
    raise ValueError(message)


def _reason(exc: Exception) -> str:
    """Never the exception's own words where those would repeat the body."""
    if isinstance(exc, RecursionError):
        return "nested too deeply"
    if isinstance(exc, UnicodeError):
        return "not UTF-8"
    if isinstance(exc, json.JSONDecodeError):
        return f"not JSON (character {exc.pos})"
    message = str(exc)
    return message if message.isascii() and len(message) < 60 else "not readable"  # noqa: PLR2004
