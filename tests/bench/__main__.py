"""`python -m tests.bench [--quick] [--only PART …] [--json FILE]`: measure everything, print one table, and write its rows to a file."""

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path

from tests.bench.acks import measure_acks
from tests.bench.agents import measure_agents, measure_agents_in_docker
from tests.bench.asking import measure_asking
from tests.bench.catch_up import measure_catch_up
from tests.bench.clouds import measure_clouds, why_no_machines
from tests.bench.container import measure_container
from tests.bench.costs import measure_costs
from tests.bench.crowd import measure_crowd
from tests.bench.docker import measure_docker, why_not
from tests.bench.egress import measure_egress
from tests.bench.files import measure_files
from tests.bench.fleet import measure_fleet
from tests.bench.functions import measure_functions, why_no_functions
from tests.bench.live import measure_live
from tests.bench.operators import measure_operators
from tests.bench.parsers import measure_parsers
from tests.bench.placing import measure_placing
from tests.bench.pool import measure_docker_pool, measure_pool
from tests.bench.prepared import measure_prepared, measure_prepared_in_docker
from tests.bench.processes import BenchError
from tests.bench.rendering import measure_rendering
from tests.bench.scale import FULL, QUICK, Bench
from tests.bench.streams import measure_streams
from tests.bench.table import Row, render, render_json
from tests.bench.turns import measure_turns
from tests.bench.unused import measure_unused
from tests.bench.urgent import measure_urgent
from tests.bench.workers import measure_workers

TIMEOUT_S = 7200.0
NOTES = """\
Baselines: for acks, thinking messages and memory Bolt on FastAPI with process_before_response and nothing durable; for
whole runs the agent's script, started by hand. Every server and the load have processes of their own, all on 127.0.0.1.
Fake sandbox: no sandbox, and an agent that answers at once; what is left is Orion's own work on the real HTTP route,
Bolt, SQLite and Slack calls. Acks: with a Slack that says yes to everything; all else: with the fake Slack.
Live: the real script and sandbox, a model that writes its first word at once; the baseline are edits, in a channel of the same Orion.
Costs: of a process on a PostgreSQL that does not wait for its disk; what an idle one takes is not counted in a run.
Workers: processes on one PostgreSQL whose runs sleep; beginning elsewhere is counted from the signal.
Memory: resident set, pages shared with other processes included.
Docker: the same container for both sides of an exec; a command line by hand is its own process in a sandbox that
is there (`docker exec` in Docker), without supervisor and service, and Orion has its default pool; the start of an agent is its first moment by its own clock, in a container of its own.
Operators: an Orion at work, 40 runs unfinished and 100,000 over; a screen is there once its bytes have left the program, in a
terminal of the bench's own; the bare Textual app draws 200 rows that nothing changes, and reads nothing.
Functions: Vercel's build and runtime, the emulated cloud; imports and slices in seconds of processor.
Container: the image on a base of Debian's own files; from its start to its first good health check, which comes 4 s after.
Warm: each question begins a new thread while a prepared sandbox waits; the baseline is the same with no pool, in the same
run. By the clocks of the fake Slack and the model, in one process, from the message to the model's first byte of it."""
_MEASURES: Mapping[str, Callable[[Bench], Awaitable[Sequence[Row]]]] = {
    "acks": measure_acks,
    "placing": measure_placing,
    "turns": measure_turns,
    "live": measure_live,
    "streams": measure_streams,
    "catch-up": measure_catch_up,
    "workers": measure_workers,
    "fleet": measure_fleet,
    "costs": measure_costs,
    "pool": measure_pool,
    "urgent": measure_urgent,
    "asking": measure_asking,
    "unused": measure_unused,
    "files": measure_files,
    "operators": measure_operators,
    "egress": measure_egress,
    "prepared": measure_prepared,
    "clouds": measure_clouds,
    "functions": measure_functions,
    "parsers": measure_parsers,
    "rendering": measure_rendering,
    "agents": measure_agents,
    "docker": measure_docker,
    "docker-agents": measure_agents_in_docker,
    "docker-pool": measure_docker_pool,
    "docker-prepared": measure_prepared_in_docker,
    "container": measure_container,
}
PARTS = ("acks", "placing", "turns", "crowd", *(list(_MEASURES)[3:]))
"""In this order."""
_OF_DOCKER = ("docker", "docker-agents", "docker-pool", "docker-prepared", "container")


async def measure(bench: Bench, parts: Collection[str], rows: list[Row]) -> None:
    """Adds to `rows` part by part, so that a part that fails takes nothing else with it."""
    # Asked to end, it ends its servers first.
    bench_task = asyncio.current_task()
    assert bench_task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, bench_task.cancel)
    async with asyncio.timeout(TIMEOUT_S):
        for part in (part for part in PARTS if part in parts):
            if part == "crowd":
                bolt = (row.baseline for row in rows if row.figure.startswith("ack p99"))
                rows += await measure_crowd(bench, bolt_p99_ms=next(bolt, None))
            else:
                rows += await _MEASURES[part](bench)


async def _possible(wanted: Collection[str]) -> list[str]:
    """The wanted parts without those that this machine cannot measure, which are named."""
    reason = await why_not() if set(wanted) & set(_OF_DOCKER) else None
    if reason is not None:
        sys.stdout.write(f"left out: Docker ({reason})\n")
    left_out = {*_OF_DOCKER} if reason is not None else set()
    for part, why in (("clouds", why_no_machines), ("functions", why_no_functions)):
        if part in wanted and (reason := await asyncio.to_thread(why)) is not None:
            sys.stdout.write(f"left out: {part} ({reason})\n")
            left_out.add(part)
    return [part for part in PARTS if part in wanted and part not in left_out]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    parser.add_argument("--quick", action="store_true", help="a short form, for trying the bench")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the rows go, too")
    given = parser.parse_args()
    scale = QUICK if given.quick else FULL
    started = time.monotonic()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="orion-bench-") as directory:
        try:
            parts = asyncio.run(_possible(given.only))
            asyncio.run(measure(Bench(directory=Path(directory), scale=scale), parts, rows))
        except* (BenchError, TimeoutError) as failures:
            reasons = [str(exc) or "out of time" for exc in failures.exceptions]
            sys.stderr.write(f"the bench could not be finished: {'; '.join(reasons)}\n")
            is_whole = False
        else:
            is_whole = True
        finally:
            took_s = time.monotonic() - started
            if given.json is not None:
                given.json.write_text(render_json(rows))
            sys.stdout.write(f"\n{render(rows)}\n\n{NOTES}\nTook {took_s:.0f} s.\n")
    return 0 if is_whole else 1


if __name__ == "__main__":
    sys.exit(main())
