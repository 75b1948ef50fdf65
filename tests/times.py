"""Where the time of a test run goes: per worker, per marker, per file and per test.

A plugin of pytest: `--times FILE` writes a line of JSON for each phase of each test.
`python -m tests.times FILE` prints the tables of docs/testing.md from it.
"""

import argparse
import json
import resource
import sys
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

_MARKERS = (
    *("agents", "alone", "browser", "bubblewrap", "crash", "docker", "e2e", "long"),
    *("machines", "mounts", "pgbouncer", "postgresql"),
)
_NO_MARKER = "none"
_PROCESSOR = "processor_s"
_LAST = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--times", metavar="FILE", help="write the time of each phase of each test")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--times") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Recorder(Path(config.getoption("--times"))))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the processor time since the last report of this worker, with that of its ended child processes."""
    report = yield
    now = _processor_s()
    setattr(report, _PROCESSOR, now - item.session.stash.get(_LAST, now))
    item.session.stash[_LAST] = now
    return report


def _processor_s() -> float:
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    usages = [resource.getrusage(kind) for kind in kinds]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


class _Recorder:
    def __init__(self, path: Path) -> None:
        self._file = path.open("w")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        node = getattr(report, "node", None)
        row = {
            "test": report.nodeid,
            "phase": report.when,
            "outcome": report.outcome,
            "start": report.start,
            "stop": report.stop,
            _PROCESSOR: getattr(report, _PROCESSOR, 0.0),
            "worker": node.gateway.id if node else "main",
            "markers": [name for name in _MARKERS if name in report.keywords],
        }
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()


Row = Mapping[str, Any]
"""One phase of one test."""


def render(rows: Sequence[Row], *, most: int) -> str:
    """The tables in Markdown; `most` rows of files and of tests, the slowest first."""
    wall_s = max(row["stop"] for row in rows) - min(row["start"] for row in rows)
    workers = _sums(rows, lambda row: [row["worker"]])
    busy = [(name, took_s, wall_s - took_s, cpu_s) for name, _, took_s, cpu_s in sorted(workers)]
    markers = _sums(rows, lambda row: row["markers"] or [_NO_MARKER])
    files = _sums(rows, lambda row: [row["test"].partition("::")[0]])
    tests = _sums(rows, lambda row: [row["test"]])
    return "\n".join(
        (
            f"{len(tests)} tests in {wall_s / 60:.1f} minutes.\n",
            _table("worker | busy s | idle s | processor s", busy),
            _table("marker | tests | s | processor s", markers),
            _table("file | tests | s | processor s", files[:most]),
            _table("test | s | processor s", [(name, *took) for name, _, *took in tests[:most]]),
        )
    )


def _sums(
    rows: Iterable[Row], keys: Callable[[Row], Sequence[str]]
) -> list[tuple[str, int, float, float]]:
    """By key: how many tests, seconds, and processor seconds; the longest first."""
    tests: dict[str, set[str]] = defaultdict(set)
    took_s: dict[str, float] = defaultdict(float)
    processor_s: dict[str, float] = defaultdict(float)
    for row in rows:
        for key in keys(row):
            tests[key].add(row["test"])
            took_s[key] += row["stop"] - row["start"]
            processor_s[key] += row.get(_PROCESSOR, 0.0)
    found = [(key, len(tests[key]), took_s[key], processor_s[key]) for key in tests]
    return sorted(found, key=lambda entry: -entry[2])


def _table(head: str, rows: Iterable[Sequence[object]]) -> str:
    lines = [f"| {head} |", "|---" * (head.count("|") + 1) + "|"]
    for row in rows:
        cells = (f"{cell:.1f}" if isinstance(cell, float) else str(cell) for cell in row)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join((*lines, ""))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.times")
    parser.add_argument("file", type=Path)
    parser.add_argument("--most", type=int, default=100, help="files and tests in the tables")
    given = parser.parse_args()
    rows = [json.loads(line) for line in given.file.read_text().splitlines()]
    if not rows:
        sys.exit(f"{given.file} has no test in it")
    sys.stdout.write(render(rows, most=given.most))


if __name__ == "__main__":
    main()
