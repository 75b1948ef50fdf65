"""What is proven of each agent in each sandbox, and by which test: declared here and only here.

`make agents` renders it to docs/agents.md. A proof names its test by `path::function`.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Final

AGENTS: Final = ("anthropic", "claude", "codex", "copilot", "gemini", "opencode", "cursor")
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
}
ROWS: Final[Mapping[str, Sequence[str]]] = {
    "install, local": ("a", "g k", "i l", "i n", "i n", "i m", "—"),
    "install, Docker": ("e", "h", "j", "j", "j", "j", "—"),
    "run, local": ("a", "g", "i", "i", "i", "i", "—"),
    "run, Docker": ("e", "h", "j", "j", "j", "j", "—"),
    "run, Vercel and Deno emulators": ("f", "—", "—", "—", "—", "—", "—"),
    "progress while it works": ("b", "x", "u", "v", "w", "late: y", "t"),
    "tools": ("b", "g h x", "i j u", "i j v", "i j w", "i j y", "t"),
    "usage": ("q", "g h", "i j", "i j", "i j", "i j", "its own: t"),
    "session and resume": ("history", "g h k", "i j l", "i j n", "history after tools: i j", "i j m", "—"),
    "Stop": ("c e", "h", "i j", "i j", "i j", "i j", "—"),
    "MCP": ("has none", "o", "p", "p", "p", "p", "—"),
    "a dead MCP server is told": ("has none", "o", "p", "p", "p, not which", "p", "says nothing"),
    "diff in the thread": ("d", "g h", "i j", "i j", "i j", "i j", "—"),
    "cost": ("table: q", "its own: r", "table", "table", "table", "its own, where it knows: s", "unknown"),
    "no key or token in Slack, traces, log, files": ("z", "g", "i j", "i j", "i j", "i j", "—"),
    "hostile work tree": ("has no settings", "k", "l", "n", "n", "m", "—"),
}  # fmt: skip
_HEAD: Final = """\
# Agents, proven

Rendered by `make agents` from `tests/agent_table.py`; letters are tests, named below. `—`: not proven. Command lines are the vendors' own from npm, really run in the sandboxes, against the offline
model, which speaks their protocols; what is *unit* below reads recordings of the same versions. `cursor` has never run against its maker's servers. Tests of the four
vendors run two a day, all by `make test-agents`.

"""


def render() -> str:
    """The document."""
    lines = [f"| | {' | '.join(AGENTS)} |", "|---" * (len(AGENTS) + 1) + "|"]
    lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in ROWS.items()]
    proofs = [
        f"- {letter}: `{test.partition('::')[0]}`, {test.partition('::')[2]}"
        for letter, test in PROOFS.items()
    ]
    return _HEAD + "\n".join((*lines, "", *proofs, ""))


if __name__ == "__main__":
    sys.stdout.write(render())
