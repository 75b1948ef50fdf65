"""How a turn ended, whatever the agent."""

import pytest

from agent_scripts.adapter import IDLE_NOTE, UNENDED_NOTE, AgentExit, ExitReason
from agent_scripts.cli_output import Failure, code_of_status, end_turn
from agent_scripts.events import AgentErrorCode, TurnFinished

_GOOD = AgentExit(exit_code=0, reason="exited")
_REFUSED = Failure(code=AgentErrorCode.MODEL_REFUSED, detail="it said no")


def _end(
    agent_exit: AgentExit, *, answer: str, failure: Failure | None = None, has_ended: bool = True
) -> TurnFinished:
    return end_turn(
        agent_exit, answer=answer, written="So far.", failure=failure, has_ended=has_ended
    )


def test_an_answer_and_a_good_exit() -> None:
    """Both are needed."""
    assert _end(_GOOD, answer="Done.") == TurnFinished(text="Done.")


@pytest.mark.parametrize("answer", ["", " \n"])
def test_no_answer(answer: str) -> None:
    """A good exit without words is a failure."""
    assert _end(_GOOD, answer=answer).error is AgentErrorCode.NO_ANSWER


def test_a_bad_exit_beats_the_answer() -> None:
    """Its detail has the code and what it said on stderr."""
    ended = AgentExit(exit_code=3, reason="exited", stderr_tail="broken")
    outcome = _end(ended, answer="Done.")
    assert outcome.error is AgentErrorCode.EXECUTION_FAILED
    assert outcome.detail == "exit code 3: broken"


def test_a_told_failure_beats_a_good_exit() -> None:
    """Some exit with 0 after it."""
    outcome = _end(_GOOD, answer="Done.", failure=_REFUSED)
    assert outcome.error is AgentErrorCode.MODEL_REFUSED
    assert outcome.detail == "it said no (exit code 0: )"
    assert outcome.text == "So far."


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("timeout", AgentErrorCode.TIMEOUT),
        ("stopped", AgentErrorCode.EXECUTION_FAILED),
        ("lost", AgentErrorCode.EXECUTION_FAILED),
        ("disk_limit", AgentErrorCode.DISK_LIMIT),
    ],
)
def test_what_we_did_beats_all(reason: ExitReason, code: AgentErrorCode) -> None:
    """An answer or a failure told before does not count."""
    ended = AgentExit(exit_code=0, reason=reason)
    assert _end(ended, answer="Done.").error is code
    assert _end(ended, answer="", failure=_REFUSED).error is code


def test_the_idle_limit_after_the_answer() -> None:
    """Is a success with a note; before it, and after a failure, it is not."""
    ended = AgentExit(exit_code=143, reason="idle")
    assert _end(ended, answer="Done.") == TurnFinished(text="Done.", notes=(IDLE_NOTE,))
    assert _end(ended, answer="").error is AgentErrorCode.IDLE
    assert _end(ended, answer="Done.", failure=_REFUSED).error is AgentErrorCode.IDLE


def test_a_final_text_of_a_turn_that_was_not_called_finished() -> None:
    """Counts at the idle limit, with a note that says so; neither when it was stopped or late, nor after an exit."""
    idle = AgentExit(exit_code=143, reason="idle")
    told = _end(idle, answer="Done.", has_ended=False)
    assert told == TurnFinished(text="Done.", notes=(UNENDED_NOTE,))
    for reason in ("timeout", "stopped", "output_limit"):
        ended = AgentExit(exit_code=143, reason=reason)
        assert _end(ended, answer="Done.", has_ended=False).error is not None
    assert _end(_GOOD, answer="Done.", has_ended=False).error is AgentErrorCode.NO_ANSWER


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, None),
        (401, AgentErrorCode.MODEL_AUTH_FAILED),
        (429, AgentErrorCode.MODEL_RATE_LIMITED),
        (503, AgentErrorCode.MODEL_UNAVAILABLE),
        (529, AgentErrorCode.MODEL_OVERLOADED),
        ("429", None),
        (None, None),
    ],
)
def test_statuses(status: object, code: AgentErrorCode | None) -> None:
    """By number; a 400 can be many things."""
    assert code_of_status(status) is code


def test_its_own_words_are_not_lost_behind_its_log() -> None:
    """A long stderr is cut, from its beginning; what the agent said of the failure stands before it."""
    ended = AgentExit(exit_code=1, reason="exited", stderr_tail=f"{'noise ' * 5000}the end")
    outcome = _end(ended, answer="", failure=_REFUSED)
    assert outcome.detail.startswith("it said no (exit code 1: ")
    assert outcome.detail.endswith("noise the end)")
