"""Measures whose replies are answered: `python -m tests.follow_ups` with the model of `.env` or the environment, which costs money; `--offline` with the offline one, whose figures say little of any other.

The exit code is 1 when less than 95 % of those for Orion, or more than 2 % of the others, are answered. The replies for which the decision is wrong are shown one by one, but for the set that nobody is to look at.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from app.compose.brokers import open_judge
from app.runs.testing import Judge
from app.settings.settings import load_settings
from tests.follow_ups.labelled import (
    SETS,
    Row,
    configured,
    decide_all,
    every_of,
    matrix_of,
    open_stand_in,
    read_set,
    render,
)


async def measure(
    judging: AbstractAsyncContextManager[Judge], names: Sequence[str]
) -> Mapping[str, Sequence[Row]]:
    with tempfile.TemporaryDirectory() as directory:
        async with judging as judge:
            return {
                name: await decide_all(judge, read_set(name), Path(directory)) for name in names
            }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.follow_ups", description=__doc__)
    parser.add_argument("--offline", action="store_true", help="ask the offline model")
    parser.add_argument("--set", choices=SETS, help="one set alone; both without it")
    options = parser.parse_args()
    judging = open_stand_in() if options.offline else open_judge(configured(load_settings()))
    rows = asyncio.run(measure(judging, (options.set,) if options.set else SETS))
    sys.stdout.write(f"{render(rows)}\n")
    for row in rows.get(SETS[0], ()):
        if row.decision.is_answered != row.reply.is_addressed:
            author, text = row.reply.thread[-1]
            sys.stdout.write(f"wrong ({row.decision.reason}): {author}: {text}\n")
    return 0 if matrix_of(every_of(rows)).is_good else 1


if __name__ == "__main__":
    sys.exit(main())
