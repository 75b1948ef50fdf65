"""Talks with Codex's `app-server`: begins or resumes its thread, tells it the turn, and what comes while it works.

Methods and shapes are those of version 0.169.0, which writes their schema itself (`codex app-server generate-json-schema`), run 2026-11.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

# -I leaves the script's own folder out of the path; files keep their package layout inside the sandbox.
sys.path.insert(0, str(Path(__file__).resolve().parents[4]))

from agent_scripts.inside.messages import ToldMessages, clean
from agent_scripts.inside.talking import Listener, main

_UNREAD = (
    *("item/commandExecution/outputDelta", "item/fileChange/patchUpdated", "turn/diff/updated"),
    *("account/rateLimits/updated", "thread/tokenUsage/updated", "remoteControl/status/changed"),
    *("thread/started", "thread/status/changed"),
)
"""What is told a second time, or is not shown. That its model thinks is told: else it would seem to be idle."""
_NOBODY_HERE = {"code": -32601, "message": "nobody is here to be asked"}
_NONE_YET = {"code": -32600, "message": "no rollout found: there is no thread yet"}
"""In the CLI's own words for a thread that is not there."""


class CodexTalk:
    """Knows what was asked of the server and what it has answered.

    `request` has the turn's `text` and paths of `images`, the thread's `options`, `resume` (its id; `""` is the newest one, None a
    new one), and `rules`: the directory where an earlier turn may have left rules for this one.
    """

    def __init__(self, listener: Listener, request: dict[str, Any]) -> None:
        self._listener = listener
        self._request = request
        self._told = ToldMessages(request["told_path"])
        self._asked: dict[object, str] = {}
        """Methods that are not answered yet, by the number of the request."""
        self._number = 0
        self._thread_id = self._turn_id = ""
        self._is_over = False

    def begin(self) -> None:
        shutil.rmtree(self._request["rules"], ignore_errors=True)
        capabilities = {"optOutNotificationMethods": list(_UNREAD)}
        client = {"name": "orion", "version": "1"}
        self._ask("initialize", {"clientInfo": client, "capabilities": capabilities})

    def look(self) -> None:
        """A message breaks off what its model writes, or is heard behind the tool that goes; the server says when."""
        if self._is_over:
            self._listener.hang_up()
        elif self._turn_id:
            for message_id, text in self._told.new():
                ids = {"threadId": self._thread_id, "expectedTurnId": self._turn_id}
                said = {
                    "clientUserMessageId": message_id,
                    "input": [{"type": "text", "text": text}],
                }
                self._ask("turn/steer", {**ids, **said})

    def hear(self, record: dict[str, Any]) -> list[dict[str, Any]]:
        if "method" in record:
            if "id" in record:
                self._listener.tell({"id": record["id"], "error": _NOBODY_HERE})
            elif record["method"] == "turn/completed":
                self._is_over = True
            return []
        method = self._asked.pop(record.get("id"), None)
        if "result" in record:
            return self._go_on(method, record["result"])
        # Without an answer to any of the others there is no turn; a message that came too late has its own.
        self._is_over = self._is_over or method not in (None, "turn/steer")
        return []

    def _go_on(self, method: str | None, result: dict[str, Any]) -> list[dict[str, Any]]:
        if method == "initialize":
            self._listener.tell({"method": "initialized"})
            self._open_thread()
        elif method == "thread/list":
            newest = [thread["id"] for thread in result["data"][:1]]
            if not newest:
                self._is_over = True
                return [{"id": 0, "error": _NONE_YET}]
            self._resume(newest[0])
        elif method in ("thread/start", "thread/resume"):
            self._thread_id = result["thread"]["id"]
            images = [{"type": "localImage", "path": path} for path in self._request["images"]]
            said = [*images, {"type": "text", "text": clean(self._request["text"])}]
            self._ask("turn/start", {"threadId": self._thread_id, "input": said})
        elif method == "turn/start":
            self._turn_id = result["turn"]["id"]
        return []

    def _open_thread(self) -> None:
        wanted = self._request["resume"]
        if wanted is None:
            self._ask("thread/start", self._request["options"])
        elif wanted:
            self._resume(wanted)
        else:
            kinds = ["appServer", "exec", "vscode"]
            query = {"limit": 1, "sortKey": "updated_at", "sourceKinds": kinds}
            self._ask("thread/list", {**query, "cwd": str(Path.cwd())})

    def _resume(self, thread_id: str) -> None:
        options = {**self._request["options"], "excludeTurns": True}
        self._ask("thread/resume", {**options, "threadId": thread_id})

    def _ask(self, method: str, params: dict[str, Any]) -> None:
        self._number += 1
        self._asked[self._number] = method
        self._listener.tell({"id": self._number, "method": method, "params": params})


if __name__ == "__main__":
    sys.exit(main(CodexTalk, sys.argv[1:]))
