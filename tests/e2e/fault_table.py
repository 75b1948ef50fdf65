"""What may go wrong outside, what becomes of a question then, and the test that proves it: declared here and only here.

`make faults` renders it to docs/faults.md. Tests hold a run's record against the row with `fault(…).assert_holds(record)`.
"""

import sys
from dataclasses import dataclass
from typing import Final

from app.errors import ErrorCode
from app.runs.testing import Run, RunState

_SLACK: Final = "tests/e2e/test_slack_faults.py"
_MODEL: Final = "tests/e2e/test_model_failures.py"
_TRACES: Final = "tests/e2e/test_traces.py"
_ACKS: Final = "tests/e2e/test_acknowledgements.py"
_DATABASE: Final = "tests/e2e/test_sick_database.py"
_MACHINE: Final = "tests/e2e/test_sick_machine.py"
_DELIVERY: Final = "tests/faults/test_delivery.py"
_CLOUDS: Final = "tests/e2e/test_cloud_faults.py::test_whatever_goes_wrong_there"
_PROCESSES: Final = "tests/e2e/test_sick_processes.py"
_DEPLOYS: Final = "tests/e2e/test_deploys.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault and its outcome."""

    system: str
    name: str
    thread: str
    """What people see in the end."""
    test: str
    """`path::function`."""
    state: RunState = RunState.SUCCEEDED
    code: ErrorCode | None = None
    delivery: str = "sent"

    @property
    def key(self) -> str:
        return f"{self.system}: {self.name}"

    @property
    def record(self) -> str:
        """What `orion runs show` says."""
        code = f" {self.code}" if self.code else ""
        return f"{self.state}{code}, {self.delivery}"

    def assert_holds(self, run: Run) -> None:
        assert (run.state, run.result.error_code, run.delivery) == (
            self.state,
            self.code,
            self.delivery,
        )


def _failed(system: str, name: str, thread: str, code: ErrorCode, test: str) -> Fault:
    return Fault(
        system=system, name=name, thread=thread, test=test, state=RunState.FAILED, code=code
    )


_OWN_WORDS: Final = f"{_MODEL}::test_each_failure_of_the_model_has_its_own_words"

