"""What OpenCode prints with `run --format json`, read as events and an outcome.

The shapes are those of version 1.18.33, recorded in tests/data/opencode. Lines and fields that are unknown give nothing, so
that older and newer versions are read as far as they agree.

It has no line for the end: the answer is the text of a step that stopped by itself, and a later step takes that back. Text of
a step without an end is none, not even at the idle limit: a tool that still runs is not told before it is done. Only lines of
the session that spoke first count.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agent_scripts.adapter import AgentExit
from agent_scripts.cli_output import (
    AnswerText,
    Failure,
    broken_server_note,
    code_of_status,
    cost_of,
    count_of,
    end_turn,
    plan_in,
    read_record,
    shown_argument,
    size_of,
    text_of,
    told_session,
    total_cost,
)
from agent_scripts.events import (
    AgentErrorCode,
    AgentEvent,
    ToolFinished,
    ToolStarted,
    TurnFinished,
    UsageReported,
)

SESSION_ID = re.compile(r"ses_[0-9A-Za-z]{10,40}")
_NO_SESSION = re.compile(r"^(?:\x1b\[[0-9;]*m|Error: )*Session not found", re.M)
_BROKEN_SERVER = re.compile(
    r'^timestamp=\S+ level=WARN \S+ message="server unavailable" key="?([^"\n]{1,80}?)"? type=\w+ status=(\w+)',
    re.M,
)
_CODE_OF_NAME = {
    "ContextOverflowError": AgentErrorCode.MODEL_CONTEXT_EXCEEDED,
    "ProviderAuthError": AgentErrorCode.MODEL_AUTH_FAILED,
    "MessageOutputLengthError": AgentErrorCode.OUTPUT_LIMIT,
    "ContentFilterError": AgentErrorCode.MODEL_REFUSED,
}
_CODE_OF_REASON = {
    "length": AgentErrorCode.OUTPUT_LIMIT,
    "content-filter": AgentErrorCode.MODEL_REFUSED,
}


class OpenCodeParser:
    """Implements EventParser."""

    def __init__(self) -> None:
        self._session_id: str | None = None
        self._text = AnswerText()
        self._step: list[str] = []
        self._answer = ""
        self._failure: Failure | None = None
        self._cut: Failure | None = None
        """How the model ended its newest step; a later one may be whole."""
        self._costs: list[float | None] = []

    def feed(self, line: str) -> Sequence[AgentEvent]:
        record = read_record(line)
        return tuple(self._read(record)) if record and self._is_ours(record) else ()

    def finish(self, agent_exit: AgentExit) -> TurnFinished:
        broken = dict(_BROKEN_SERVER.findall(agent_exit.stderr_tail))
        return end_turn(
            agent_exit,
            answer=self._answer,
            written=self._text.whole,
            failure=self._failure or self._cut or self._lost_session(agent_exit),
            session_id=self._session_id,
            # Nothing is what it says of a model whose price it does not know.
            cost_usd=total_cost(self._costs) or None,
            notes=[broken_server_note(name, status) for name, status in broken.items()],
        )

    def _lost_session(self, agent_exit: AgentExit) -> Failure | None:
        is_lost = self._session_id is None and _NO_SESSION.search(agent_exit.stderr_tail)
        if is_lost and agent_exit.exit_code != 0:
            return Failure(code=AgentErrorCode.SESSION_NOT_FOUND, detail="no such session")
        return None

    def _is_ours(self, record: Mapping[str, Any]) -> bool:
        found = text_of(record, "sessionID")
        self._session_id = self._session_id or told_session(found, SESSION_ID)
        return bool(found) and found == self._session_id

    def _read(self, record: Mapping[str, Any]) -> Iterator[AgentEvent]:
        match record:
            case {"type": "step_start"}:
                self._step, self._answer, self._cut = [], "", None
            case {"type": "text", "part": {"text": str(text)}} if text.strip():
                self._step.append(text)
                self._text.begin_message()
                yield from self._text.write(text)
            case {"type": "tool_use", "part": {"callID": str(call_id), "tool": str(tool)} as part}:
                yield from _tool(call_id, tool, part.get("state"))
            case {"type": "step_finish", "part": {"reason": reason} as part}:
                yield from self._finish_step(str(reason), part)
            case {"type": "error", "error": error}:
                self._failure = self._failure or _failure_of(error)
            case _:
                pass

    def _finish_step(self, reason: str, part: Mapping[str, Any]) -> Iterator[AgentEvent]:
        if reason == "stop":
            self._answer = "\n\n".join(self._step)
        elif reason in _CODE_OF_REASON:
            detail = f"the model ended its step: {reason}"
            self._cut = Failure(code=_CODE_OF_REASON[reason], detail=detail)
        self._costs.append(cost_of(part.get("cost")))
        tokens = part.get("tokens")
        cache = tokens.get("cache") if isinstance(tokens, dict) else None
        yield UsageReported(
            model="",
            input_tokens=count_of(tokens, "input"),
            output_tokens=count_of(tokens, "output") + count_of(tokens, "reasoning"),
            cache_read_tokens=count_of(cache, "read"),
            cache_creation_tokens=count_of(cache, "write"),
        )


def _tool(call_id: str, tool: str, state: object) -> Iterator[AgentEvent]:
    """Yields both events of a tool, which is told once, when it is done."""
    told = state if isinstance(state, dict) else {}
    metadata = told.get("metadata")
    exit_code = metadata.get("exit") if isinstance(metadata, dict) else None
    is_error = told.get("status") == "error" or exit_code not in (None, 0) or tool == "invalid"
    given = told.get("error") if told.get("status") == "error" else told.get("output")
    plan = plan_in(told.get("input")) if tool == "todowrite" else ()
    yield ToolStarted(tool_id=call_id, name=tool, argument=_argument(told), plan=plan)
    yield ToolFinished(tool_id=call_id, is_error=is_error, output_bytes=size_of(given))


def _argument(state: Mapping[str, Any]) -> str:
    match state:
        # Of a patch, its title lists what it changed.
        case {"input": {"patchText": str()}, "title": str(title)}:
            return shown_argument(title)
        case _:
            return shown_argument(state.get("input"))


def _failure_of(error: object) -> Failure:
    name = text_of(error, "name")
    data = error.get("data") if isinstance(error, dict) else None
    status = data.get("statusCode") if isinstance(data, dict) else None
    code = _CODE_OF_NAME.get(name) or code_of_status(status)
    message = text_of(data, "message")
    if code is None and name == "APIError" and status is None:
        code = AgentErrorCode.MODEL_UNAVAILABLE  # no answer, or none that is one
    detail = f"{name}, status {status}: {message}"
    return Failure(code=code or AgentErrorCode.EXECUTION_FAILED, detail=detail)
