"""What Codex prints with `exec --json`, read as events and an outcome.

The shapes are those of version 0.169.0, recorded in tests/data/codex. Lines and fields that are unknown give nothing, so that
older and newer versions are read as far as they agree.

Its usage is counted over all turns of a thread, so that none of it is reported as that of a model call; the broker counts
those. It tells no cost.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agent_scripts.adapter import AgentExit
from agent_scripts.cli_output import (
    AnswerText,
    Failure,
    broken_server_note,
    end_turn,
    plan_in,
    read_record,
    shown_argument,
    size_of,
    text_of,
    told_session,
)
from agent_scripts.events import (
    AgentErrorCode,
    AgentEvent,
    ToolFinished,
    ToolStarted,
    TurnFinished,
)

_NO_SESSION = re.compile(r"^Error: thread/resume: .{0,80}no rollout found for thread id", re.M)
_BROKEN_SERVER = re.compile(r'MCP server startup failed server_name="([\w-]{1,80})"')
_HARMLESS = "Model metadata for "
"""It has no price list or limits of its own for such a model, and works with it."""
_MAX_NOTES = 10
_MAX_NOTE_CHARS = 300
_MAX_SHELL_CHARS = 8000
_SHELL_PARTS = 3


class CodexParser:
    """Implements EventParser."""

    def __init__(self) -> None:
        self._thread_id: str | None = None
        self._text = AnswerText()
        self._last_message = ""
        self._is_last = False
        """No tool was begun or ended since."""
        self._open: set[str] = set()
        self._is_completed = False
        self._failed = ""
        self._notes: list[str] = []

    def feed(self, line: str) -> Sequence[AgentEvent]:
        record = read_record(line)
        return tuple(self._read(record)) if record else ()

    def finish(self, agent_exit: AgentExit) -> TurnFinished:
        is_final = self._is_completed or (agent_exit.reason == "idle" and self._is_last)
        broken = dict.fromkeys(_BROKEN_SERVER.findall(agent_exit.stderr_tail))
        return end_turn(
            agent_exit,
            answer=self._last_message if is_final else "",
            written=self._text.whole,
            failure=self._failure(agent_exit),
            has_ended=self._is_completed,
            session_id=self._thread_id,
            notes=(*(broken_server_note(name, "failed") for name in broken), *self._notes),
        )

    def _failure(self, agent_exit: AgentExit) -> Failure | None:
        if self._failed:
            # It has words for each failure and no codes: the broker knows what its models said.
            return Failure(code=AgentErrorCode.EXECUTION_FAILED, detail=self._failed)
        is_lost = self._thread_id is None and _NO_SESSION.search(agent_exit.stderr_tail)
        if is_lost and agent_exit.exit_code != 0:
            return Failure(code=AgentErrorCode.SESSION_NOT_FOUND, detail="no such thread")
        return None

    def _read(self, record: Mapping[str, Any]) -> Iterator[AgentEvent]:
        match record:
            case {"type": "thread.started"}:
                self._thread_id = self._thread_id or told_session(record.get("thread_id"))
            case {"item": {"id": str(item_id), "type": "todo_list"} as item}:
                yield from _plan(item_id, item)
            case {"type": "item.started", "item": {"id": str(item_id), "type": str()} as item}:
                yield from self._start(item_id, item)
            case {"type": "item.completed", "item": {"id": str(item_id), "type": str()} as item}:
                yield from self._complete(item_id, item)
            case {"type": "turn.completed"}:
                self._is_completed = True
            case {"type": "turn.failed", "error": error}:
                self._failed = text_of(error, "message") or "it did not say why"
            case _:
                pass

    def _start(self, item_id: str, item: Mapping[str, Any]) -> Iterator[AgentEvent]:
        tool = _tool_of(item)
        if tool is not None and item_id not in self._open:
            self._open.add(item_id)
            self._is_last = False
            name, argument = tool
            yield ToolStarted(tool_id=item_id, name=name, argument=argument)

    def _complete(self, item_id: str, item: Mapping[str, Any]) -> Iterator[AgentEvent]:
        match item:
            case {"type": "agent_message", "text": str(text)} if text.strip():
                self._last_message, self._is_last = text, not self._open
                self._text.begin_message()
                yield from self._text.write(text)
            case {"type": "error", "message": str(message)}:
                if not message.startswith(_HARMLESS) and len(self._notes) < _MAX_NOTES:
                    self._notes.append(" ".join(message[:_MAX_NOTE_CHARS].split()))
            case _:
                # A change of files is told when it is done only.
                yield from self._start(item_id, item)
                if item_id in self._open:
                    self._open.discard(item_id)
                    self._is_last = False
                    is_error = item.get("status") in ("failed", "declined")
                    yield ToolFinished(
                        tool_id=item_id, is_error=is_error, output_bytes=size_of(_output(item))
                    )


def _plan(item_id: str, item: Mapping[str, Any]) -> Iterator[ToolStarted]:
    """Yields its plan, which it tells with every step that it ends."""
    if plan := plan_in(item):
        yield ToolStarted(tool_id=item_id, name="todo_list", argument="", plan=plan)


def _tool_of(item: Mapping[str, Any]) -> tuple[str, str] | None:
    """Returns name and shown argument; None for an item that is no tool."""
    match item:
        case {"type": "command_execution", "command": str(command)}:
            return "shell", shown_argument(_command_in_shell(command))
        case {"type": "mcp_tool_call", "server": str(server), "tool": str(tool)}:
            return f"{server}.{tool}"[:100], shown_argument(item.get("arguments"))
        case {"type": "file_change", "changes": list(changes)}:
            paths = [text_of(change, "path") for change in changes]
            return "apply_patch", shown_argument(", ".join(filter(None, paths)))
        case {"type": "web_search"}:
            return "web_search", shown_argument(text_of(item, "query"))
        case _:
            return None


def _command_in_shell(command: str) -> str:
    """Returns COMMAND of `/bin/bash -c 'COMMAND'`, which it tells for a command that the model wrote."""
    if len(command) > _MAX_SHELL_CHARS:
        return command
    try:
        parts = shlex.split(command)
    except ValueError:
        return command
    is_shell = len(parts) == _SHELL_PARTS and parts[1] in ("-c", "-lc")
    return parts[2] if is_shell else command


def _output(item: Mapping[str, Any]) -> object:
    match item:
        case {"type": "mcp_tool_call", "result": {"content": content}}:
            return content
        case {"type": "mcp_tool_call"}:
            return item.get("error")
        case _:
            return item.get("aggregated_output")
