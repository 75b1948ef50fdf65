"""What the bench measured, as the simulation needs it.

`tests/scale/figures.json` is what `python -m tests.bench --json FILE` wrote on two shared cores; another machine's file may be
given instead.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

COMMITTED: Final = Path(__file__).parent / "figures.json"
PARTS: Final = ("acks", "turns", "crowd", "workers", "costs")
"""Of the bench, which measure them."""


class FiguresError(Exception):
    """A file is none of the bench's, or lacks a row; the message names both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    mention_cpu_s: float
    """Processor of the process for a mention that is accepted and placed, both of its events included."""
    run_cpu_s: float
    """Processor of the process for a run, from its mention to its answer."""
    going_cpu: float
    """Cores for each run that goes on."""
    idle_cpu: float
    """Cores of a process that has nothing to do."""
    going_mib: float
    """Memory for each run that goes on."""
    idle_mib: float
    """Memory of a process that has nothing to do."""
    commit_s: float
    """What a disk takes for an acceptance, at its 99th percentile."""
    connections: float
    """Of a process to PostgreSQL."""
    transactions: float
    """For a run, from its mention to its answer."""
    idle_transactions: float
    """A second, of a process that has nothing to do."""
    postgres_cpu_s: float
    """Processor of PostgreSQL for a run."""
    idle_postgres_cpu: float
    """Cores of PostgreSQL for a process that has nothing to do."""


def read_figures(path: Path = COMMITTED) -> Figures:
    """Reads a file of the bench's.

    Raises:
        FiguresError: it is none, or a row is missing.
    """
    try:
        rows = {row["figure"]: float(row["orion"]) for row in json.loads(path.read_text())}
    except (OSError, ValueError, TypeError, KeyError) as exc:
        raise FiguresError(f"{path} has no rows of the bench: {exc}") from exc

    def value(pattern: str) -> float:
        return _row(rows, pattern, path)[0]

    going, count = _row(rows, r"processor, (\d+) runs going, no other events", path)
    held_mib, _ = _row(rows, r"memory, (\d+) runs going \(fake sandbox\)", path)
    # The crowd's process has no Langfuse.
    base_mib = value("idle memory after a run, without Langfuse")
    return Figures(
        mention_cpu_s=value("processor time per mention that is placed, none run") / 1000,
        run_cpu_s=value(r"processor time per run, answered \(fake sandbox\)") / 1000,
        going_cpu=going / 100 / count,
        idle_cpu=value("processor of an idle process on PostgreSQL") / 100,
        going_mib=max(held_mib - base_mib, 0) / count,
        idle_mib=value("idle memory after runs, with Langfuse"),
        commit_s=value(r"the disk by itself: p99 of fdatasync, \d+ events/s") / 1000,
        connections=value("connections of a process"),
        transactions=value("transactions per run"),
        idle_transactions=value("transactions of an idle process"),
        postgres_cpu_s=value("PostgreSQL's processor time per run") / 1000,
        idle_postgres_cpu=value("PostgreSQL's processor for an idle process") / 100,
    )


def _row(rows: Mapping[str, float], pattern: str, path: Path) -> tuple[float, float]:
    """The value of the row of this name, and the number in its name."""
    for figure, value in rows.items():
        if found := re.fullmatch(pattern, figure):
            return value, float(found.group(1)) if found.groups() else 0.0
    parts = " ".join(PARTS)
    raise FiguresError(f"{path} has no row {pattern!r}: run the bench with --only {parts}")
