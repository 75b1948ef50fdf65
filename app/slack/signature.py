"""Which requests and payloads are let in: signed by Slack, fresh, small, and of the shape that Bolt and Orion read.

Bolt reads fields without checking them and raises TypeError, KeyError or AttributeError when their kind is off; nothing behind
this check may raise on a request. Source: slack-bolt 1.30, request/internals.py and request/payload_utils.py, read 2026-11.
"""

import hashlib
import hmac
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from types import UnionType
from typing import Any, Final, NoReturn
from urllib.parse import parse_qsl

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
class Refusal:
    """Answers a request that is not taken: an HTTP status and a sentence naming the cause."""

    status: int
    error: str


def check_request(
    *, headers: Mapping[str, str], body: bytes, signing_secret: str, now: float
) -> Refusal | None:
    """Returns None when the request may be handed to Bolt; `now` is in seconds since the epoch."""
    if len(body) > MAX_BODY_BYTES:
        return Refusal(status=413, error=f"body: larger than {MAX_BODY_BYTES} bytes")
    lowered = {name.lower(): value for name, value in headers.items()}
    return _check_signature(
        lowered, body=body, signing_secret=signing_secret, now=now
    ) or _check_body(lowered, body=body)


def media_type(headers: Mapping[str, str]) -> str:
    """Returns the content type without parameters, lower case."""
    for name, value in headers.items():
        if name.lower() == "content-type":
            return value.split(";")[0].strip().lower()
    return ""


def _check_signature(
    headers: Mapping[str, str], *, body: bytes, signing_secret: str, now: float
) -> Refusal | None:
    """Source: Slack, "Verifying requests from Slack": HMAC-SHA256 over `v0:timestamp:body`, read 2026-11."""
    timestamp = headers.get("x-slack-request-timestamp", "")
    signature = headers.get("x-slack-signature", "")
    if not timestamp or not signature:
        return Refusal(status=401, error="signature: missing")
    if not _TIMESTAMP.fullmatch(timestamp) or not _SIGNATURE.fullmatch(signature):
        return Refusal(status=401, error="signature: malformed")
    if abs(now - int(timestamp)) > MAX_AGE_S:
        return Refusal(
            status=401, error=f"signature: made more than {MAX_AGE_S} s before or after now"
        )
    base = f"v0:{timestamp}:".encode() + body
    expected = "v0=" + hmac.new(signing_secret.encode(), base, hashlib.sha256).hexdigest()
    if not signing_secret or not hmac.compare_digest(expected, signature):
        return Refusal(status=401, error="signature: wrong")
    return None


def _check_body(headers: Mapping[str, str], *, body: bytes) -> Refusal | None:
    try:
        payload = _parse(body, media_type=media_type(headers))
    except (ValueError, RecursionError) as exc:
        return Refusal(status=400, error=f"body: {_reason(exc)}")
    if not isinstance(payload, dict):
        return Refusal(status=400, error="body: not a JSON object")
    if not isinstance(payload.get("type"), str) and "command" not in payload:
        return Refusal(status=400, error="type: missing or of the wrong kind")
    if field := bad_field(payload):
        return Refusal(status=400, error=f"{field}: missing or of the wrong kind")
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
    payload = _JSON_DECODER.decode(text)
    if _SURROGATE_ESCAPE.search(text.encode()):
        # Half a surrogate pair is legal JSON, but can be neither stored nor logged as UTF-8.
        json.dumps(payload, ensure_ascii=False).encode()
    return payload


def _refuse_constant(name: str) -> NoReturn:
    message = f"{name} is not JSON"
    raise ValueError(message)


_JSON_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant)


def _reason(exc: Exception) -> str:
    """Returns never the exception's own words where those would repeat the body."""
    if isinstance(exc, RecursionError):
        return "nested too deeply"
    if isinstance(exc, UnicodeError):
        return "not UTF-8"
    if isinstance(exc, json.JSONDecodeError):
        return f"not JSON (character {exc.pos})"
    message = str(exc)
    return message if message.isascii() and len(message) < 60 else "not readable"  # noqa: PLR2004


MAX_NESTING: Final = 6
"""Bolt follows `event`, `message`, `authorizations`, … recursively; Slack nests them three deep."""

TS: Final = re.compile(r"\d{1,11}\.\d{1,9}")
"""Source: Slack, message `ts`: seconds, a point, six decimals; unique in its channel, read 2026-11."""

