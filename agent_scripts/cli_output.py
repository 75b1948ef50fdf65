"""What the output of all command lines has in common: JSON objects line by line, the text of the answer, and how a turn ended. Pure."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_scripts.adapter import ENDED_BY_US, IDLE_NOTE, UNENDED_NOTE, AgentExit
from agent_scripts.events import AgentErrorCode, PlanStep, TextDelta, TurnFinished

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""Nothing but the plain form: the same number can be written with braces, or as a URN."""
MAX_DETAIL_CHARS = 4000
_MAX_COST_USD = 1e6
"""No turn costs that much; whoever writes more than that lies."""
_MAX_DEPTH = 100
"""What is not much deeper than that can be parsed, but neither written as JSON nor shown again."""
_MAX_ARGUMENT_CHARS = 2000
_MAX_PLAN_STEPS = 50
_MAX_STEP_CHARS = 200
_STEP_TITLES = ("content", "description", "text", "title", "step")
_CHECK_BOX = re.compile(r"^\s*[-*] \[([ xX])\] (\S.*)$", re.MULTILINE)
_SHOWN_ARGUMENTS = (
    *("command", "cmd", "file_path", "filePath", "filepath", "notebook_path", "path"),
    *("description", "pattern", "query", "url", "name"),
)


def read_record(line: str) -> Mapping[str, Any] | None:
    """Returns the JSON object that this line is; None for anything else, however deep or broken."""
    if not line.lstrip().startswith("{"):
        return None
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    # Whoever has no more brackets than that is not deeper: looking for them is cheap.
    if line.count("{") + line.count("[") > _MAX_DEPTH and _is_too_deep(record):
        return None
    return record if isinstance(record, dict) else None


def text_of(record: object, name: str) -> str:
    """Returns the record's member of that name if it is a text, else an empty one."""
    value = record.get(name) if isinstance(record, dict) else None
    return value if isinstance(value, str) else ""


