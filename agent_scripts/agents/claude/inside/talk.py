"""Talks with Claude Code, and prints `{"type": "heard", "id": …}` where a message has become part of the turn.

The lines of both directions (`command_lifecycle` for each message, `control_request` to interrupt) are those of version 2.1.330, seen
2026-11; its Agent SDK uses them.
"""

from __future__ import annotations

import sys
import uuid
from pathlib import Path
from typing import Any

# -I leaves the script's own folder out of the path; files keep their package layout inside the sandbox.
sys.path.insert(0, str(Path(__file__).resolve().parents[4]))

from agent_scripts.inside.messages import ToldMessages, blocks_of
from agent_scripts.inside.talking import Listener, main


class ClaudeTalk:
    """Knows which messages the CLI was told, and how far it is with each. `request` has the turn's `message`."""

    def __init__(self, listener: Listener, request: dict[str, Any]) -> None:
        self._listener = listener
        self._request = request
        self._told = ToldMessages(request["told_path"])
        self._ids: dict[str, str] = {}
        """Of messages that are not part of the turn yet."""
        self._open: set[str] = set()
        """Messages that the CLI is not through with."""
        self._is_writing = self._is_interrupted = self._has_result = self._tells_lifecycle = False

    def begin(self) -> None:
        self._say(blocks_of(self._request["message"]))

    def look(self) -> None:
        """What its model writes breaks off where a message has come, and a tool goes on to its end."""
        if self._is_over:
            self._listener.hang_up()
            return
        for message_id, text in self._told.new():
            self._say([{"type": "text", "text": text}], message_id)
        if any(self._ids.values()) and self._is_writing and not self._is_interrupted:
            self._is_interrupted = True
            request = {"type": "control_request", "request": {"subtype": "interrupt"}}
            self._listener.tell({**request, "request_id": str(uuid.uuid4())})

    def hear(self, record: dict[str, Any]) -> list[dict[str, Any]]:
        kind = record.get("type")
        if kind == "stream_event" and record.get("parent_tool_use_id") is None:
            self._note_writing(record.get("event"))
        elif kind == "result":
            self._has_result, self._is_writing = True, False
        elif kind == "command_lifecycle":
            heard = self._note_message(str(record.get("command_uuid")), record.get("state"))
            return [{"type": "heard", "id": message_id} for message_id in heard]
        return []

    def _say(self, content: list[dict[str, Any]], message_id: str = "") -> None:
        key = str(uuid.uuid4())
        self._ids[key] = message_id
        self._open.add(key)
        self._listener.tell(
            {"type": "user", "message": {"role": "user", "content": content}, "uuid": key}
        )

    def _note_writing(self, event: object) -> None:
        kind = event.get("type") if isinstance(event, dict) else None
        if kind in ("message_start", "message_stop"):
            self._is_writing, self._is_interrupted = kind == "message_start", False

    def _note_message(self, key: str, state: object) -> list[str]:
        self._tells_lifecycle = True
        if state in ("completed", "cancelled"):
            self._open.discard(key)
        elif state == "started" and (message_id := self._ids.pop(key, "")):
            return [message_id]
        return []

    @property
    def _is_over(self) -> bool:
        return self._has_result and not (self._open and self._tells_lifecycle)


if __name__ == "__main__":
    sys.exit(main(ClaudeTalk, sys.argv[1:]))