_MAX_ID_CHARS: Final = 255
_TEXTS: Final = (
    *("type", "team_id", "enterprise_id", "user_id", "channel_id", "thread_ts", "command"),
    *("callback_id", "challenge", "event_id", "response_url", "action_id"),
)
_TEXTS_OR_OBJECTS: Final = ("team", "enterprise", "user", "channel")
_OBJECTS: Final = frozenset(
    {
        *("event", "message", "previous_message", "item", "assistant_thread"),
        *("function_data", "view"),
    }
)
_KINDS: Final[Mapping[str, type | UnionType]] = {
    **dict.fromkeys(_TEXTS, str),
    **dict.fromkeys(_TEXTS_OR_OBJECTS, str | dict),
    **dict.fromkeys(_OBJECTS, dict),
}
_LISTS: Final = frozenset(("authorizations", "response_urls"))
_MESSAGE_TEXTS: Final = (
    *("user", "channel", "channel_type", "text", "subtype", "bot_id"),
    *("user_team", "source_team", "team", "client_msg_id"),
)


def bad_field(payload: Mapping[str, Any]) -> str | None:
    """Returns the path of the first field of a wrong kind, or None when Bolt and Orion can read the payload."""
    return next(chain(_in_carrier(payload, path="", depth=0), _in_type(payload)), None)


def _in_carrier(carrier: Mapping[str, Any], *, path: str, depth: int) -> Iterator[str]:
    if depth > MAX_NESTING:
        yield f"{path.rstrip('.')} (nested too deeply)"
        return
    # By what is there, which is much less than what there may be.
    for name, value in carrier.items():
        if name in _LISTS:
            yield from _in_list(name, value, path=path, depth=depth)
        elif value is None or name not in _KINDS:
            continue
        elif not isinstance(value, _KINDS[name]):
            yield path + name
        elif isinstance(value, dict) and name in _OBJECTS:
            yield from _in_carrier(value, path=f"{path}{name}.", depth=depth + 1)
        elif isinstance(value, dict) and not isinstance(value.get("id"), str | None):
            yield f"{path}{name}.id"


def _in_list(name: str, value: object, *, path: str, depth: int) -> Iterator[str]:
    if not isinstance(value, list):
        if value is not None or name != "authorizations":
            yield path + name
        return
    for index, item in enumerate(value):
        place = f"{path}{name}[{index}]"
        if isinstance(item, dict):
            yield from _in_carrier(item, path=f"{place}.", depth=depth + 1)
        else:
            yield place


def _in_type(payload: Mapping[str, Any]) -> Iterator[str]:
    kind = payload.get("type")
    if kind == "event_callback":
        yield from _in_event(payload.get("event"))
    elif kind in ("block_actions", "interactive_message"):
        yield from _in_actions(payload)
    elif kind == "url_verification" and not isinstance(payload.get("challenge"), str):
        yield "challenge"


def _in_event(event: object) -> Iterator[str]:
    if not isinstance(event, dict):
        yield "event"
        return
    if not isinstance(event.get("type"), str):
        yield "event.type"
    if event.get("type") in ("app_mention", "message"):
        yield from _in_message(event)


def _in_message(event: Mapping[str, Any]) -> Iterator[str]:
    for name in _MESSAGE_TEXTS:
        if not isinstance(event.get(name), str | None):
            yield f"event.{name}"
    if not isinstance(event.get("files"), list | None):
        yield "event.files"
    for name in ("user", "channel"):
        if (value := event.get(name)) is not None and not is_id(value):
            yield f"event.{name}"
    for name in ("ts", "thread_ts"):
        value = event.get(name)
        if value is not None and not (isinstance(value, str) and TS.fullmatch(value)):
            yield f"event.{name}"


def _in_actions(payload: Mapping[str, Any]) -> Iterator[str]:
    actions = payload.get("actions")
    if not isinstance(actions, list) or not actions:
        yield "actions"
        return
    for index, action in enumerate(actions):
        if not isinstance(action, dict):
            yield f"actions[{index}]"
            continue
        for name in ("action_id", "block_id", "type", "value", "name"):
            if not isinstance(action.get(name), str | None):
                yield f"actions[{index}].{name}"
    if not isinstance(payload.get("container"), dict | None):
        yield "container"


def is_id(value: object) -> bool:
    """Whether it is an id of Slack's: opaque, but never empty, long, or made of anything but visible ASCII."""
    return (
        isinstance(value, str)
        and 0 < len(value) <= _MAX_ID_CHARS
        and value.isascii()
        and value.isprintable()
        and " " not in value
    )
