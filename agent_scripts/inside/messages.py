"""What an agent inside the sandbox is asked and told: a message's blocks for the Messages API, and what comes while it works.

Standard library only, and nothing newer than Python 3.9.
"""

from __future__ import annotations

import base64
import contextlib
import json
from pathlib import Path
from typing import Any

_PICTURE_BYTES, _PICTURES_BYTES = 3_750_000, 20_000_000
"""One picture, and all of a request. Source: Anthropic Messages API, "Vision": 5 MB each in base64, 32 MB a request; read 2026-11."""


def clean(text: str) -> str:
    """Returns the same text with lone surrogates, which no UTF-8 request can carry, replaced."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def blocks_of(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the blocks of a message with `text` and `images`: its pictures, the first ones as long as they fit, and its text, which names their files."""
    pictures, room = [], _PICTURES_BYTES
    for image in message["images"]:
        picture = Path(image["path"])
        try:
            size = picture.stat().st_size
            data = picture.read_bytes() if 0 < size <= min(_PICTURE_BYTES, room) else b""
        except OSError:  # the agent has removed it in an earlier turn
            data = b""
        if data:
            room -= len(data)
            encoded = base64.b64encode(data).decode()
            source = {"type": "base64", "media_type": image["media_type"], "data": encoded}
            pictures.append({"type": "image", "source": source})
    return [*pictures, {"type": "text", "text": clean(message["text"])}]


class ToldMessages:
    """Finds the messages that an agent is told while it works: files `ID.json` in a directory, which may come later."""

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)
        self._known: set[str] = set()

    def new(self) -> list[tuple[str, str]]:
        """Returns id and text of each that was not returned before; one that is not written whole yet comes at the next look."""
        found = []
        for path in sorted(self._directory.glob("*.json")):
            if path.name not in self._known:
                with contextlib.suppress(OSError, ValueError, KeyError):
                    found.append((path.stem, clean(json.loads(path.read_text("utf-8"))["text"])))
                    self._known.add(path.name)
        return found
