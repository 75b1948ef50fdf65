"""Fields of Slack's payloads, which may be missing or of another type than Slack documents."""

from collections.abc import Mapping
from typing import Any

MOST_PIECES = 10_000
"""Of a rich text: each word that is bold, each link and each mention is one, in a message of 40,000 characters."""
Node = Mapping[str, Any]
"""An object of a payload."""
MOST_ENTRIES = 100
"""Of a list that are looked at: twice what Slack takes of blocks, and all that it takes of attachments and rows."""


def object_of(carrier: Node, name: str) -> Node:
    """Returns a field that is an object; an empty one where it is none."""
    value = carrier.get(name)
    return value if isinstance(value, dict) else {}


def objects_of(carrier: Node, name: str, *, most: int = MOST_ENTRIES) -> list[Node]:
    """Returns the objects of a field that is a list, the first of them; none where it is none."""
    value = carrier.get(name)
    entries = value[:most] if isinstance(value, list) else []
    return [entry for entry in entries if isinstance(entry, dict)]


def text_of(carrier: Node, name: str) -> str:
    """Returns a field that is a text, without null characters; an empty one where it is none."""
    value = carrier.get(name)
    return value.replace("\x00", "") if isinstance(value, str) else ""
