"""The counts as a table for people."""

import os
from collections import Counter
from collections.abc import Sequence

from tests.leaks.census import allowance_of
from tests.leaks.play import Result

HEAD = """\
# What is left after runs were cancelled and killed

`make leak-test` asks the real service, over the fake Slack and with the offline model, in real sandboxes. Each question
meets a fate drawn from a seed: it is left to end, stopped at a random moment (by the word or by Slack's own button), or a random
process of a sandbox (agent, supervisor, a command, the sandbox's first process) is killed with SIGKILL. In the first half the
service itself is killed with SIGKILL several times and started again. Some questions leave background processes behind, some go
into threads that are there, and sandboxes are kept for 2 s after a run.

Counted before and after, with nothing running. Descriptors are of the last process: after its warm-up, and at the end. Workspaces of
threads, and for an hour those that they replace, are kept by design and not counted. Children that have ended and that
nobody has waited for are counted for the service; an init's are not.
"""


def render(results: Sequence[Result], *, took_s: float) -> str:
    lines = [HEAD]
    for result in results:
        lines += [
            f"## {result.plan.provider}: {result.plan.runs} runs",
            "",
            f"Fates: {_said(result.fates)}.",
            f"Ends: {_said(result.outcomes)}. Seed {result.plan.seed}.",
            "",
            "| what | before | after | |",
            "|---|---|---|---|",
            *_rows(result),
            "",
        ]
        if result.faults:
            lines += ["Faults:", "", *(f"- {fault}" for fault in result.faults), ""]
    lines.append(
        f"Took {took_s / 60:.0f} minutes on {os.cpu_count()} cores, shared with other work."
    )
    return "\n".join(lines) + "\n"


def _rows(result: Result) -> list[str]:
    rows = []
    for kind, after in result.after.kinds.items():
        before = result.before.kinds[kind]
        verdict = "ok" if len(after) <= len(before) + allowance_of(kind) else "LEAK"
        rows.append(f"| {kind} | {len(before)} | {len(after)} | {verdict} |")
    return rows


def _said(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.most_common())
