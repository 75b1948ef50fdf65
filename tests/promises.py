"""What `make test` proves on each change, whatever else is long: a real test of every invariant, provider and agent, by name.

`python -m tests.promises` prints the table of docs/testing.md. A plugin of pytest notes which tests there are, for the test that holds this.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Final

import pytest

_E2E: Final = "tests/e2e"
_FACTS: Final = "tests/contract/sandbox_runtime"
PROMISES: Final[Mapping[str, Sequence[str]]] = {
    "1. Persist, then acknowledge": (
        f"{_E2E}/test_crashes.py::test_kill_9_right_after_the_acknowledgement",
        f"{_E2E}/test_sick_database.py::test_a_locked_database_refuses_in_time_and_loses_nothing",
    ),
    "2. Accepted once": (
        f"{_E2E}/test_crash_matrix.py::test_killed_at_random_under_load",
        "tests/contract/test_dispatchers.py::test_a_repeated_submit_changes_nothing[sqlite]",
    ),
    "3. Never dangling": (
        f"{_E2E}/test_crashes.py::test_kill_9_while_writing_and_waiting",
        f"{_E2E}/test_model_failures.py::test_silence_and_the_deadline_end_a_run",
        f"{_E2E}/test_slack_faults.py::test_a_revoked_token_ends_the_run_without_an_answer",
    ),
    "4. Answered once": (
        f"{_E2E}/test_crash_matrix.py::test_killed_where_it_matters_most",
        f"{_E2E}/test_slack_faults.py::test_a_post_whose_answer_was_lost_is_not_posted_again",
    ),
    "5. In order per thread, fair": (
        f"{_E2E}/test_queueing.py::test_waiting_is_shown_at_once_and_order_is_kept",
        f"{_E2E}/test_fairness.py::test_a_backlog_of_one_person_delays_nobody_else",
    ),
    "6. Stop is honest": (
        f"{_E2E}/test_stopping.py::test_stop_ends_the_agent_and_keeps_what_was_written[_say]",
        f"{_E2E}/test_stopping.py::test_stop_ends_the_agent_and_keeps_what_was_written[_native]",
        f"{_E2E}/test_stopping.py::test_stop_kills_what_a_tool_has_started",
    ),
    "7. No key inside": (
        f"{_E2E}/test_canary.py::test_an_agent_that_looks_everywhere_finds_nothing[local-False]",
        f"{_E2E}/test_canary.py::test_an_agent_that_looks_everywhere_finds_nothing[docker-True]",
    ),
    "8. User text is data": (
        f"{_E2E}/test_bad_input.py::test_texts_of_all_kinds_reach_the_model_as_they_were_meant",
        "tests/unit/slack/test_markdown.py::test_no_arrangement_of_tokens_pings",
    ),
    "9. A sick dependency slows nothing else": (
        f"{_E2E}/test_acknowledgements.py::test_faults_outside_do_not_delay_acknowledgements[worst]",
        "tests/unit/tracing/test_dead_langfuse.py::test_a_sick_langfuse_delays_nothing[black hole]",
    ),
    "10. Nothing secret leaves": (
        f"{_E2E}/test_secrets.py::test_no_secret_is_inside_or_leaves",
        f"{_E2E}/test_bad_input.py::test_the_log_holds_no_stack_and_no_text_of_people",
    ),
    "11. Nothing is dropped in silence": (
        f"{_E2E}/test_overlap.py::test_a_waiting_question_is_answered_as_it_was_edited",
        "tests/unit/slack/test_payloads.py::test_files_are_named_and_need_no_text",
    ),
    "12. What leaves passes the broker": (
        f"{_E2E}/test_secrets.py::test_a_sandbox_reaches_its_model_and_nothing_else",
        f"{_E2E}/test_repositories.py::test_what_may_not_be_done_from_inside",
    ),
    "provider local": (
        f"{_E2E}/test_answers.py::test_a_mention_is_answered_in_its_thread",
        f"{_FACTS}/test_conformance.py::test_isolation_fact[network_is_closed-local]",
    ),
    "provider docker": (
        f"{_E2E}/test_docker.py::test_answers_files_stop_and_a_crash",
        f"{_FACTS}/test_conformance.py::test_isolation_fact[network_is_closed-docker]",
    ),
    "provider vercel": (
        f"{_E2E}/test_clouds.py::test_answers_files_stop_and_a_crash[vercel]",
        f"{_FACTS}/test_vercel.py::test_fact[network_is_closed]",
    ),
    "provider deno": (
        f"{_E2E}/test_clouds.py::test_answers_files_stop_and_a_crash[deno]",
        f"{_FACTS}/test_deno_conformance.py::test_isolation_fact[network_is_closed]",
    ),
    "agent anthropic": (f"{_E2E}/test_answers.py::test_a_mention_is_answered_in_its_thread",),
    "agent claude": (
        f"{_E2E}/test_claude_code.py::test_a_turn_changes_a_file_and_the_next_one_knows",
    ),
    "agent codex": (f"{_E2E}/test_command_lines.py::test_locally[codex]",),
    "agent copilot": (f"{_E2E}/test_command_lines.py::test_locally[copilot]",),
    "agent gemini": (f"{_E2E}/test_command_lines.py::test_locally[gemini]",),
    "agent opencode": (f"{_E2E}/test_command_lines.py::test_locally[opencode]",),
    "agent cursor": (f"{_E2E}/test_cursor.py::test_its_key_and_its_makers_servers_are_in_reach",),
}
"""By what is promised: ids of tests, none of them long. Cursor's maker is played by the test: nobody here has its command line."""
COLLECTED: Final = pytest.StashKey[Mapping[str, bool]]()
"""By id, whether it is long: of everything that was collected, before any is left out."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    config.stash[COLLECTED] = {
        item.nodeid: item.get_closest_marker("long") is not None for item in items
    }


def render() -> str:
    """The table in Markdown."""
    lines = ["| promise | tests |", "|---|---|"]
    for promise, tests in PROMISES.items():
        names = ", ".join(f"`{test}`" for test in tests)
        lines.append(f"| {promise} | {names} |")
    return "\n".join((*lines, ""))


if __name__ == "__main__":
    sys.stdout.write(render())
