"""What was killed and what came of it, as a table for people."""

import os
from collections.abc import Sequence
from statistics import median

from tests.crash.killing import Row
from tests.crash.load import LoadResult
from tests.crash.rig import REPAIRED_WITHIN_S

HEAD = """\
# What kill -9 does to Orion

`make crash-test` runs the real service against the fake Slack, kills its process group with SIGKILL at every step of a
run, starts it again, and looks: one message of Orion's for each question, one end in it, the record closed, one run for each
message, the runs of a thread in the order of its messages, no sandbox and no process left.

The points are not listed by hand: each scenario is played once unharmed while every call of a port and of Slack is written
down; then it is played again for each of them, with a kill before it and after it. A step of a port that is neither killed nor
named in `tests/crash/steps.py` with its reason fails a test.

`repaired` is the time from the beginning of the restart until every question of the thread has its end; it holds the start of
the service and whole runs, of which the scenario `shutdown` has the agent write for 15 s. The agent is a small script in the
real sandbox, under the real supervisor, but where another one is named. Each run makes its own sandbox; in the scenario `pool`, and
with the real agent at random, it is given one that waited.
"""


def line_of_row(row: Row) -> str:
    repaired = "-" if row.repaired_s is None else f"{row.repaired_s:.1f}"
    verdict = "; ".join([*(row.faults or ["ok"]), *([row.note] if row.note else [])])
    scenario = row.scenario if row.agent == "small" else f"{row.scenario} ({row.agent})"
    return f"| {scenario} | {row.point} | {row.pid} | {row.signal} | {repaired} | {verdict} |"


def line_of_load(load: LoadResult) -> str:
    faults = "; ".join(load.faults) if load.faults else "ok"
    return (
        f"| {load.name} | {load.messages} | {load.threads} | {load.kills} | {load.deliveries} | {load.lost} "
        f"| {load.doubled} | {load.disordered} of {load.pairs} | {load.interrupted} | {load.last_s:.1f} | {faults} |"
    )


def render(rows: Sequence[Row], loads: Sequence[LoadResult], *, took_s: float) -> str:
    lines = [HEAD]
    if rows:
        repaired = [row.repaired_s for row in rows if row.repaired_s is not None]
        bad = sum(not row.is_good for row in rows)
        lines += [
            f"{len(rows)} kills, {bad} with a fault. Repaired after {median(repaired):.1f} s median, "
            f"{max(repaired):.1f} s at the longest (limit {REPAIRED_WITHIN_S:.0f} s).",
            "",
            "| scenario | killed | pid | signal | repaired [s] | |",
            "|---|---|---|---|---|---|",
            *map(line_of_row, rows),
            "",
        ]
    if loads:
        lines += [
            "## At random, under load",
            "",
            "Every event is delivered twice, as mention and as message, and again until it is acknowledged. Order is judged for "
            "neighbours in a thread of which the earlier was acknowledged first. Kills come every few seconds, and answers as "
            "fast as Slack's limits, which Orion keeps to, let them: whoever three kills met is told so (interrupted).",
            "",
            "| agent | messages | threads | kills | deliveries | lost | doubled | out of order | interrupted | last restart to "
            "last answer [s] | |",
            "|---|---|---|---|---|---|---|---|---|---|---|",
            *map(line_of_load, loads),
            "",
        ]
    lines.append(
        f"Took {took_s / 60:.0f} minutes on {os.cpu_count()} cores, shared with other work.\n"
    )
    return "\n".join(lines)
