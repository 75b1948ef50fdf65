"""`python -m tests.bench [--quick]`: measure everything, print one table."""

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.acks import measure_acks
from tests.bench.crowd import measure_crowd
from tests.bench.placing import measure_placing
from tests.bench.processes import BenchError
from tests.bench.scale import FULL, QUICK, Bench
from tests.bench.table import Row, render
from tests.bench.turns import measure_turns

TIMEOUT_S = 420.0
NOTES = """\
Baselines: for acks, thinking messages and memory Bolt on FastAPI with process_before_response and nothing durable; for
whole runs the agent's script, started by hand. Every server and the load have processes of their own, all on 127.0.0.1.
Fake sandbox: no sandbox, and an agent that answers at once; what is left is Orion's own work on the real HTTP route,
Bolt, DBOS on SQLite and Slack calls. Acks: with a Slack that says yes to everything; all else: with the look-alike.
Memory: resident set, pages shared with other processes included."""


async def measure(bench: Bench) -> list[Row]:
    # Asked to end, it ends its servers first.
    bench_task = asyncio.current_task()
    assert bench_task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, bench_task.cancel)
    async with asyncio.timeout(TIMEOUT_S):
        acks = await measure_acks(bench)
        bolt_p99_ms = next(row.baseline for row in acks if row.figure.startswith("ack p99"))
        return [
            *acks,
            *await measure_placing(bench),
            *await measure_turns(bench),
            *await measure_crowd(bench, bolt_p99_ms=bolt_p99_ms),
        ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    parser.add_argument("--quick", action="store_true", help="a short form, for trying the bench")
    scale = QUICK if parser.parse_args().quick else FULL
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="orion-bench-") as directory:
        try:
            rows = asyncio.run(measure(Bench(directory=Path(directory), scale=scale)))
        except* (BenchError, TimeoutError) as failures:
            reasons = [str(exc) or "out of time" for exc in failures.exceptions]
            sys.stderr.write(f"the bench could not be finished: {'; '.join(reasons)}\n")
        else:
            took_s = time.monotonic() - started
            sys.stdout.write(f"\n{render(rows)}\n\n{NOTES}\nTook {took_s:.0f} s.\n")
            return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
