"""What Cursor's command line is documented to print with `--output-format stream-json`, read as events and an outcome.

EXPERIMENTAL: nothing here was recorded. Source: cursor.com/docs/cli, "Output format", read 2026-11. A failure has no line of
its own there, only an exit code and words on stderr: it is AgentErrorCode.EXECUTION_FAILED, whatever the words are.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agent_scripts.adapter import AgentExit
from agent_scripts.cli_output import (
    AnswerText,
    Failure,
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

SESSION_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{7,63}")
_TOOL_SUFFIX = "ToolCall"


class CursorParser:
    """Implements EventParser."""

    def __init__(self) -> None:
        self._session_id: str | None = None
        self._model = ""
        self._text = AnswerText()
        self._result: Mapping[str, Any] | None = None

    def feed(self, line: str) -> Sequence[AgentEvent]:
        record = read_record(line)
        if record is None:
            return ()
        self._session_id = self._session_id or told_session(record.get("session_id"), SESSION_ID)
        return tuple(self._read(record))

    def finish(self, agent_exit: AgentExit) -> TurnFinished:
        result = self._result
        is_good = (
            result is not None
            and result.get("subtype") == "success"
            and result.get("is_error") is not True
        )
        failure = None
        if result is not None and not is_good:
            told = f"{text_of(result, 'subtype')}: {text_of(result, 'result')}"
            failure = Failure(code=AgentErrorCode.EXECUTION_FAILED, detail=told)
        # `result` joins the text of all messages: the last message alone is the answer.
        answer = (self._text.message or text_of(result, "result").strip()) if is_good else ""
        return end_turn(
            agent_exit,
            answer=answer,
            written=self._text.whole,
            failure=failure,
            session_id=self._session_id,
        )

    def _read(self, record: Mapping[str, Any]) -> Iterator[AgentEvent]:
        match record:
            case {"type": "system", "subtype": "init"}:
                self._model = text_of(record, "model")
            case {"type": "assistant", "message": {"content": list(content)}}:
                self._text.begin_message()
                yield from self._text.write("".join(text_of(block, "text") for block in content))
            case {
                "type": "tool_call",
                "subtype": "started" | "completed" as when,
                "call_id": str(tool_id),
                "tool_call": dict(call),
            }:
                self._text.begin_message()
                yield from _read_tool(when, tool_id, call)
            case {"type": "result"}:
                self._result = record
                yield from self._usage(record.get("usage"))
            case _:
                pass

    def _usage(self, usage: object) -> Iterator[UsageReported]:
        """Yields the usage of the whole turn, which only newer versions tell."""
        told = count_of(usage, "inputTokens"), count_of(usage, "outputTokens")
        if any(told):
            yield UsageReported(
                model=self._model,
                input_tokens=told[0],
                output_tokens=told[1],
                cache_read_tokens=count_of(usage, "cacheReadTokens"),
                cache_creation_tokens=count_of(usage, "cacheWriteTokens"),
            )


def _read_tool(when: str, tool_id: str, call: Mapping[str, Any]) -> Iterator[AgentEvent]:
    """Reads a tool call, whose one member names its kind: `readToolCall`, `shellToolCall`…, or `function` for what has none."""
    found = [(key, body) for key, body in call.items() if isinstance(body, dict)]
    if not found:
        return
    key, body = found[0]
    if when == "started":
        name = text_of(body, "name") if key == "function" else key.removesuffix(_TOOL_SUFFIX)
        given = body.get("arguments") if key == "function" else body.get("args")
        plan = plan_in(given) if name == "updateTodos" else ()
        yield ToolStarted(tool_id=tool_id, name=name, argument=shown_argument(given), plan=plan)
        return
    result = body.get("result")
    is_error = isinstance(result, dict) and "success" not in result and bool(result)
    yield ToolFinished(tool_id=tool_id, is_error=is_error, output_bytes=size_of(result))
