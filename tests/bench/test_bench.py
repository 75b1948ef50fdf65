"""The bench runs to its end; what it measures is not judged here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.processes import ROOT
from tests.bench.table import HEADINGS
from tests.scale.figures import read_figures

pytestmark = [
    pytest.mark.long,
    pytest.mark.alone,
    pytest.mark.e2e,
    pytest.mark.agents,
    pytest.mark.bubblewrap,
]

PARTS = ("acks", "placing", "turns", "crowd", "live", "costs", "operators", "rendering")
"""Docker's takes a minute, and is seen whenever the bench is run."""
FIGURES = (
    *(
        "ack p50",
        "ack p95",
        "ack p99",
        "processor time per mention",
        "acks per second",
        "events not acknowledged",
    ),
    *("thinking message after, p50", "thinking message after, p95"),
    *("mention to answer", "of which Orion's own"),
    *("idle memory after runs, with Langfuse", "idle memory after a run, without Langfuse"),
    *(
        "runs in flight at once",
        "memory, 50 runs going (",
        "processor, 50 runs going",
    ),
    "ack p99, 50 events/s, 50 runs going",
    "thinking message after, as a stream, p95",
    "first text after the model was asked, p95",
    "processor time per run, answered",
    "PostgreSQL's processor time per run",
    "transactions per run",
    "server time of /ops, its files, what goes on and the newest runs, 2,000 runs stored",
    "server time of a scrape of /metrics, 2,000 runs stored",
    "orion tui, start to the first screen with runs, 2,000 runs stored",
    *(
        f"orion tui, {key} to the changed screen, {share}"
        for key in ("Down", "f", "Tab")
        for share in ("p50", "p95")
    ),
    "orion runs replay --speed 0 of a run of 10 minutes",
    "orion doctor in all, 2,000 runs stored",
    "rendered, messages of an answer",
)


@pytest.mark.timeout(520)
def test_the_quick_bench_fills_its_table(tmp_path: Path) -> None:
    """Every figure is measured in the short form, each as a number, and the simulation finds its own among the written rows."""
    file = tmp_path / "rows.json"
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench", "--quick", "--json", file, "--only", *PARTS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert all(heading in done.stdout for heading in HEADINGS)
    lines = done.stdout.splitlines()
    for figure in FIGURES:
        row = next((line for line in lines if line.startswith(figure)), "")
        assert any(character.isdigit() for character in row[60:]), f"{figure}: {row!r}"
    rows = json.loads(file.read_text())
    assert [row["figure"] for row in rows] == [line.partition("  ")[0] for line in _body(lines)]
    assert read_figures(file).run_cpu_s > 0


def _body(lines: list[str]) -> list[str]:
    """The table's rows."""
    first = next(number for number, line in enumerate(lines) if line.startswith("---"))
    return lines[first + 1 : lines.index("", first)]
