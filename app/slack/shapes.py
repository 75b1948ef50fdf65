"""What a Slack payload must look like before Bolt or Orion reads it: names the first field that is of the wrong kind.

Bolt reads these fields without checking them and raises TypeError, KeyError or AttributeError when their kind is off.
Source: slack-bolt 1.30, request/internals.py and request/payload_utils.py, read 2026-11.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, Final

MAX_NESTING: Final = 6
"""Bolt follows `event`, `message`, `authorizations`, … recursively; Slack nests them three deep."""

TS: Final = re.compile(r"\d{1,11}\.\d{1,9}")
"""Source: Slack, message `ts`: seconds, a point, six decimals; unique in its channel, read 2026-11."""

_MAX_ID_CHARS: Final = 255
_TEXTS: Final = (
    *(
        "type",
        "team_id",
        "enterprise_id",
        "user_id",
        "channel_id",
        "thread_ts",
        "command",
        "callback_id",
    ),
    *("challenge", "event_id", "response_url", "action_id"),
)
_TEXTS_OR_OBJECTS: Final = ("team", "enterprise", "user", "channel")
_OBJECTS: Final = (
    "event",
    "message",
    "previous_message",
    "item",
    "assistant_thread",
    "function_data",
    "view",
)
_LISTS: Final = ("authorizations", "response_urls")
_MESSAGE_TEXTS: Final = (
    *("user", "channel", "channel_type", "text", "subtype", "bot_id"),
    *("user_team", "source_team", "team", "client_msg_id"),
)


def bad_field(payload: Mapping[str, Any]) -> str | None:
    """The path of the first field of a wrong kind, or None when Bolt and Orion can read the payload."""
    return next(chain(_in_carrier(payload, path="", depth=0), _in_type(payload)), None)


def _in_carrier(carrier: Mapping[str, Any], *, path: str, depth: int) -> Iterator[str]:
    if depth > MAX_NESTING:
        yield f"{path.rstrip('.')} (nested too deeply)"
        return
    for name in _TEXTS:
        if not isinstance(carrier.get(name), str | None):
            yield path + name
    for name in _TEXTS_OR_OBJECTS:
        value = carrier.get(name)
        if not isinstance(value, str | dict | None):
            yield path + name
        elif isinstance(value, dict) and not isinstance(value.get("id"), str | None):
            yield f"{path}{name}.id"
    for name in _OBJECTS:
        value = carrier.get(name)
        if isinstance(value, dict):
            yield from _in_carrier(value, path=f"{path}{name}.", depth=depth + 1)
        elif value is not None:
            yield path + name
    yield from _in_lists(carrier, path=path, depth=depth)


def _in_lists(carrier: Mapping[str, Any], *, path: str, depth: int) -> Iterator[str]:
    for name in _LISTS:
        value = carrier.get(name, [])
        if value is None and name == "authorizations":
            continue
        if not isinstance(value, list):
            yield path + name
            continue
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
    """Slack's ids are opaque, but never empty, long, or made of anything but visible ASCII."""
    return (
        isinstance(value, str)
        and 0 < len(value) <= _MAX_ID_CHARS
        and value.isascii()
        and value.isprintable()
        and " " not in value
    )
