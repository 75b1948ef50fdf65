"""`python -m tests.crash [--only NAME …] [--write FILE]`: every kill and what came of it, as tables."""

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.crash.killing import Row
from tests.crash.load import HEAVY, REAL, LoadResult, run_load
from tests.crash.matrix import run_matrix
from tests.crash.report import line_of_load, render
from tests.e2e.prepared import prepared_state_dir

TIMEOUT_S = 3 * 3600.0
LOAD = "load"


async def run(
    only: Sequence[str], prepared: Path, directory: Path
) -> tuple[list[Row], list[LoadResult]]:
    rows: list[Row] = []
    loads: list[LoadResult] = []
    async with asyncio.timeout(TIMEOUT_S):
        if list(only) != [LOAD]:
            rows = await run_matrix(directory, prepared, only=only)
        if not only or LOAD in only:
            for plan in (HEAVY, REAL):
                loads.append(await run_load(directory, prepared, plan))
                sys.stdout.write(line_of_load(loads[-1]) + "\n")
                sys.stdout.flush()
    return rows, loads


async def _run_until_told(
    only: Sequence[str], prepared: Path, directory: Path
) -> tuple[list[Row], list[LoadResult]]:
    # Asked to end, it ends its services first.
    main_task = asyncio.current_task()
    assert main_task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, main_task.cancel)
    return await run(only, prepared, directory)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash")
    parser.add_argument("--only", nargs="*", default=[], help="scenarios, or load")
    parser.add_argument("--write", type=Path, help="also write the summary to this file")
    given = parser.parse_args()
    started = time.monotonic()
    prepared = prepared_state_dir()
    with tempfile.TemporaryDirectory(prefix="orion-crash-") as directory:
        rows, loads = asyncio.run(_run_until_told(given.only, prepared, Path(directory)))
    summary = render(rows, loads, took_s=time.monotonic() - started)
    sys.stdout.write("\n" + summary)
    if given.write:
        given.write.write_text(summary)
    is_good = all(row.is_good for row in rows) and all(not load.faults for load in loads)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