FAULTS: Final = (
    Fault(
        system="Slack",
        name="429 with Retry-After",
        thread="one message, the answer, later",
        test=f"{_SLACK}::test_rate_limits_delay_but_lose_nothing",
    ),
    Fault(
        system="Slack",
        name="500",
        thread="one message, the answer",
        test=f"{_SLACK}::test_server_errors_are_tried_again",
    ),
    Fault(
        system="Slack",
        name="502 of a gateway, in HTML",
        thread="one message, the answer",
        test=f"{_SLACK}::test_server_errors_are_tried_again",
    ),
    Fault(
        system="Slack",
        name="time-out after the message was posted",
        thread="one message, found again and not posted twice",
        test=f"{_SLACK}::test_a_post_whose_answer_is_late_is_not_posted_again",
    ),
    Fault(
        system="Slack",
        name="connection cut after the message was posted",
        thread="one message, found again and not posted twice",
        test=f"{_SLACK}::test_a_post_whose_answer_was_lost_is_not_posted_again",
    ),
    Fault(
        system="Slack",
        name="connection cut before the message was posted",
        thread="one message, the answer",
        test=f"{_SLACK}::test_a_post_that_never_arrived_is_posted_again",
    ),
    Fault(
        system="Slack",
        name="down while a run ends",
        thread="the answer, once Slack is back",
        test=f"{_SLACK}::test_an_answer_waits_for_slack_to_come_back",
    ),
    Fault(
        system="Slack",
        name="down for good",
        thread="nothing new; given up after queue time, three run times and 15 min",
        delivery="failed(timeout)",
        test=f"{_DELIVERY}::test_an_outage_without_end_is_given_up",
    ),
    Fault(
        system="Slack",
        name="token revoked",
        thread="nothing new; record, trace and metric say so",
        delivery="failed(token_revoked)",
        test=f"{_SLACK}::test_a_revoked_token_ends_the_run_without_an_answer",
    ),
    Fault(
        system="Slack",
        name="channel archived",
        thread="nothing new; record, trace and metric say so",
        delivery="failed(is_archived)",
        test=f"{_SLACK}::test_an_archived_channel_ends_the_run_without_an_answer",
    ),
    Fault(
        system="Slack",
        name="thinking message deleted",
        thread="one message, the answer, posted anew",
        test=f"{_SLACK}::test_a_deleted_thinking_message_is_replaced_by_the_answer",
    ),
    _failed(
        "Model", "429", "one message, the code's sentence", ErrorCode.MODEL_RATE_LIMITED, _OWN_WORDS
    ),
    _failed(
        "Model", "529", "one message, the code's sentence", ErrorCode.MODEL_OVERLOADED, _OWN_WORDS
    ),
    _failed(
        "Model",
        "cut stream",
        "one message: what was written, the code's sentence",
        ErrorCode.MODEL_UNAVAILABLE,
        _OWN_WORDS,
    ),
    _failed(
        "Model",
        "garbage",
        "one message, the code's sentence",
        ErrorCode.MODEL_UNAVAILABLE,
        _OWN_WORDS,
    ),
    _failed(
        "Model",
        "stalled stream",
        "one message, after the idle time",
        ErrorCode.AGENT_IDLE,
        f"{_MODEL}::test_silence_and_the_deadline_end_a_run",
    ),
    Fault(
        system="Langfuse",
        name="down",
        thread="the answer, not later",
        test=f"{_TRACES}::test_a_dead_langfuse_slows_nothing",
    ),
    Fault(
        system="Langfuse",
        name="black hole",
        thread="the answer, not later",
        test=f"{_TRACES}::test_a_dead_langfuse_slows_nothing",
    ),
    Fault(
        system="Langfuse",
        name="401",
        thread="the answer, not later; a metric counts lost exports",
        test=f"{_ACKS}::test_faults_outside_do_not_delay_acknowledgements",
    ),
    Fault(
        system="Langfuse",
        name="slow",
        thread="the answer, not later",
        test=f"{_ACKS}::test_faults_outside_do_not_delay_acknowledgements",
    ),
    Fault(
        system="Database",
        name="locked by another process",
        thread="Slack gets 500 within 2.5 s; once delivered again: one message, the answer",
        test=f"{_DATABASE}::test_a_locked_database_refuses_in_time_and_loses_nothing",
    ),
    Fault(
        system="Database",
        name="full disk",
        thread="Slack gets 500 within 2.5 s; once delivered again: one message, the answer",
        test=f"{_DATABASE}::test_a_full_and_a_read_only_disk_refuse_and_lose_nothing",
    ),
    Fault(
        system="Database",
        name="read-only disk at the start",
        thread="it does not start, and says why; afterwards: one message, the answer",
        test=f"{_DATABASE}::test_a_full_and_a_read_only_disk_refuse_and_lose_nothing",
    ),
    Fault(
        system="Machine",
        name="disk full in the sandbox",
        thread="one message, the answer; the agent sees the error of its tool",
        test=f"{_MACHINE}::test_a_full_disk_in_the_sandbox_is_the_agents_to_see",
    ),
    Fault(
        system="Machine",
        name="clock jumps forward",
        thread="one message, the answer",
        test=f"{_MACHINE}::test_a_run_survives_a_jump_of_the_clock",
    ),
    Fault(
        system="Machine",
        name="clock jumps back",
        thread="one message, the answer",
        test=f"{_MACHINE}::test_a_run_survives_a_jump_of_the_clock",
    ),
    Fault(
        system="Cloud",
        name="each step of a sandbox's life fails once",
        thread="one message, the answer",
        test=_CLOUDS,
    ),
    _failed(
        "Cloud",
        "too many requests or sandboxes",
        "one message, the code's sentence",
        ErrorCode.SANDBOX_LIMIT_REACHED,
        _CLOUDS,
    ),
    _failed(
        "Cloud",
        "token revoked",
        "one message, the code's sentence",
        ErrorCode.SANDBOX_CREATION_FAILED,
        _CLOUDS,
    ),
    Fault(
        system="Cloud",
        name="connection to a working agent cut",
        thread="one message, the answer; nothing was done twice",
        test=_CLOUDS,
    ),
    _failed(
        "Cloud",
        "sandbox ends under its agent",
        "one message, the code's sentence; the thread's files are as before the question",
        ErrorCode.SANDBOX_LOST,
        _CLOUDS,
    ),
    Fault(
        system="Cloud",
        name="nothing can be saved",
        thread="one message, the answer, which says so; the thread's files are as before the question",
        test=_CLOUDS,
    ),
    Fault(
        system="Orion",
        name="SIGTERM, and a new version starts",
        thread="one message each, the answer: of the old process within 10 s, else of the new one",
        test=f"{_DEPLOYS}::test_a_deploy_answers_every_question_once",
    ),
    Fault(
        system="PostgreSQL",
        name="away for 20 s in the middle of a run",
        thread="one message, the answer; no attempt is counted",
        test=f"{_PROCESSES}::test_a_database_that_is_away_for_20_s",
    ),
    Fault(
        system="PostgreSQL",
        name="gone until no sandbox is left, and brought back",
        thread="nothing new, and no sandbox is left; Slack gets 500; then one message, the answer",
        test=f"{_PROCESSES}::test_a_database_that_does_not_come_back",
    ),
    Fault(
        system="Processes",
        name="one is killed",
        thread="one message, the answer, of another one within 60 s",
        test="tests/e2e/test_processes.py::test_a_killed_workers_run_is_answered_by_another",
    ),
    Fault(
        system="Processes",
        name="the clock of one is off by 10 min",
        thread="one message, the answer",
        test=f"{_PROCESSES}::test_the_clock_of_one_process_is_wrong",
    ),
    Fault(
        system="Processes",
        name="a sandbox is led to one that does not have its run",
        thread="one message, the answer; models are asked and counted as ever",
        test="tests/e2e/test_on_postgresql.py::test_a_sandbox_that_reaches_another_process_is_served",
    ),
)

