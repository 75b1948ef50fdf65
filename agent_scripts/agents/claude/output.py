"""What Claude Code prints with `--output-format stream-json`, read as events and an outcome.

The shapes are those of version 2.1.330, recorded in tests/data/claude. Lines and fields that are unknown give nothing, so that
older and newer versions are read as far as they agree.

Whose line it is: only lines of the session that spoke first count, and the last `result` decides, together with the exit code.
A tool's output arrives inside a JSON string of a `user` line, so nothing in it is a line of its own. A process of the sandbox
that opens the CLI's stdout by force can forge lines; but what it could make Orion say, the agent itself could say as well.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agent_scripts.adapter import AgentExit
from agent_scripts.cli_output import (
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
    MessageHeard,
    TextDelta,
    ToolFinished,
    ToolStarted,
    TurnFinished,
    UsageReported,
)

_SYNTHETIC = "<synthetic>"
"""The "model" of what the CLI itself says, such as an error: never the answer."""

_CODE_OF_TERMINAL_REASON = {
    "prompt_too_long": AgentErrorCode.MODEL_CONTEXT_EXCEEDED,
    "blocking_limit": AgentErrorCode.MODEL_CONTEXT_EXCEEDED,
    "max_turns": AgentErrorCode.TURN_LIMIT,
    "budget_exhausted": AgentErrorCode.TURN_LIMIT,
}
# The CLI's own list of what `error` of an assistant line can be.
_CODE_OF_ERROR = {
    "authentication_failed": AgentErrorCode.MODEL_AUTH_FAILED,
    "oauth_org_not_allowed": AgentErrorCode.MODEL_AUTH_FAILED,
    "account_on_hold": AgentErrorCode.MODEL_AUTH_FAILED,
    "verification_required": AgentErrorCode.MODEL_AUTH_FAILED,
    "cloud_credential_error": AgentErrorCode.MODEL_AUTH_FAILED,
    "billing_error": AgentErrorCode.MODEL_BILLING,
    "rate_limit": AgentErrorCode.MODEL_RATE_LIMITED,
    "overloaded": AgentErrorCode.MODEL_OVERLOADED,
    "model_not_found": AgentErrorCode.MODEL_NOT_FOUND,
    "server_error": AgentErrorCode.MODEL_UNAVAILABLE,
    "max_output_tokens": AgentErrorCode.OUTPUT_LIMIT,
}
_NO_SESSION = "No conversation found with session ID: "
"""Recorded: it has no code of its own."""


class ClaudeCodeParser:
    """Implements EventParser."""

    def __init__(self) -> None:
        self._session_id: str | None = None
        self._written: list[str] = []
        self._streamed: set[str] = set()
        self._started_usage: Mapping[str, Any] = {}
        self._message: list[str] = []
        """Text of the newest one."""
        self._has_ended_turn = False
        """The model ended the turn with the newest message; the CLI has only to say so."""
        self._unfinished: list[str] = []
        """Text of messages that reached the limit of output tokens: the CLI lets the model go on, and its result has only the rest."""
        self._answers: list[str] = []
        """To what had been asked before a message was heard."""
        self._result: Mapping[str, Any] | None = None
        self._error = ""
        self._is_refused = False
        self._costs: list[float | None] = []
        self._notes: list[str] = []

    def feed(self, line: str) -> Sequence[AgentEvent]:
        record = read_record(line)
        match record:
            case {"type": "heard", "id": str(message_id)}:
                self._keep_answer()
                return (MessageHeard(message_id=message_id),)
            case dict() if self._is_ours(record):
                return tuple(self._read(record))
            case _:
                return ()

    def finish(self, agent_exit: AgentExit) -> TurnFinished:
        failure = self._failure(agent_exit)
        has_ended = self._result is not None
        said = text_of(self._result, "result") if has_ended else self._final(agent_exit)
        said = "".join((*self._unfinished, said)) if said.strip() and failure is None else ""
        return end_turn(
            agent_exit,
            answer="\n\n".join((*self._answers, said)) if said else "",
            written="".join(self._written),
            failure=failure,
            has_ended=has_ended,
            session_id=self._session_id,
            cost_usd=self._cost(),
            notes=dict.fromkeys(self._notes),
        )

    def _final(self, agent_exit: AgentExit) -> str:
        """Returns what the model said when it ended its turn, for the idle limit alone; empty while it works."""
        is_final = agent_exit.reason == "idle" and self._has_ended_turn
        return "".join(self._message) if is_final else ""

    def _failure(self, agent_exit: AgentExit) -> Failure | None:
        result = self._result
        if result is not None:
            code = self._code(result)
            return None if code is None else Failure(code=code, detail=_explain(result))
        is_lost = agent_exit.stderr_tail.lstrip().startswith(_NO_SESSION)
        if is_lost and agent_exit.exit_code != 0:
            return Failure(code=AgentErrorCode.SESSION_NOT_FOUND, detail="no such session")
        return None

    def _code(self, result: Mapping[str, Any]) -> AgentErrorCode | None:
        """Returns why there is no answer in the result. `subtype` says "success" for errors of the API, too."""
        if result.get("is_error") is False and result.get("subtype") == "success":
            return None
        errors = result.get("errors")
        if isinstance(errors, list) and any(str(text).startswith(_NO_SESSION) for text in errors):
            return AgentErrorCode.SESSION_NOT_FOUND
        if self._is_refused:
            return AgentErrorCode.MODEL_REFUSED
        reason, status = result.get("terminal_reason"), result.get("api_error_status")
        code = _CODE_OF_TERMINAL_REASON.get(str(reason))
        code = code or code_of_status(status) or _CODE_OF_ERROR.get(self._error)
        if code is None and reason == "api_error" and status is None:
            return AgentErrorCode.MODEL_UNAVAILABLE  # no answer, or none that is one
        return code or AgentErrorCode.EXECUTION_FAILED

    def _cost(self) -> float | None:
        """Returns the dollars of this turn: `total_cost_usd` counts all turns of a resumed session."""
        if self._costs:
            return total_cost(self._costs)
        # Versions without `model_usage_since_last_result` counted by the run (2.1.197).
        return cost_of((self._result or {}).get("total_cost_usd"))

    def _is_ours(self, record: Mapping[str, Any]) -> bool:
        session_id = told_session(record.get("session_id"))
        if self._session_id is None:
            self._session_id = session_id
        return session_id is not None and session_id == self._session_id

    def _read(self, record: Mapping[str, Any]) -> Iterator[AgentEvent]:
        match record:
            case {"type": "stream_event", "event": {"type": str()} as event}:
                if record.get("parent_tool_use_id") is None:
                    yield from self._read_stream(event)
            case {"type": "assistant", "message": {"content": list(content)} as message}:
                yield from self._read_message(record, message, content)
            case {"type": "user", "message": {"content": list(content)}}:
                yield from _finished_tools(content)
            case {"type": "result"}:
                self._read_result(record)
            case {"type": "system", "subtype": "init", "mcp_servers": list(servers)}:
                self._notes += _broken_servers(servers)
            case {"type": "system", "subtype": "model_refusal_no_fallback"}:
                self._is_refused = True
            case _:
                pass

    def _read_stream(self, event: Mapping[str, Any]) -> Iterator[AgentEvent]:
        match event:
            case {"type": "message_start", "message": {"id": str(message_id)} as message}:
                self._streamed.add(message_id)
                self._started_usage = message
                self._message, self._has_ended_turn = [], False
            case {"type": "content_block_start", "content_block": {"type": "text"}}:
                is_continued = self._unfinished and not self._message
                if self._written and not is_continued and not self._written[-1].endswith("\n\n"):
                    self._written.append("\n\n")
                    yield TextDelta(text="\n\n")
            case {
                "type": "content_block_delta",
                "delta": {"type": "text_delta", "text": str(text)},
            }:
                self._written.append(text)
                self._message.append(text)
                yield TextDelta(text=text)
            case {"type": "message_delta", "usage": {"output_tokens": int(output)}}:
                self._note_end(event.get("delta"))
                yield _usage(self._started_usage, output)
            case _:
                pass

    def _note_end(self, delta: object) -> None:
        match delta:
            case {"stop_reason": "max_tokens"}:
                self._unfinished += self._message
                self._message = []
            case {"stop_reason": "tool_use"}:
                self._unfinished = []
            case {"stop_reason": "end_turn"}:
                self._has_ended_turn = True
            case _:
                pass

    def _read_message(
        self, record: Mapping[str, Any], message: Mapping[str, Any], content: list[Any]
    ) -> Iterator[AgentEvent]:
        """Reads one block of a message; its text has been streamed already, unless this CLI did not stream."""
        if message.get("model") == _SYNTHETIC or record.get("error") is not None:
            self._error, self._has_ended_turn = str(record.get("error")), False
            return
        is_new = text_of(message, "id") not in self._streamed
        is_main = record.get("parent_tool_use_id") is None
        for block in content:
            match block:
                case {"type": "text", "text": str(text)} if is_new and is_main and text:
                    separated = f"\n\n{text}" if self._written else text
                    self._written.append(separated)
                    yield TextDelta(text=separated)
                case {"type": "tool_use", "id": str(tool_id), "name": str(name)}:
                    given = block.get("input")
                    yield ToolStarted(
                        tool_id=tool_id,
                        name=name,
                        argument=shown_argument(given),
                        plan=plan_in(given) if name == "TodoWrite" else (),
                    )
                case _:
                    pass

    def _keep_answer(self) -> None:
        """Keeps what was answered before a message was heard, if that was all that had been asked."""
        if self._result is not None and self._code(self._result) is None:
            self._answers.append("".join((*self._unfinished, text_of(self._result, "result"))))
        self._result, self._unfinished = None, []

    def _read_result(self, record: Mapping[str, Any]) -> None:
        self._result = record
        models = record.get("model_usage_since_last_result")
        if isinstance(models, dict):
            told = [model.get("costUSD") for model in models.values() if isinstance(model, dict)]
            self._costs.append(total_cost(told))


def _finished_tools(content: list[Any]) -> Iterator[AgentEvent]:
    for block in content:
        match block:
            case {"type": "tool_result", "tool_use_id": str(tool_id)}:
                yield ToolFinished(
                    tool_id=tool_id,
                    is_error=block.get("is_error") is True,
                    output_bytes=size_of(block.get("content")),
                )
            case _:
                pass


def _usage(message: Mapping[str, Any], output_tokens: int) -> UsageReported:
    usage = message.get("usage")
    return UsageReported(
        model=str(message.get("model", "")),
        input_tokens=count_of(usage, "input_tokens"),
        output_tokens=output_tokens,
        cache_read_tokens=count_of(usage, "cache_read_input_tokens"),
        cache_creation_tokens=count_of(usage, "cache_creation_input_tokens"),
    )


def _broken_servers(servers: list[Any]) -> Iterator[str]:
    """Yields a note for each MCP server that the CLI goes on without; at this line one may still be `pending`."""
    for server in servers:
        match server:
            case {"name": str(name), "status": "failed" | "needs-auth" as status}:
                yield broken_server_note(name, status)
            case _:
                pass


def _explain(result: Mapping[str, Any]) -> str:
    reason = result.get("terminal_reason") or result.get("subtype")
    status, told = result.get("api_error_status"), result.get("result") or result.get("errors")
    return f"{reason}, status {status}: {told or ''}"