def count_of(record: object, name: str) -> int:
    """Returns the record's member of that name if it is a whole number from 0, else 0."""
    value = record.get(name) if isinstance(record, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def cost_of(told: object) -> float | None:
    """Returns the number of dollars that an agent told, if it can be one; it may tell `NaN`, `1e999` or a number of 400 digits, too."""
    if isinstance(told, bool) or not isinstance(told, int | float):
        return None
    return float(told) if 0 <= told <= _MAX_COST_USD else None


def total_cost(told: Iterable[object]) -> float | None:
    """Returns the sum of the dollars told; None if one of them is no number of dollars."""
    costs = [cost_of(one) for one in told]
    known = [cost for cost in costs if cost is not None]
    return cost_of(sum(known)) if len(known) == len(costs) else None


def shown_argument(arguments: object) -> str:
    """Returns the argument of a tool that a person would want to see, on one line; all of them where none of those is known."""
    if isinstance(arguments, str):
        shown = arguments
    elif isinstance(arguments, dict) and arguments:
        known = [arguments.get(name) for name in _SHOWN_ARGUMENTS]
        named = [value for value in known if isinstance(value, str) and value]
        shown = named[0] if named else json.dumps(arguments, ensure_ascii=False)
    else:
        return ""
    return " ".join(shown[: 4 * _MAX_ARGUMENT_CHARS].split())[:_MAX_ARGUMENT_CHARS]


def plan_in(arguments: object) -> tuple[PlanStep, ...]:
    """Returns the steps of a plan, whichever agent's tool tells it, at most 50; empty for the arguments of any other tool.

    Source: what Claude Code (TodoWrite), Codex (`turn/plan/updated`), Gemini (`write_todos`), OpenCode (`todowrite`), Cursor (`updateTodos`)
    and Copilot (`update_todo`: Markdown with check boxes) are documented to take, read 2026-11.
    """
    if not isinstance(arguments, dict):
        return ()
    told = next((arguments[name] for name in ("todos", "items", "plan") if name in arguments), None)
    if isinstance(told, str):
        boxes = _CHECK_BOX.findall(told)[:_MAX_PLAN_STEPS]
        return tuple(_plan_step(text, mark.strip() and "done") for mark, text in boxes)
    if not isinstance(told, list):
        return ()
    steps = []
    for one in told[:_MAX_PLAN_STEPS]:
        title = next((text for name in _STEP_TITLES if (text := text_of(one, name))), "")
        done = isinstance(one, dict) and one.get("completed") is True
        if not title:
            return ()  # a list of something else
        steps.append(_plan_step(title, "done" if done else text_of(one, "status")))
    return tuple(steps)


def _plan_step(title: str, status: str) -> PlanStep:
    word = status.lower().removeprefix("todo_status_").replace("-", "").replace("_", "")
    shown = " ".join(title.split())[:_MAX_STEP_CHARS]
    if word in ("done", "completed", "complete", "cancelled", "canceled"):
        return PlanStep(title=shown, status="completed")
    return PlanStep(title=shown, status="in_progress" if word == "inprogress" else "pending")


def size_of(output: object) -> int:
    """Returns the bytes of what a tool gave back: of a text as it is, of anything else as JSON; None = 0."""
    if output is None:
        return 0
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    return len(text.encode("utf-8", "replace"))


def told_session(value: object, form: re.Pattern[str] = UUID) -> str | None:
    """Returns the session id that an agent told, in the form that it takes back; None for anything else."""
    return value if isinstance(value, str) and form.fullmatch(value) else None


def broken_server_note(name: str, status: str) -> str:
    """Returns a note of a turn, about a server that its agent went on without; `name` is cut to 80 characters."""
    return f"The MCP server `{name[:80]}` could not be used: {status}."


class AnswerText:
    """Grows with the text alone, which the supervisor's limit of output bounds."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._begin = 0
        """Index of the first piece of the message that is being written."""

    def begin_message(self) -> None:
        """Begins a message of its own; the answer is the last one with text in it."""
        self._begin = len(self._pieces)

    def write(self, text: str) -> Iterator[TextDelta]:
        """Yields the piece as an event, behind a blank line where a new message needs one."""
        if not text:
            return
        is_first = self._begin == len(self._pieces)
        if is_first and self._pieces and not self._pieces[-1].endswith("\n\n"):
            self._pieces.append("\n\n")
            yield TextDelta(text="\n\n")
            self._begin = len(self._pieces)
        self._pieces.append(text)
        yield TextDelta(text=text)

    @property
    def message(self) -> str:
        """Returns the message that is being written; empty while it has no text."""
        return "".join(self._pieces[self._begin :]).strip()

    @property
    def whole(self) -> str:
        """Returns all text since the turn's begin."""
        return "".join(self._pieces).strip()


_CODE_OF_STATUS: Mapping[int, AgentErrorCode] = {
    401: AgentErrorCode.MODEL_AUTH_FAILED,
    402: AgentErrorCode.MODEL_BILLING,
    403: AgentErrorCode.MODEL_AUTH_FAILED,
    404: AgentErrorCode.MODEL_NOT_FOUND,
    413: AgentErrorCode.MODEL_CONTEXT_EXCEEDED,
    429: AgentErrorCode.MODEL_RATE_LIMITED,
    529: AgentErrorCode.MODEL_OVERLOADED,
}
_SERVER_ERRORS = range(500, 600)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Says why there is no answer, by the agent's own words or by what its output shows."""

    code: AgentErrorCode
    detail: str = field(repr=False)


def code_of_status(status: object) -> AgentErrorCode | None:
    """Returns what an HTTP status of a model's API means; None when it says no more than that something failed."""
    if not isinstance(status, int):
        return None
    known = _CODE_OF_STATUS.get(status)
    return known or (AgentErrorCode.MODEL_UNAVAILABLE if status in _SERVER_ERRORS else None)


def end_turn(
    agent_exit: AgentExit,
    *,
    answer: str,
    written: str,
    failure: Failure | None = None,
    has_ended: bool = True,
    session_id: str | None = None,
    cost_usd: float | None = None,
    notes: Iterable[str] = (),
) -> TurnFinished:
    """Returns the outcome of a turn.

    Args:
        agent_exit: how the process ended; what we did ourselves beats whatever it said.
        answer: the final text of a turn; empty if it was none.
        written: all text of the turn, which is shown where there is no answer.
        failure: overrules an answer.
        has_ended: the agent itself called the turn finished. Otherwise the answer counts at the idle limit alone, where the
            agent had nothing left to do and yet did not end.
        session_id: as the agent told it.
        cost_usd: as the agent told it.
        notes: of the agent; that it did not end comes behind them.
    """
    answer = answer.strip() if failure is None else ""
    error, detail = _decide(agent_exit, failure, is_answered=bool(answer), has_ended=has_ended)
    if error is None and agent_exit.reason == "idle":
        notes = (*notes, IDLE_NOTE if has_ended else UNENDED_NOTE)
    return TurnFinished(
        text=answer if error is None else written.strip(),
        error=error,
        detail=detail[-MAX_DETAIL_CHARS:],
        agent_session_id=session_id,
        cost_usd=cost_usd,
        notes=tuple(notes),
    )


def _decide(
    agent_exit: AgentExit, failure: Failure | None, *, is_answered: bool, has_ended: bool
) -> tuple[AgentErrorCode | None, str]:
    """Returns why there is no answer, None where there is one, and words for the operator."""
    if agent_exit.reason == "idle" and is_answered:
        return None, ""
    if agent_exit.reason != "exited":
        return ENDED_BY_US[agent_exit.reason], f"ended by the supervisor: {agent_exit.reason}"
    ended = f"exit code {agent_exit.exit_code}: {agent_exit.stderr_tail[-MAX_DETAIL_CHARS // 2 :]}"
    if failure is not None:  # its own words first: they say more than the end of a log
        return failure.code, f"{failure.detail[: MAX_DETAIL_CHARS // 3]} ({ended})"
    if agent_exit.exit_code != 0:
        return AgentErrorCode.EXECUTION_FAILED, ended
    if not is_answered or not has_ended:
        return AgentErrorCode.NO_ANSWER, f"no final answer ({ended})"
    return None, ""


def _is_too_deep(record: object) -> bool:
    level: list[Any] = [record]
    for _ in range(_MAX_DEPTH):
        inside = (one.values() if isinstance(one, dict) else one for one in level)
        level = [one for values in inside for one in values if isinstance(one, dict | list)]
        if not level:
            return False
    return True
