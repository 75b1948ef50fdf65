"""Talks with Claude Code over its stdin and stdout: the turn's message first, and what it is told while it works.

Usage: `python3 -I talk.py REQUEST.json COMMAND…`; prints what the CLI prints, with `{"type": "heard", "id": …}` where a message has
become part of the turn, and exits as the CLI does. Standard library only, and nothing newer than Python 3.9: this runs on whatever
`python3` the sandbox has.

The lines of both directions (`command_lifecycle` for each message, `control_request` to interrupt) are those of version 2.1.330, seen
2026-11; its Agent SDK uses them.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

# -I leaves the script's own folder out of the path; files keep their package layout inside the sandbox.
sys.path.insert(0, str(Path(__file__).resolve().parents[4]))

from agent_scripts.inside.messages import ToldMessages, blocks_of

_LOOK_S = 0.1
_CHUNK_BYTES = 64 * 1024


class Talk:
    """Knows which messages the CLI was told, and how far it is with each."""

    def __init__(self, process: subprocess.Popen[bytes], told: ToldMessages) -> None:
        self._process = process
        self._told = told
        self._ids: dict[str, str] = {}
        """Of messages that are not part of the turn yet."""
        self._open: set[str] = set()
        """Messages that the CLI is not through with."""
        self._is_writing = self._is_interrupted = self._has_result = self._tells_lifecycle = False

    def say(self, content: list[dict[str, Any]], message_id: str = "") -> None:
        """Tells it a message."""
        key = str(uuid.uuid4())
        self._ids[key] = message_id
        self._open.add(key)
        self._write({"type": "user", "message": {"role": "user", "content": content}, "uuid": key})

    def look(self) -> None:
        """Tells it what has come meanwhile; what its model writes breaks off then, and a tool goes on to its end."""
        if self._is_over:
            self.hang_up()
            return
        for message_id, text in self._told.new():
            self.say([{"type": "text", "text": text}], message_id)
        if any(self._ids.values()) and self._is_writing and not self._is_interrupted:
            self._is_interrupted = True
            request = {"type": "control_request", "request": {"subtype": "interrupt"}}
            self._write({**request, "request_id": str(uuid.uuid4())})

    def hear(self, line: bytes) -> list[str]:
        """Reads a line of the CLI; returns the messages that are part of the turn from there on."""
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            return []
        kind = record.get("type") if isinstance(record, dict) else None
        if kind == "stream_event" and record.get("parent_tool_use_id") is None:
            self._note_writing(record.get("event"))
        elif kind == "result":
            self._has_result, self._is_writing = True, False
        elif kind == "command_lifecycle":
            return self._note_message(str(record.get("command_uuid")), record.get("state"))
        return []

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

    def hang_up(self) -> None:
        """The CLI ends when it can be told no more."""
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()

    def _write(self, record: dict[str, Any]) -> None:
        with contextlib.suppress(OSError, ValueError):  # it has ended, and its exit code says why
            if self._process.stdin is not None:
                self._process.stdin.write(json.dumps(record).encode() + b"\n")
                self._process.stdin.flush()


def main(request_path: str, argv: list[str]) -> int:
    """Runs the CLI; returns its exit code."""
    request = json.loads(Path(request_path).read_text("utf-8"))
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        # Asked to stop, the CLI still says where it was.
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        talk = Talk(process, ToldMessages(request["told_path"]))
        talk.say(blocks_of(request["message"]))
        _relay(process, talk)
        talk.hang_up()  # here, where what it has not read is no error
        process.wait()
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _relay(process: subprocess.Popen[bytes], talk: Talk) -> None:
    """Prints the CLI's lines as they come, until it closes its output."""
    assert process.stdout is not None  # noqa: S101 - a pipe
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            if selector.select(_LOOK_S):
                data = os.read(process.stdout.fileno(), _CHUNK_BYTES)
                if not data:
                    _print(pending)
                    return
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    _print(line + b"\n")
                    for message_id in talk.hear(line):
                        _print(json.dumps({"type": "heard", "id": message_id}).encode() + b"\n")
            talk.look()


def _print(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