_OF_CLOUD: Final = "test_faults.py: test_the_cloud"
_OF_SLACK: Final = "test_faults.py: test_slack"
_OF_MODEL: Final = "test_faults.py: test_the_model"
_NOT_SQLITE: Final = "no: SQLite's"
_AS_BLACK_HOLE: Final = "no: it takes less time than the black hole"
_NO_CLOCK: Final = "no: functions go by the database's clock, and their own is Vercel's"
ON_VERCEL: Final = {
    "Slack: down for good": "no: the time of its end is in the record, as for processes",
    "Langfuse: down": _AS_BLACK_HOLE,
    "Langfuse: black hole": "test_faults.py: test_traces_that_nobody_takes",
    "Langfuse: 401": _AS_BLACK_HOLE,
    "Langfuse: slow": _AS_BLACK_HOLE,
    "Database: locked by another process": _NOT_SQLITE,
    "Database: full disk": _NOT_SQLITE,
    "Database: read-only disk at the start": _NOT_SQLITE,
    "Machine: disk full in the sandbox": "no: the disk is the cloud's",
    "Machine: clock jumps forward": _NO_CLOCK,
    "Machine: clock jumps back": _NO_CLOCK,
    "Orion: SIGTERM, and a new version starts": "no: an invocation is ended by nobody, and its messages come to the deployment that has sent them",
    "PostgreSQL: away for 20 s in the middle of a run": "test_faults.py: test_a_database_that_is_away",
    "PostgreSQL: gone until no sandbox is left, and brought back": "no: sandboxes end by their own lifetime",
    "Processes: one is killed": "test_kills.py: test_killed_at_each_tenth_point",
    "Processes: the clock of one is off by 10 min": _NO_CLOCK,
    "Processes: a sandbox is led to one that does not have its run": "test_functions.py: test_the_broker_behind_the_function_that_hears",
}
"""By row: the test of `tests/vercel` in which functions meet it, or why none does; of a system's other rows see `on_vercel`."""

_HEAD: Final = """\
# What happens when things break

Rendered by `make faults` from the table in `tests/e2e/fault_table.py`; a test keeps them equal, and each row names the test
that breaks it. Whatever breaks, a question ends in one message. When Slack takes none any more, `orion runs show` (state, code,
delivery), the trace and the metric `orion_deliveries` say so. None of these faults delays an acknowledgement, but the
database's own: then Slack is told 500 in time, and delivers again.

Waits inside one process (deadlines, time-outs, pauses that Slack asked for) do not look at the wall clock. What must outlive
the process does: the time a question may wait in its queue, the hour of a person's quota, and the time an answer waits for
Slack to come back. A clock that jumps over such a time ends the wait.

As functions on Vercel Orion meets them in `tests/vercel`, with the real build, runtime and queue; the last column names the
test there, or says why there is none. The thread ends in the same; only where a sandbox ends between two slices, nobody sees it,
and its turn begins again in another one.

| what breaks | what the thread ends in | record | test | on Vercel |
|---|---|---|---|---|
"""


def fault(key: str) -> Fault:
    """The row of that key, `system: name`."""
    (found,) = (row for row in FAULTS if row.key == key)
    return found


def on_vercel(row: Fault) -> str:
    """In which test functions meet it, `file: function`, or why in none."""
    of_system = {"Slack": _OF_SLACK, "Model": _OF_MODEL, "Cloud": _OF_CLOUD}
    return ON_VERCEL.get(row.key) or of_system[row.system]


def render() -> str:
    """The document."""
    rows = (
        f"| {row.key} | {row.thread} | {row.record} | `{row.test.partition('::')[0]}`: {row.test.partition('::')[2]} | {on_vercel(row)} |\n"
        for row in FAULTS
    )
    return _HEAD + "".join(rows)


if __name__ == "__main__":
    sys.stdout.write(render())
