"""What `inside/agent.py` prints, read as events and an outcome: one JSON object a line."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agent_scripts.adapter import AgentExit
from agent_scripts.cli_output import (
    Failure,
    broken_server_note,
    count_of,
    end_turn,
    read_record,
    shown_argument,
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


class AnthropicParser:
    """Implements EventParser."""

    def __init__(self) -> None:
        self._written: list[str] = []
        self._final = ""
        self._failure: Failure | None = None
        self._notes: list[str] = []

    def feed(self, line: str) -> Sequence[AgentEvent]:
        record = read_record(line)
        return tuple(self._read(record)) if record else ()

    def finish(self, agent_exit: AgentExit) -> TurnFinished:
        return end_turn(
            agent_exit,
            answer=self._final,
            written=self._final or "".join(self._written),
            failure=self._failure,
            notes=self._notes,
        )

    def _read(self, record: Mapping[str, Any]) -> Iterator[AgentEvent]:
        match record:
            case {"type": "text", "text": str(text)}:
                self._written.append(text)
                yield TextDelta(text=text)
            case {"type": "tool_started", "id": str(tool_id), "name": str(name)}:
                argument = shown_argument(record.get("argument"))
                yield ToolStarted(tool_id=tool_id, name=name, argument=argument)
            case {"type": "tool_finished", "id": str(tool_id)}:
                yield ToolFinished(
                    tool_id=tool_id,
                    is_error=bool(record.get("is_error")),
                    output_bytes=count_of(record, "output_bytes"),
                )
            case {"type": "heard", "id": str(message_id)}:
                yield MessageHeard(message_id=message_id)
            case {"type": "usage", "model": str(model)}:
                yield UsageReported(
                    model=model,
                    input_tokens=count_of(record, "input_tokens"),
                    output_tokens=count_of(record, "output_tokens"),
                    cache_read_tokens=count_of(record, "cache_read_tokens"),
                    cache_creation_tokens=count_of(record, "cache_creation_tokens"),
                )
            case {"type": "server_broken", "name": str(name), "reason": str(reason)}:
                self._notes.append(broken_server_note(name, reason))
            case {"type": "final", "text": str(text)}:
                self._final = text.strip()
            case {"type": "error", "code": str(told)}:
                known = told in set(AgentErrorCode)
                code = AgentErrorCode(told) if known else AgentErrorCode.EXECUTION_FAILED
                detail = f"{record.get('message', '')} (status {record.get('status')})"
                self._failure = Failure(code=code, detail=detail)
            case _:
                pass  # a stray print of a library or tool is no event
