"""What NAME prints, read as events and an outcome."""

from collections.abc import Sequence

from agent_scripts.adapter import AgentExit
from agent_scripts.cli_output import AnswerText, end_turn, read_record, shown_argument, size_of
from agent_scripts.events import AgentEvent, ToolFinished, ToolStarted, TurnFinished


class NameParser:
    """Implements EventParser."""

    def __init__(self) -> None:
        self._text = AnswerText()

    def feed(self, line: str) -> Sequence[AgentEvent]:
        match read_record(line):
            case {"type": "message"}:
                self._text.begin_message()
            case {"type": "text", "text": str(text)}:
                return tuple(self._text.write(text))
            case {"type": "command", "id": str(tool_id), "command": command}:
                return (
                    ToolStarted(tool_id=tool_id, name="shell", argument=shown_argument(command)),
                )
            case {"type": "output", "id": str(tool_id), "failed": bool(failed), "output": output}:
                return (
                    ToolFinished(tool_id=tool_id, is_error=failed, output_bytes=size_of(output)),
                )
            case _:  # of a newer version
                pass
        return ()

    def finish(self, agent_exit: AgentExit) -> TurnFinished:
        return end_turn(agent_exit, answer=self._text.message, written=self._text.whole)
