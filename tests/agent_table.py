"""What is proven of each agent in each sandbox, and by which test: declared here and only here.

`make agents` renders it to docs/agents-proven.md. A proof names its test by `path::function`.
"""

import sys
from collections.abc import Mapping
from typing import Final

from agent_scripts.registry import agent_names

AGENTS: Final = agent_names()
_NOT_PROVEN: Final = "—"
_LINES: Final = "tests/e2e/test_command_lines.py"
_UNIT: Final = "tests/unit/agent_scripts"
PROOFS: Final[Mapping[str, str]] = {
    "a": "tests/e2e/test_answers.py::test_a_mention_is_answered_in_its_thread",
    "b": "tests/e2e/test_answers.py::test_a_command_is_shown_while_it_runs_and_its_output_is_quoted",
    "c": "tests/e2e/test_stopping.py::test_stop_ends_the_agent_and_keeps_what_was_written",
    "d": "tests/e2e/test_workspaces.py::test_what_was_changed_is_told_and_shared",
    "e": "tests/e2e/test_docker.py::test_answers_files_stop_and_a_crash",
    "f": "tests/e2e/test_clouds.py::test_answers_files_stop_and_a_crash",
    "g": "tests/e2e/test_claude_code.py::test_a_turn_changes_a_file_and_the_next_one_knows",
    "h": "tests/e2e/test_claude_in_docker.py::test_a_turn_changes_a_file_and_the_next_one_knows",
    "i": f"{_LINES}::test_locally",
    "j": f"{_LINES}::test_in_docker",
    "k": "tests/agents/test_claude_code.py::test_claude_code",
    "l": "tests/agents/test_codex.py::test_codex",
    "m": "tests/agents/test_opencode.py::test_opencode",
    "n": "tests/agents/test_vendor_clis.py::test_a_vendors_cli",
    "o": "tests/e2e/test_mcp_servers.py::test_a_tool_outside_is_used_and_not_used_twice",
    "p": "tests/e2e/test_mcp_of_vendors.py::test_a_server_outside_beside_sick_ones",
    "q": "tests/e2e/test_budgets.py::test_a_run_that_has_used_its_budget_ends_with_what_it_has",
    "r": f"{_UNIT}/test_claude_code_output.py::test_cost_is_of_this_turn",
    "s": f"{_UNIT}/test_opencode_output.py::test_a_price_that_is_not_known_is_none",
    "t": f"{_UNIT}/test_cursor_output.py::test_a_turn_with_tools",
    "u": f"{_UNIT}/test_codex_output.py::test_a_turn_with_tools",
    "v": f"{_UNIT}/test_copilot_output.py::test_a_turn_with_tools",
    "w": f"{_UNIT}/test_gemini_output.py::test_a_turn_with_tools",
    "x": f"{_UNIT}/test_claude_code_output.py::test_a_turn_with_tools",
    "y": f"{_UNIT}/test_opencode_output.py::test_a_turn_with_tools",
    "z": "tests/e2e/test_canary.py::test_an_agent_that_looks_everywhere_finds_nothing",
    "A": "tests/e2e/test_urgent.py::test_an_agent_at_work_is_told_of_an_urgent_message",
    "B": "tests/e2e/test_urgent.py::test_a_command_line_at_work_is_told",
}
ROWS: Final[Mapping[str, Mapping[str, str]]] = {
    "install, local": {"anthropic": "a", "claude": "g k", "codex": "i l", "copilot": "i n", "gemini": "i n", "opencode": "i m"},
    "install, Docker": {"anthropic": "e", "claude": "h", "codex": "j", "copilot": "j", "gemini": "j", "opencode": "j"},
    "run, local": {"anthropic": "a", "claude": "g", "codex": "i", "copilot": "i", "gemini": "i", "opencode": "i"},
    "run, Docker": {"anthropic": "e", "claude": "h", "codex": "j", "copilot": "j", "gemini": "j", "opencode": "j"},
    "run, Vercel and Deno emulators": {"anthropic": "f"},
    "progress while it works": {"anthropic": "b", "claude": "x", "codex": "u", "copilot": "v", "gemini": "w", "opencode": "late: y", "cursor": "t"},
    "tools": {"anthropic": "b", "claude": "g h x", "codex": "i j u", "copilot": "i j v", "gemini": "i j w", "opencode": "i j y", "cursor": "t"},
    "usage": {"anthropic": "q", "claude": "g h", "codex": "i j", "copilot": "i j", "gemini": "i j", "opencode": "i j", "cursor": "its own: t"},
    "session and resume": {"anthropic": "history", "claude": "g h k", "codex": "i j l", "copilot": "i j n", "gemini": "history after tools: i j", "opencode": "i j m"},
    "Stop": {"anthropic": "c e", "claude": "h", "codex": "i j", "copilot": "i j", "gemini": "i j", "opencode": "i j"},
    "told of a message while it works": {"anthropic": "A", "claude": "B", "codex": "B"},
    "MCP": {"anthropic": "p", "claude": "o", "codex": "p", "copilot": "p", "gemini": "p", "opencode": "p"},
    "a dead MCP server is told": {"anthropic": "p", "claude": "o", "codex": "p", "copilot": "p", "gemini": "p, not which", "opencode": "p", "cursor": "says nothing"},
    "diff in the thread": {"anthropic": "d", "claude": "g h", "codex": "i j", "copilot": "i j", "gemini": "i j", "opencode": "i j"},
    "cost": {"anthropic": "table: q", "claude": "its own: r", "codex": "table", "copilot": "table", "gemini": "table", "opencode": "its own, where it knows: s", "cursor": "unknown"},
    "no key or token in Slack, traces, log, files": {"anthropic": "z", "claude": "g", "codex": "i j", "copilot": "i j", "gemini": "i j", "opencode": "i j"},
    "hostile work tree": {"anthropic": "has no settings", "claude": "k", "codex": "l", "copilot": "n", "gemini": "n", "opencode": "m"},
}  # fmt: skip
"""By what is proven and by agent; nothing is proven where there is no entry."""
_HEAD: Final = """\
# Agents, proven

Rendered by `make agents` from `tests/agent_table.py`; letters are tests, named below. `—`: not proven. Command lines are the vendors' own from npm, really run in the sandboxes, against the offline
model, which speaks their protocols; letters of `tests/unit` read recordings of the same versions. `cursor` has never run against its maker's servers. A part of
them runs in `make test`, all in `make test-all`.

"""


def render() -> str:
    """The document."""
    lines = [f"| | {' | '.join(AGENTS)} |", "|---" * (len(AGENTS) + 1) + "|"]
    for name, cells in ROWS.items():
        lines.append(f"| {name} | {' | '.join(cells.get(one, _NOT_PROVEN) for one in AGENTS)} |")
    proofs = [
        f"- {letter}: `{test.partition('::')[0]}`, {test.partition('::')[2]}"
        for letter, test in PROOFS.items()
    ]
    return _HEAD + "\n".join((*lines, "", *proofs, ""))


if __name__ == "__main__":
    sys.stdout.write(render())
