"""What Codex's `app-server` tells of a turn, read as events and an outcome.

The shapes are those of version 0.169.0, recorded in tests/data/codex. Lines and fields that are unknown give nothing, so that
older and newer versions are read as far as they agree.

Its usage is not reported: the broker counts it. It tells no cost.
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
    code_of_status,
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
    MessageHeard,
    ToolFinished,
    ToolStarted,
    TurnFinished,
)

_NO_SESSION = re.compile(r"^no rollout found\b")
_CUT = re.compile(r"\breason: max_output_tokens\b")
_HARMLESS = "Model metadata for "
"""It has no price list or limits of its own for such a model, and works with it."""
_CODE_OF_ERROR: Mapping[str, AgentErrorCode] = {
    "contextWindowExceeded": AgentErrorCode.MODEL_CONTEXT_EXCEEDED,
    "usageLimitExceeded": AgentErrorCode.MODEL_BILLING,
    "rateLimitExceeded": AgentErrorCode.MODEL_RATE_LIMITED,
    "serverOverloaded": AgentErrorCode.MODEL_OVERLOADED,
    "internalServerError": AgentErrorCode.MODEL_UNAVAILABLE,
    "modelNotFound": AgentErrorCode.MODEL_NOT_FOUND,
    "unauthorized": AgentErrorCode.MODEL_AUTH_FAILED,
}
_MAX_NOTES = 10
_MAX_NOTE_CHARS = 300
_MAX_SHELL_CHARS = 8000
_SHELL_PARTS = 3


class CodexParser:
    """Implements EventParser."""

    def __init__(self) -> None:
        self._thread_id: str | None = None
        self._text = AnswerText()
        self._writing = ""
        """The id of the message whose text comes in pieces."""
        self._answers: list[str] = []
        """What was answered whole before further messages were heard."""
        self._last_message = ""
        self._is_last = False
        """No tool was begun or ended since, nor another message begun."""
        self._open: set[str] = set()
        self._is_begun = self._is_completed = False
        self._failure: Failure | None = None
        self._notes: list[str] = []

    def feed(self, line: str) -> Sequence[AgentEvent]:
        record = read_record(line)
        return tuple(self._read(record)) if record else ()

    def finish(self, agent_exit: AgentExit) -> TurnFinished:
        is_final = self._is_completed or (agent_exit.reason == "idle" and self._is_last)
        said = self._last_message if is_final else ""
        return end_turn(
            agent_exit,
            answer="\n\n".join((*self._answers, said)) if said else "",
            written=self._text.whole,
            failure=self._failure,
            has_ended=self._is_completed,
            session_id=self._thread_id,
            notes=dict.fromkeys(self._notes),
        )

    def _read(self, record: Mapping[str, Any]) -> Iterator[AgentEvent]:
        match record:
            case {"result": {"thread": {"id": thread_id}}}:
                self._thread_id = self._thread_id or told_session(thread_id)
            case {"id": _, "error": error} if not self._is_begun:
                self._failure = _failure(error)
            case {"method": str(method), "params": dict(params)}:
                yield from self._notice(method, params)
            case _:
                pass

    def _notice(self, method: str, params: Mapping[str, Any]) -> Iterator[AgentEvent]:
        match method, params:
            case "turn/started", _:
                self._is_begun = True
            case "turn/completed", {"turn": {"status": "completed"}}:
                self._is_completed = True
            case "turn/completed", {"turn": {"error": error}}:
                self._failure = _failure(error)
            case "turn/plan/updated", {"turnId": str(turn_id)}:
                if plan := plan_in(params):
                    yield ToolStarted(tool_id=turn_id, name="update_plan", argument="", plan=plan)
            case "item/agentMessage/delta", {"itemId": str(item_id), "delta": str(delta)}:
                yield from self._write(item_id, delta)
            case "item/started", {"item": {"id": str(item_id), "type": str()} as item}:
                yield from self._start(item_id, item)
            case "item/completed", {"item": {"id": str(item_id), "type": str()} as item}:
                yield from self._complete(item_id, item)
            case _ if len(self._notes) < _MAX_NOTES:
                self._notes += _notes_in(method, params)

    def _write(self, item_id: str, text: str) -> Iterator[AgentEvent]:
        if item_id != self._writing:
            self._writing, self._is_last = item_id, False
            self._text.begin_message()
        yield from self._text.write(text)

    def _start(self, item_id: str, item: Mapping[str, Any]) -> Iterator[AgentEvent]:
        if item["type"] == "userMessage" and (message_id := text_of(item, "clientId")):
            if self._is_last:
                self._answers.append(self._last_message)
            self._last_message, self._is_last = "", False
            yield MessageHeard(message_id=message_id)
        tool = _tool_of(item)
        if tool is not None and item_id not in self._open:
            self._open.add(item_id)
            self._is_last = False
            name, argument = tool
            yield ToolStarted(tool_id=item_id, name=name, argument=argument)

    def _complete(self, item_id: str, item: Mapping[str, Any]) -> Iterator[AgentEvent]:
        match item:
            case {"type": "userMessage"}:
                pass
            case {"type": "agentMessage", "text": str(text)}:
                if item_id != self._writing:
                    yield from self._write(item_id, text)
                if text.strip():
                    self._last_message, self._is_last = text, not self._open
            case _:
                # What begins and ends at once may be told when it is done only.
                yield from self._start(item_id, item)
                if item_id in self._open:
                    self._open.discard(item_id)
                    self._is_last = False
                    is_error = item.get("status") in ("failed", "declined")
                    yield ToolFinished(
                        tool_id=item_id, is_error=is_error, output_bytes=size_of(_output(item))
                    )


def _notes_in(method: str, params: Mapping[str, Any]) -> Iterator[str]:
    match method, params:
        case "mcpServer/startupStatus/updated", {"name": str(name), "status": "failed"}:
            yield broken_server_note(name, "failed")
        case "warning", {"message": str(message)} if not message.startswith(_HARMLESS):
            yield " ".join(message[:_MAX_NOTE_CHARS].split())
        case _:
            pass


def _failure(error: object) -> Failure:
    """Returns what it says of a failed turn, or of a request that it refuses: a word, or one with the status of its model's API."""
    detail = text_of(error, "message") or "it did not say why"
    if _NO_SESSION.match(detail):
        return Failure(code=AgentErrorCode.SESSION_NOT_FOUND, detail="no such thread")
    if _CUT.search(detail):
        return Failure(code=AgentErrorCode.OUTPUT_LIMIT, detail=detail)
    match error:
        case {"codexErrorInfo": str(word)}:
            code = _CODE_OF_ERROR.get(word)
        case {"codexErrorInfo": dict(kinds)}:
            told = [kind for kind in kinds.values() if isinstance(kind, dict)]
            codes = (code_of_status(kind.get("httpStatusCode")) for kind in told)
            code = next(filter(None, codes), None)
        case _:
            code = None
    return Failure(code=code or AgentErrorCode.EXECUTION_FAILED, detail=detail)


def _tool_of(item: Mapping[str, Any]) -> tuple[str, str] | None:
    """Returns name and shown argument; None for an item that is no tool."""
    match item:
        case {"type": "commandExecution", "command": str(command)}:
            return "shell", shown_argument(_command_in_shell(command))
        case {"type": "mcpToolCall", "server": str(server), "tool": str(tool)}:
            return f"{server}.{tool}"[:100], shown_argument(item.get("arguments"))
        case {"type": "fileChange", "changes": list(changes)}:
            paths = [text_of(change, "path") for change in changes]
            return "apply_patch", shown_argument(", ".join(filter(None, paths)))
        case {"type": "webSearch"}:
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
        case {"type": "mcpToolCall", "result": {"content": content}}:
            return content
        case {"type": "mcpToolCall"}:
            return item.get("error")
        case _:
            return item.get("aggregatedOutput")
