"""`python -m tests.scale [--figures FILE] [--seed N]`: what the simulation says of one workspace that grows, and of many.

With `--people N` only of one workspace of that size, with `--processes`, `--slots` and `--questions-a-day`.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.bench.load import percentile
from tests.scale.figures import COMMITTED, Figures, FiguresError, read_figures
from tests.scale.load import HOUR_S, Workspace, busiest_hours
from tests.scale.model import Setup, Simulated, SimulatedRun, simulate

GROWING: Final = (
    (50, Setup()),
    (500, Setup()),
    (1_500, Setup(slots=64)),
    (3_000, Setup(slots=128)),
    (4_000, Setup(slots=128)),
    (4_000, Setup(processes=4, slots=32)),
    (5_000, Setup(slots=256)),
    (10_000, Setup(slots=512)),
)
"""People of one workspace, and how Orion runs for them."""
WORKSPACES: Final = (1, 10, 100, 10_000)
PEOPLE: Final = 50
"""Of each of them."""
SIMULATED: Final = 100
"""Workspaces at the most; more are counted up from these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hour:
    """The busiest hour of one Orion."""

    runs: Sequence[SimulatedRun]
    """Asked in it."""
    at_once: Sequence[int]
    """Runs that went on, each second."""
    orion_cpu: float
    """Cores, of all processes."""

    @property
    def answered(self) -> Sequence[SimulatedRun]:
        return [run for run in self.runs if run.answered_s is not None]


def play(workspace: Workspace, setup: Setup, figures: Figures, *, seed: int) -> Hour:
    """Simulates the busiest hour and the one before it."""
    played = simulate(busiest_hours(workspace, seed=seed), setup, figures, seed=seed)
    processes = setup.processes + setup.fronts
    return Hour(
        runs=[run for run in played.runs if run.question.at_s >= HOUR_S],
        at_once=_at_once(played),
        orion_cpu=sum(played.busy_s) / (2 * HOUR_S) + processes * figures.idle_cpu,
    )


def _at_once(played: Simulated) -> Sequence[int]:
    changes = [0] * int(HOUR_S + 1)
    for run in played.runs:
        if run.begun_s is not None and run.answered_s is not None:
            begun_s, ended_s = (max(at - HOUR_S, 0) for at in (run.begun_s, run.answered_s))
            if begun_s < HOUR_S and ended_s > 0:
                changes[int(begun_s)] += 1
                changes[int(min(ended_s, HOUR_S))] -= 1
    counts, count = [], 0
    for change in changes[:-1]:
        count += change
        counts.append(count)
    return counts


def growing(
    cases: Sequence[tuple[Workspace, Setup]], figures: Figures, *, seed: int
) -> Iterator[Mapping[str, str]]:
    """A row for each size of one workspace."""
    for workspace, setup in cases:
        hour = play(workspace, setup, figures, seed=seed)
        answered = hour.answered
        yield {
            "people": f"{workspace.people:,}",
            "questions": f"{len(hour.runs):,}",
            "events": f"{workspace.events_an_hour:,.0f}",
            "processes x slots": f"{setup.processes} x {setup.slots}",
            "runs at once, mean / most": f"{_mean(hour.at_once):.0f} / {max(hour.at_once)}",
            "first sign": _p95(
                run.sign_s - run.question.at_s for run in answered if run.sign_s is not None
            ),
            "slot after": _p95(
                run.begun_s - run.question.at_s for run in answered if run.begun_s is not None
            ),
            "answer after": _p95(
                run.answered_s - run.concluded_s
                for run in answered
                if run.answered_s is not None and run.concluded_s is not None
            ),
            "updates of a run": f"{_mean([len(run.updates_s) for run in answered] or [0]):.1f}",
            "refused": f"{sum(run.is_refused for run in hour.runs)}",
            "cores": f"{hour.orion_cpu:.2f}",
        }


def many(
    counts: Sequence[int], workspace: Workspace, figures: Figures, *, seed: int
) -> Iterator[Mapping[str, str]]:
    """A row for each number of workspaces, each with an Orion of one process."""
    most = min(max(counts), SIMULATED)
    hours = [play(workspace, Setup(), figures, seed=seed + number) for number in range(most)]
    for count in counts:
        some = hours[:count]
        times = count / len(some)
        at_once = [sum(second) for second in zip(*(hour.at_once for hour in some), strict=True)]
        mean = _mean(at_once)
        # What is above the mean grows with the root of the number of workspaces that do not know of each other.
        peak = times * mean + times**0.5 * (max(at_once) - mean)
        runs_s = times * sum(len(hour.answered) for hour in some) / HOUR_S
        cores = times * sum(hour.orion_cpu for hour in some)
        postgres = runs_s * figures.postgres_cpu_s + count * figures.idle_postgres_cpu
        transactions = runs_s * figures.transactions + count * figures.idle_transactions
        yield {
            "workspaces": f"{count:,}",
            "questions": f"{times * sum(len(hour.runs) for hour in some):,.0f}",
            "runs at once, mean / most": f"{times * mean:,.0f} / {peak:,.0f}",
            "processes": f"{count:,}",
            "memory": f"{(count * figures.idle_mib + peak * figures.going_mib) / 1024:,.1f} GiB",
            "cores": f"{cores:,.1f}",
            "of them idle": f"{count * figures.idle_cpu:,.1f}",
            "PostgreSQL: connections": f"{count * figures.connections:,.0f}",
            "transactions": f"{transactions:,.0f} /s",
            "its cores": f"{postgres:,.1f}",
        }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _p95(waits_s: Iterator[float]) -> str:
    waits = list(waits_s)
    return f"{percentile(waits, 0.95):.1f} s" if waits else "-"


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """Rows of the same columns, in Markdown."""
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def tables(figures: Figures, *, seed: int) -> tuple[str, str]:
    """Of one workspace that grows, and of many."""
    sizes = [(Workspace(people=people), setup) for people, setup in GROWING]
    one = table(list(growing(sizes, figures, seed=seed)))
    return one, table(list(many(WORKSPACES, Workspace(people=PEOPLE), figures, seed=seed)))


def _count(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, is {text}")
    return value


def _amount(text: str) -> float:
    if not (value := float(text)) > 0:
        raise argparse.ArgumentTypeError(f"must be above 0, is {text}")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.scale")
    parser.add_argument("--figures", type=Path, default=COMMITTED, help="what the bench wrote")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--people", type=_count, help="of one workspace; without it, both tables")
    parser.add_argument("--questions-a-day", type=_amount, default=4, help="of each person")
    parser.add_argument("--processes", type=_count, default=1, help="that work")
    parser.add_argument(
        "--slots", type=_count, default=32, help="of each: ORION_MAX_CONCURRENT_RUNS"
    )
    given = parser.parse_args(arguments)
    try:
        figures = read_figures(given.figures)
    except FiguresError as exc:
        parser.error(str(exc))
    if given.people is None:
        written = "\n\n".join(tables(figures, seed=given.seed))
    else:
        workspace = Workspace(people=given.people, questions_a_day=given.questions_a_day)
        setup = Setup(processes=given.processes, slots=given.slots)
        written = table(list(growing([(workspace, setup)], figures, seed=given.seed)))
    sys.stdout.write(f"{written}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
