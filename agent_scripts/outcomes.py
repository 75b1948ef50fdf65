"""How a turn ended, decided for every command line alike: by us, by a failure that it told, by its exit code, by its answer. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from agent_scripts.adapter import ENDED_BY_US, IDLE_NOTE, UNENDED_NOTE, AgentExit
from agent_scripts.errors import AgentErrorCode
from agent_scripts.output_lines import MAX_DETAIL_CHARS

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
    """What the agent itself said, or what its output shows, of why there is no answer."""

    code: AgentErrorCode
    detail: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    error: AgentErrorCode | None = None
    detail: str = field(default="", repr=False)
    notes: tuple[str, ...] = ()


def code_of_status(status: object) -> AgentErrorCode | None:
    """What an HTTP status of a model's API means; None when it says no more than that something failed."""
    if not isinstance(status, int):
        return None
    known = _CODE_OF_STATUS.get(status)
    return known or (AgentErrorCode.MODEL_UNAVAILABLE if status in _SERVER_ERRORS else None)


def decide(
    agent_exit: AgentExit, *, answer: str, failure: Failure | None, has_ended: bool = True
) -> Outcome:
    """The outcome of a turn.

    Args:
        agent_exit: how the process ended; what we did ourselves beats whatever it said.
        answer: the final text of a turn; empty if it was none.
        failure: overrules an answer.
        has_ended: the agent itself called the turn finished. Otherwise the answer counts at the idle limit alone, where the
            agent had nothing left to do and yet did not end.
    """
    is_answered = failure is None and bool(answer.strip())
    if agent_exit.reason == "idle" and is_answered:
        return Outcome(notes=(IDLE_NOTE if has_ended else UNENDED_NOTE,))
    if agent_exit.reason != "exited":
        return Outcome(
            error=ENDED_BY_US[agent_exit.reason],
            detail=f"ended by the supervisor: {agent_exit.reason}",
        )
    ended = f"exit code {agent_exit.exit_code}: {agent_exit.stderr_tail[-MAX_DETAIL_CHARS:]}"
    if failure is not None:
        return Outcome(error=failure.code, detail=f"{failure.detail} ({ended})")
    if agent_exit.exit_code != 0:
        return Outcome(error=AgentErrorCode.EXECUTION_FAILED, detail=ended)
    if not is_answered or not has_ended:
        return Outcome(error=AgentErrorCode.NO_ANSWER, detail=f"no final answer ({ended})")
    return Outcome()
