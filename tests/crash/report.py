"""What was killed and what came of it, as a table for people."""

import os
from collections.abc import Iterator, Sequence
from statistics import median

from tests.crash.killing import Row
from tests.crash.load import LoadResult
from tests.crash.rig import SHAPES

HEAD = """\
# What kill -9 and a frozen process do to Orion

`make crash-test` runs the real service against the fake Slack, harms it at every step of a run, and looks: one message of
Orion's for each question, one end in it, the record closed, one run for each message, the runs of a thread in the order of its
messages, no sandbox and no process left.

The points are not listed by hand: each scenario is played once unharmed while every call of a port and of Slack is written
down; then it is played again for each of them, with a harm before it and after it. A step of a port that is neither a point nor
named in `tests/crash/steps.py` with its reason fails a test.

One process on SQLite is killed with SIGKILL, with its process group, and started again. Of two on one PostgreSQL, behind a
balancer, the one that is at the point first is killed, and the other one finishes; or it is stopped with SIGSTOP until the
other one has given it up for dead and everything has its end, and goes on then: all is looked at after that.

In the column of the database, both processes lose it at the point for 20 s, which is longer than a lease; the seconds are counted
from its return, and no attempt may be counted. Vercel's functions, as they were built and in their own runtime, have an instance killed, whichever is at the point; a message whose
instance died comes again after 300 s, as there, and slices are of 3 s. A dead one is known as dead 26 s after its last word.

The figures are seconds until every question of the thread has its end: from the beginning of the restart, with the start of the
service in it, or from the harm, with what is left of a lease of 14 s in it; and with whole runs, of which the scenario `shutdown` has
the agent write for 20 s. The agent is a small script in the real sandbox, under the real supervisor, but where another one is
named. Each run makes its own sandbox; in the scenario `pool`, and with the real agent at random, it is given one that waited. A
point without a figure was not passed in that shape; a call to Slack that has left a process arrives, so it is not frozen before.
"""


def line_of_row(row: Row) -> str:
    return f"{row.shape.key}: {_scenario(row)}, {row.point}: {_seconds(row)}; {_verdict(row)}"


def _scenario(row: Row) -> str:
    return row.scenario if row.agent == "small" else f"{row.scenario} ({row.agent})"


def _seconds(row: Row) -> str:
    return "-" if row.repaired_s is None else f"{row.repaired_s:.1f}"


def _verdict(row: Row) -> str:
    return "; ".join([*(row.faults or ["ok"]), *([row.note] if row.note else [])])


def line_of_load(load: LoadResult) -> str:
    faults = "; ".join(load.faults) if load.faults else "ok"
    return (
        f"| {load.name} | {load.shape.name} | {load.messages} | {load.threads} | {load.kills} | {load.deliveries} | {load.lost} "
        f"| {load.doubled} | {load.disordered} of {load.pairs} | {load.interrupted} | {load.last_s:.1f} | {faults} |"
    )


def render(rows: Sequence[Row], loads: Sequence[LoadResult], *, took_s: float) -> str:
    lines = [HEAD, *(_tables(rows) if rows else [])]
    if loads:
        lines += [
            "## At random, under load",
            "",
            "Every event is delivered twice, as mention and as message, and again until it is acknowledged. Order is judged for "
            "neighbours in a thread of which the earlier was acknowledged first. Harm comes every few seconds, to any process, and "
            "answers as fast as Slack's limits, which Orion keeps to, let them: whoever was met three times is told so (interrupted). "
            "Restarted in turn: each process is told to end by SIGTERM and started again, six seconds after the one before, while people talk.",
            "",
            "| agent | shape | messages | threads | harms | deliveries | lost | doubled | out of order | interrupted | last restart to "
            "last answer [s] | |",
            "|---|---|---|---|---|---|---|---|---|---|---|---|",
            *map(line_of_load, loads),
            "",
        ]
    lines.append(
        f"Took {took_s / 60:.0f} minutes on {os.cpu_count()} cores, shared with other work.\n"
    )
    return "\n".join(lines)


def _tables(rows: Sequence[Row]) -> Iterator[str]:
    shapes = [shape for shape in SHAPES if any(row.shape == shape for row in rows)]
    yield "| shape | points | with a fault | seconds, median | longest | limit |"
    yield "|---|---|---|---|---|---|"
    for shape in shapes:
        own = [row for row in rows if row.shape == shape]
        times = [row.repaired_s for row in own if row.repaired_s is not None] or [0.0]
        bad = sum(not row.is_good for row in own)
        limit = f"{shape.repaired_within_s:.0f}"
        yield f"| {shape.name} | {len(own)} | {bad} | {median(times):.1f} | {max(times):.1f} | {limit} |"
    yield ""
    yield "| scenario | where | " + " | ".join(shape.name for shape in shapes) + " |"
    yield "|---|---|" + "---|" * len(shapes)
    found = {(_scenario(row), row.point, row.shape.key): row for row in rows}
    for scenario, point in dict.fromkeys((name, point) for name, point, _ in found):
        cells = [found.get((scenario, point, shape.key)) for shape in shapes]
        yield f"| {scenario} | {point} | " + " | ".join(map(_cell, cells)) + " |"
    yield ""


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    return _seconds(row) if row.is_good else f"FAULT: {_verdict(row)}"
