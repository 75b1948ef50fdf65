"""Which vendors' command lines are really run: two, another two each day; `TEST_AGENTS=all`, or names with commas, chooses.

A plugin of pytest. Tests of one carry `@pytest.mark.vendor("codex")`; what is said of them without running them is in every run.
"""

import os
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

VENDORS = ("codex", "opencode", "gemini", "copilot")
A_DAY = 2


def chosen_vendors(wanted: str, *, day: int) -> Sequence[str]:
    """By the text of `TEST_AGENTS`, or for that day.

    Raises:
        ValueError: there is none of that name.
    """
    if wanted == "all":
        return VENDORS
    if wanted:
        names = wanted.split(",")
        if unknown := set(names) - set(VENDORS):
            raise ValueError(f"TEST_AGENTS: there are {', '.join(VENDORS)}, not {unknown.pop()!r}")
        return names
    start = day * A_DAY % len(VENDORS)
    return VENDORS[start : start + A_DAY]


def _chosen() -> Sequence[str]:
    today = datetime.now(UTC).toordinal()
    return chosen_vendors(os.environ.get("TEST_AGENTS", ""), day=today)  # noqa: TID251 - it is the tests' own


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the others."""
    chosen = _chosen()
    left_out = [
        item
        for item in items
        if (mark := item.get_closest_marker("vendor")) and mark.args[0] not in chosen
    ]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say whose turn it was."""
    chosen = ", ".join(_chosen())
    terminalreporter.write_line(f"vendors' command lines run: {chosen} (TEST_AGENTS=all runs all)")
