"""What Gemini CLI prints with `--output-format stream-json`, read as events and an outcome.

The shapes are those of version 0.61.0, recorded in tests/data/gemini. Lines and fields that are unknown give nothing, so that
older and newer versions are read as far as they agree.

The last `result` decides, together with the exit code: of a failed request the latter is the HTTP status modulo 256. Ended by
SIGTERM the exit code is 0, without a result, which is a failure.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agent_scripts.adapter import AgentExit
from agent_scripts.cli_output import (
    AnswerText,
    Failure,
    code_of_status,
    count_of,
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
    UsageReported,
)

_STATUSES = (401, 402, 403, 404, 413, 429, 500, 502, 503, 504, 529)
_STATUS_OF_EXIT_CODE: Mapping[int, int] = {status % 256: status for status in _STATUSES}
"""For exit codes beside a result that says `error`."""
_CODE_OF_EXIT_CODE = {
    41: AgentErrorCode.MODEL_AUTH_FAILED,
    53: AgentErrorCode.TURN_LIMIT,
}
"""Its own. Source: Gemini CLI 0.61.0, docs/cli/headless and ExitCodes, read 2026-11."""
_TURN_LIMIT = "FatalTurnLimitedError"
_BROKEN_SESSION = (
    "the number of function response parts is equal to the number of function call parts"
)
"""It writes the results of tools twice into a session that it takes up again, which the API refuses: the session is of no use.

Source: google-gemini/gemini-cli, issues 16437, 16543 and 24808, read 2026-11.
"""
_REFUSED = "The model response was blocked due to safety settings."
_NO_SESSION = "Error resuming session:"
_BROKEN_SERVERS = "MCP issues detected."
_BROKEN_NOTE = "An MCP server could not be used; Gemini CLI does not say which."
_NO_SESSION_EXIT_CODE = 42
_BAD_REQUEST_EXIT_CODE = 400 % 256


class GeminiParser:
    """Implements EventParser."""

    def __init__(self) -> None:
        self._session_id: str | None = None
        self._text = AnswerText()
        self._result: Mapping[str, Any] | None = None
        self._has_worked = False
        self._open: set[str] = set()
        """Tools without a result."""
        self._is_refused = False

    def feed(self, line: str) -> Sequence[AgentEvent]:
        record = read_record(line)
        return tuple(self._read(record)) if record else ()

    def finish(self, agent_exit: AgentExit) -> TurnFinished:
        has_ended = text_of(self._result, "status") == "success"
        # It does not tell the end of a message: text that no tool came after is taken for the answer at the idle limit.
        is_final = has_ended or (agent_exit.reason == "idle" and not self._open)
        return end_turn(
            agent_exit,
            answer=self._text.message if is_final else "",
            written=self._text.whole,
            failure=self._failure(agent_exit),
            has_ended=has_ended,
            session_id=self._session_id,
            notes=[_BROKEN_NOTE] if _BROKEN_SERVERS in agent_exit.stderr_tail else [],
        )

    def _failure(self, agent_exit: AgentExit) -> Failure | None:
        result, exit_code = self._result, agent_exit.exit_code
        if result is None:
            is_lost = exit_code == _NO_SESSION_EXIT_CODE and _NO_SESSION in agent_exit.stderr_tail
            if is_lost:
                return Failure(code=AgentErrorCode.SESSION_NOT_FOUND, detail="no such session")
            code = _CODE_OF_EXIT_CODE.get(exit_code or 0)
            return None if code is None else Failure(code=code, detail="no result")
        if text_of(result, "status") == "success":
            return None
        error = result.get("error")
        message = text_of(error, "message")
        code = self._code(text_of(error, "type"), message, exit_code)
        return Failure(code=code, detail=f"{text_of(error, 'type')}: {message}")

    def _code(self, kind: str, message: str, exit_code: int | None) -> AgentErrorCode:
        if self._is_refused:
            return AgentErrorCode.MODEL_REFUSED
        if kind == _TURN_LIMIT:
            return AgentErrorCode.TURN_LIMIT
        if exit_code == _BAD_REQUEST_EXIT_CODE:
            return self._code_of_bad_request(message)
        code = code_of_status(_STATUS_OF_EXIT_CODE.get(exit_code or 0))
        return code or _CODE_OF_EXIT_CODE.get(exit_code or 0) or AgentErrorCode.EXECUTION_FAILED

    def _code_of_bad_request(self, message: str) -> AgentErrorCode:
        if _BROKEN_SESSION in message and not self._has_worked:
            # Only of what was there before: then nothing has been done in this turn.
            return AgentErrorCode.SESSION_NOT_FOUND
        return AgentErrorCode.EXECUTION_FAILED

    def _read(self, record: Mapping[str, Any]) -> Iterator[AgentEvent]:
        match record:
            case {"type": "message", "role": "assistant", "content": str(text)}:
                if text:
                    self._has_worked = True
                yield from self._text.write(text)
            case {"type": "tool_use", "tool_id": str(tool_id), "tool_name": str(name)}:
                self._has_worked = True
                self._open.add(tool_id)
                self._text.begin_message()
                given = record.get("parameters")
                yield ToolStarted(
                    tool_id=tool_id,
                    name=name,
                    argument=shown_argument(given),
                    plan=plan_in(given) if name == "write_todos" else (),
                )
            case {"type": "tool_result", "tool_id": str(tool_id)}:
                self._open.discard(tool_id)
                self._text.begin_message()
                yield ToolFinished(
                    tool_id=tool_id,
                    is_error=record.get("status") != "success",
                    output_bytes=size_of(record.get("output")),
                )
            case {"type": "init"}:
                self._session_id = self._session_id or told_session(record.get("session_id"))
            case {"type": "error", "message": str(message)}:
                self._is_refused = self._is_refused or message == _REFUSED
            case {"type": "result"}:
                self._result = record
                yield from _usage(record.get("stats"))
            case _:
                pass


def _usage(stats: object) -> Iterator[UsageReported]:
    """Yields the usage of the turn, summed by model: the CLI does not tell of single calls."""
    models = stats.get("models") if isinstance(stats, dict) else None
    for name, used in models.items() if isinstance(models, dict) else ():
        if count_of(used, "total_tokens"):
            yield UsageReported(
                model=name,
                input_tokens=count_of(used, "input"),
                output_tokens=count_of(used, "output_tokens"),
                cache_read_tokens=count_of(used, "cached"),
            )
