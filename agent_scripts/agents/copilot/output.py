"""What Copilot's command line prints with `--output-format json`, read as events and an outcome.

The shapes are those of version 1.0.102, recorded in tests/data/copilot. Lines and fields that are unknown give nothing, so that
older and newer versions are read as far as they agree.

The answer is the last message that asks for no tool; the last `result`, a `session.error` and the exit code decide. It does not
print what its calls used: the broker counts that.
"""

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
from agent_scripts.events import AgentErrorCode, AgentEvent, ToolFinished, ToolStarted, TurnFinished

_CODE_OF_ERROR = {
    "authentication": AgentErrorCode.MODEL_AUTH_FAILED,
    "authorization": AgentErrorCode.MODEL_AUTH_FAILED,
    "rate_limit": AgentErrorCode.MODEL_RATE_LIMITED,
    "quota": AgentErrorCode.MODEL_BILLING,
}
_COMPACTION = "forced_compaction"
"""Why it asked again: the conversation was too long for the model."""
_TRANSPORT = "transport"
_REFUSED = "The model returned no content because the response was blocked by content filtering."
"""Recorded: what it says in the model's place."""
_NO_SESSION = "Error: No session, task, or name matched "
_BROKEN = ("failed", "needs-auth")


class CopilotParser:
    """Implements EventParser."""

    def __init__(self) -> None:
        self._session_id: str | None = None
        self._text = AnswerText()
        self._streamed: str | None = None
        """Id of the message that comes in pieces; None = none does."""
        self._answer = ""
        self._error: Mapping[str, Any] | None = None
        self._status: object = None
        self._is_cut = False
        self._is_too_long = False
        self._is_refused = False
        self._result: Mapping[str, Any] | None = None
        self._broken: dict[str, str] = {}

    def feed(self, line: str) -> Sequence[AgentEvent]:
        record = read_record(line)
        if record is None:
            return ()
        if record.get("type") == "result":
            self._result = record
            self._session_id = told_session(record.get("sessionId")) or self._session_id
            return ()
        data = record.get("data")
        return tuple(self._read(record.get("type"), data)) if isinstance(data, dict) else ()

    def finish(self, agent_exit: AgentExit) -> TurnFinished:
        has_ended = self._result is not None
        # A message that asks for no tool is a final one, ended or not.
        is_final = has_ended or agent_exit.reason == "idle"
        return end_turn(
            agent_exit,
            answer=self._answer if is_final else "",
            written=self._text.whole,
            failure=self._failure(agent_exit),
            has_ended=has_ended,
            session_id=self._session_id,
            notes=[broken_server_note(name, status) for name, status in self._broken.items()],
        )

    def _failure(self, agent_exit: AgentExit) -> Failure | None:
        if self._error is not None:
            detail = f"{text_of(self._error, 'errorType')}: {text_of(self._error, 'message')}"
            return Failure(code=self._code(self._error), detail=detail)
        if self._is_refused:
            return Failure(code=AgentErrorCode.MODEL_REFUSED, detail="blocked by content filtering")
        if self._result is not None and self._result.get("exitCode") != 0:
            told = f"result with exit code {self._result.get('exitCode')}"
            return Failure(code=AgentErrorCode.EXECUTION_FAILED, detail=told)
        if agent_exit.exit_code != 0 and _NO_SESSION in agent_exit.stderr_tail:
            return Failure(code=AgentErrorCode.SESSION_NOT_FOUND, detail="no such session")
        return None

    def _code(self, error: Mapping[str, Any]) -> AgentErrorCode:
        if self._is_too_long:
            return AgentErrorCode.MODEL_CONTEXT_EXCEEDED
        code = code_of_status(error.get("statusCode")) or code_of_status(self._status)
        code = code or _CODE_OF_ERROR.get(text_of(error, "errorType"))
        if code is None and self._is_cut:
            return AgentErrorCode.MODEL_UNAVAILABLE  # no answer, or none that is one
        return code or AgentErrorCode.EXECUTION_FAILED

    def _read(self, kind: object, data: Mapping[str, Any]) -> Iterator[AgentEvent]:
        # What an agent under the agent says and does is a part of one tool call, which is shown as such.
        if data.get("parentToolCallId") is not None:
            return
        match kind:
            case "assistant.message_start":
                self._begin(text_of(data, "messageId"))
            case "assistant.message_delta":
                yield from self._text.write(text_of(data, "deltaContent"))
            case "assistant.message":
                yield from self._read_message(data)
            case "tool.execution_start" | "tool.execution_complete":
                yield from _read_tool(kind, data)
            case _:
                self._read_session(kind, data)

    def _begin(self, message_id: str) -> None:
        self._streamed = message_id
        self._text.begin_message()

    def _read_message(self, data: Mapping[str, Any]) -> Iterator[AgentEvent]:
        """Reads a whole message; its text has come in pieces already, unless this one did not."""
        content = text_of(data, "content")
        self._status, self._is_cut, self._is_too_long = None, False, False
        self._is_refused = content == _REFUSED
        self._answer = ""
        if self._is_refused:
            return
        if text_of(data, "messageId") != self._streamed:
            self._text.begin_message()
            yield from self._text.write(content)
        self._streamed = None
        if not data.get("toolRequests"):
            self._answer = content.strip()

    def _read_session(self, kind: object, data: Mapping[str, Any]) -> None:
        match kind:
            case "model.call_failure":
                self._status = data.get("statusCode")
                self._is_cut = data.get("failureKind") == _TRANSPORT
            case "assistant.turn_retry":
                self._is_too_long = data.get("reason") == _COMPACTION
            case "session.error":
                self._error = data
            case "session.mcp_server_status_changed":
                name, status = text_of(data, "serverName"), text_of(data, "status")
                self._broken.pop(name, None)
                if status in _BROKEN:
                    self._broken[name] = status
            case _:
                pass


def _read_tool(kind: object, data: Mapping[str, Any]) -> Iterator[AgentEvent]:
    tool_id = text_of(data, "toolCallId")
    if kind == "tool.execution_start":
        given, name = data.get("arguments"), text_of(data, "toolName")
        plan = plan_in(given) if name == "update_todo" else ()
        yield ToolStarted(tool_id=tool_id, name=name, argument=shown_argument(given), plan=plan)
        return
    result, shell = data.get("result"), data.get("shellExecution")
    code = shell.get("exitCode") if isinstance(shell, dict) else None
    yield ToolFinished(
        tool_id=tool_id,
        is_error=data.get("success") is not True or code not in (0, None),
        output_bytes=size_of(text_of(result, "content") or text_of(data.get("error"), "message")),
    )
