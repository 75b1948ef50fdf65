"""`python -m tests.crash [--only NAME …] [--shape KEY …] [--write FILE]`: every harm and what came of it, as tables."""

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from tests.crash.function_rig import build_watched
from tests.crash.killing import Row
from tests.crash.load import HEAVY, REAL, ROLLED, LoadPlan, LoadResult, run_load
from tests.crash.matrix import IN_PART, run_matrix
from tests.crash.place import Place
from tests.crash.report import line_of_load, render
from tests.crash.rig import FUNCTIONS, OF_PROCESSES, SHAPES, Shape
from tests.e2e.prepared import prepared_state_dir
from tests.postgres import run_postgres

TIMEOUT_S = 3 * 3600.0
LOAD = "load"


async def run(
    place: Place,
    shapes: Sequence[Shape] = OF_PROCESSES,
    *,
    only: Sequence[str] = (),
    each: int = 1,
    plans: Sequence[LoadPlan] = (HEAVY, REAL, ROLLED),
) -> tuple[list[Row], list[LoadResult]]:
    rows: list[Row] = []
    loads: list[LoadResult] = []
    async with asyncio.timeout(TIMEOUT_S):
        for shape in shapes:
            if list(only) != [LOAD]:
                rows += await run_matrix(place, shape, only=only, each=each)
            if shape.key not in IN_PART and (not only or LOAD in only):
                for plan in plans:
                    if plan.is_rolled and shape.harm == "freeze":
                        continue  # as of those that are killed
                    loads.append(await run_load(place, plan, shape))
                    sys.stdout.write(line_of_load(loads[-1]) + "\n")
                    sys.stdout.flush()
    return rows, loads


async def _run_until_told(
    place: Place, shapes: Sequence[Shape], only: Sequence[str]
) -> tuple[list[Row], list[LoadResult]]:
    # Asked to end, it ends its services first.
    main_task = asyncio.current_task()
    assert main_task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, main_task.cancel)
    return await run(place, shapes, only=only)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash")
    parser.add_argument("--only", nargs="*", default=[], help="scenarios, or load")
    keys = [shape.key for shape in SHAPES]
    parser.add_argument("--shape", nargs="*", default=keys, choices=keys)
    parser.add_argument("--write", type=Path, help="also write the summary to this file")
    given = parser.parse_args()
    started = time.monotonic()
    prepared = prepared_state_dir()
    shapes = [shape for shape in SHAPES if shape.key in given.shape]
    with (
        tempfile.TemporaryDirectory(prefix="orion-crash-") as directory,
        run_postgres() if any(shape.is_shared for shape in shapes) else nullcontext() as server_url,
    ):
        place = Place(directory=Path(directory), prepared=prepared, server_url=server_url)
        if FUNCTIONS in shapes:
            place = replace(place, functions=build_watched(Path(directory)))
        rows, loads = asyncio.run(_run_until_told(place, shapes, given.only))
    summary = render(rows, loads, took_s=time.monotonic() - started)
    sys.stdout.write("\n" + summary)
    if given.write:
        given.write.write_text(summary)
    is_good = all(row.is_good for row in rows) and all(not load.faults for load in loads)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
