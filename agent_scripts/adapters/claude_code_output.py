"""What Claude Code prints with `--output-format stream-json`, read as events and an outcome.

The shapes are those of version 2.1.330, recorded in tests/data/claude. Lines and fields that are unknown give nothing, so that
older and newer versions are read as far as they agree.

Whose line it is: only lines of the session that spoke first count, and the last `result` decides, together with the exit code.
A tool's output arrives inside a JSON string of a `user` line, so nothing in it is a line of its own. A process of the sandbox
that opens the CLI's stdout by force can forge lines; but what it could make Orion say, the agent itself could say as well.
"""

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agent_scripts.adapter import ENDED_BY_US, IDLE_NOTE, AgentExit
from agent_scripts.errors import AgentErrorCode
from agent_scripts.events import (
    AgentEvent,
    TextDelta,
    ToolFinished,
    ToolStarted,
    TurnFinished,
    UsageReported,
)

_MAX_ARGUMENT_CHARS = 2000
_MAX_DETAIL_CHARS = 4000
_SYNTHETIC = "<synthetic>"
"""The "model" of what the CLI itself says, such as an error: never the answer."""
_SHOWN_ARGUMENTS = ("command", "file_path", "notebook_path", "description", "pattern", "query")

_CODE_OF_TERMINAL_REASON = {
    "prompt_too_long": AgentErrorCode.MODEL_CONTEXT_EXCEEDED,
    "blocking_limit": AgentErrorCode.MODEL_CONTEXT_EXCEEDED,
    "max_turns": AgentErrorCode.TURN_LIMIT,
    "budget_exhausted": AgentErrorCode.TURN_LIMIT,
}
_CODE_OF_STATUS = {
    401: AgentErrorCode.MODEL_AUTH_FAILED,
    402: AgentErrorCode.MODEL_BILLING,
    403: AgentErrorCode.MODEL_AUTH_FAILED,
    404: AgentErrorCode.MODEL_NOT_FOUND,
    413: AgentErrorCode.MODEL_CONTEXT_EXCEEDED,
    429: AgentErrorCode.MODEL_RATE_LIMITED,
    529: AgentErrorCode.MODEL_OVERLOADED,
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
        self._message_text = ""
        self._unfinished = ""
        """Text of messages that reached the limit of output tokens: the CLI lets the model go on, and its result has only the rest."""
        self._result: Mapping[str, Any] | None = None
        self._error = ""
        self._is_refused = False
        self._costs: list[float] = []
        self._notes: list[str] = []

    def feed(self, line: str) -> Sequence[AgentEvent]:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            return ()
        return tuple(self._read(record)) if self._is_ours(record) else ()

    def finish(self, agent_exit: AgentExit) -> TurnFinished:
        error, detail = self._verdict(agent_exit)
        said = _text_of(self._result or {}, "result") if error is None else ""
        return TurnFinished(
            text=(self._unfinished + said).strip() if said else "".join(self._written).strip(),
            error=error,
            detail=detail[-_MAX_DETAIL_CHARS:],
            agent_session_id=self._session_id,
            cost_usd=self._cost(),
            notes=tuple(self._notes),
        )

    def _verdict(self, agent_exit: AgentExit) -> tuple[AgentErrorCode | None, str]:
        result = self._result
        failure = None if result is None else self._failure(result)
        said = "" if result is None or failure is not None else _text_of(result, "result")
        is_answered = bool(said.strip())
        if agent_exit.reason == "idle" and is_answered:
            self._notes.append(IDLE_NOTE)
            return None, ""
        if agent_exit.reason != "exited":
            return ENDED_BY_US[agent_exit.reason], f"ended by the supervisor: {agent_exit.reason}"
        ended = f"exit code {agent_exit.exit_code}: {agent_exit.stderr_tail}"
        if result is not None and failure is not None:
            return failure, f"{_explain(result)} ({ended})"
        if agent_exit.exit_code != 0:
            is_lost = agent_exit.stderr_tail.lstrip().startswith(_NO_SESSION)
            code = AgentErrorCode.SESSION_NOT_FOUND if is_lost else None
            return code or AgentErrorCode.EXECUTION_FAILED, ended
        if not is_answered:
            return AgentErrorCode.NO_ANSWER, f"no final answer ({ended})"
        return None, ""

    def _failure(self, result: Mapping[str, Any]) -> AgentErrorCode | None:
        """Why this result is none. `subtype` says "success" for errors of the API, too."""
        if result.get("is_error") is False and result.get("subtype") == "success":
            return None
        errors = result.get("errors")
        if isinstance(errors, list) and any(str(text).startswith(_NO_SESSION) for text in errors):
            return AgentErrorCode.SESSION_NOT_FOUND
        if self._is_refused:
            return AgentErrorCode.MODEL_REFUSED
        reason, status = result.get("terminal_reason"), result.get("api_error_status")
        code = _CODE_OF_TERMINAL_REASON.get(str(reason))
        if code is None and isinstance(status, int):
            is_server = status >= 500  # noqa: PLR2004 - HTTP
            code = _CODE_OF_STATUS.get(status) or (
                AgentErrorCode.MODEL_UNAVAILABLE if is_server else None
            )
        code = code or _CODE_OF_ERROR.get(self._error)
        if code is None and reason == "api_error" and status is None:
            return AgentErrorCode.MODEL_UNAVAILABLE  # no answer, or none that is one
        return code or AgentErrorCode.EXECUTION_FAILED

    def _cost(self) -> float | None:
        """Of this turn: `total_cost_usd` counts all turns of a resumed session."""
        if self._costs:
            return sum(self._costs)
        # Versions without `model_usage_since_last_result` counted by the run (2.1.197).
        total = (self._result or {}).get("total_cost_usd")
        return float(total) if isinstance(total, int | float) else None

    def _is_ours(self, record: object) -> bool:
        if not isinstance(record, dict):
            return False
        session_id = _session_id(record)
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
                self._message_text = ""
            case {"type": "content_block_start", "content_block": {"type": "text"}}:
                is_continued = self._unfinished and not self._message_text
                if self._written and not is_continued and not self._written[-1].endswith("\n\n"):
                    self._written.append("\n\n")
                    yield TextDelta(text="\n\n")
            case {
                "type": "content_block_delta",
                "delta": {"type": "text_delta", "text": str(text)},
            }:
                self._written.append(text)
                self._message_text += text
                yield TextDelta(text=text)
            case {"type": "message_delta", "usage": {"output_tokens": int(output)}}:
                self._note_end(event.get("delta"))
                yield _usage(self._started_usage, output)
            case _:
                pass

    def _note_end(self, delta: object) -> None:
        match delta:
            case {"stop_reason": "max_tokens"}:
                self._unfinished += self._message_text
            case {"stop_reason": "tool_use"}:
                self._unfinished = ""
            case _:
                pass

    def _read_message(
        self, record: Mapping[str, Any], message: Mapping[str, Any], content: list[Any]
    ) -> Iterator[AgentEvent]:
        """One block of a message; its text has been streamed already, unless this CLI did not stream."""
        if message.get("model") == _SYNTHETIC or record.get("error") is not None:
            self._error = str(record.get("error"))
            return
        is_new = message.get("id") not in self._streamed
        is_main = record.get("parent_tool_use_id") is None
        for block in content:
            match block:
                case {"type": "text", "text": str(text)} if is_new and is_main and text:
                    separated = f"\n\n{text}" if self._written else text
                    self._written.append(separated)
                    yield TextDelta(text=separated)
                case {"type": "tool_use", "id": str(tool_id), "name": str(name)}:
                    argument = _shown_argument(block.get("input"))
                    yield ToolStarted(tool_id=tool_id, name=name, argument=argument)
                case _:
                    pass

    def _read_result(self, record: Mapping[str, Any]) -> None:
        self._result = record
        models = record.get("model_usage_since_last_result")
        if isinstance(models, dict):
            costs = [model.get("costUSD") for model in models.values() if isinstance(model, dict)]
            self._costs.append(sum(cost for cost in costs if isinstance(cost, int | float)))


def _session_id(record: Mapping[str, Any]) -> str | None:
    found = record.get("session_id")
    try:
        return found if isinstance(found, str) and str(uuid.UUID(found)) == found else None
    except ValueError:
        return None


def _shown_argument(arguments: object) -> str:
    if not isinstance(arguments, dict) or not arguments:
        return ""
    named = [arguments[name] for name in _SHOWN_ARGUMENTS if isinstance(arguments.get(name), str)]
    shown = named[0] if named else json.dumps(arguments, ensure_ascii=False)
    return " ".join(shown.split())[:_MAX_ARGUMENT_CHARS]


def _finished_tools(content: list[Any]) -> Iterator[AgentEvent]:
    for block in content:
        match block:
            case {"type": "tool_result", "tool_use_id": str(tool_id)}:
                output = block.get("content", "")
                text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
                yield ToolFinished(
                    tool_id=tool_id,
                    is_error=block.get("is_error") is True,
                    output_bytes=len(text.encode("utf-8", "replace")),
                )
            case _:
                pass


def _usage(message: Mapping[str, Any], output_tokens: int) -> UsageReported:
    usage = message.get("usage")

    def count(name: str) -> int:
        value = usage.get(name) if isinstance(usage, dict) else None
        return value if isinstance(value, int) else 0

    return UsageReported(
        model=str(message.get("model", "")),
        input_tokens=count("input_tokens"),
        output_tokens=output_tokens,
        cache_read_tokens=count("cache_read_input_tokens"),
        cache_creation_tokens=count("cache_creation_input_tokens"),
    )


def _broken_servers(servers: list[Any]) -> Iterator[str]:
    """The CLI goes on without an MCP server that failed; at this line one may still be `pending`."""
    for server in servers:
        match server:
            case {"name": str(name), "status": "failed" | "needs-auth" as status}:
                yield f"MCP server {name[:80]}: {status}"
            case _:
                pass


def _explain(result: Mapping[str, Any]) -> str:
    reason = result.get("terminal_reason") or result.get("subtype")
    status, told = result.get("api_error_status"), result.get("result") or result.get("errors")
    return f"{reason}, status {status}: {told or ''}"


def _text_of(record: Mapping[str, Any], name: str) -> str:
    value = record.get(name)
    return value if isinstance(value, str) else ""
