"""`python -m tests.leaks [--only PROVIDER] [--runs N] [--write FILE]`: nothing may be left; 1 if something is."""

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from tests.leaks.plan import DOCKER, LOCAL, Plan
from tests.leaks.play import Result, prove
from tests.leaks.report import render

TIMEOUT_S = 40 * 60.0
PLANS = (LOCAL, DOCKER)


async def run(
    plans: Sequence[Plan], directory: Path, *, tell: Callable[[list[Result]], None]
) -> list[Result]:
    # Asked to end, it ends its services first.
    main_task = asyncio.current_task()
    assert main_task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, main_task.cancel)
    results: list[Result] = []
    async with asyncio.timeout(TIMEOUT_S):
        for plan in plans:
            results.append(await prove(directory, plan))
            tell(results)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.leaks")
    parser.add_argument("--only", choices=[plan.provider for plan in PLANS])
    parser.add_argument("--runs", type=int, help="instead of 200 local and 100 Docker ones")
    parser.add_argument("--write", type=Path, help="also write the table to this file")
    given = parser.parse_args()
    plans = [
        replace(plan, runs=given.runs or plan.runs)
        for plan in PLANS
        if given.only in (None, plan.provider)
    ]
    started = time.monotonic()

    def tell(results: list[Result]) -> None:
        """After each plan, since the next one may be cut short."""
        table = render(results, took_s=time.monotonic() - started)
        sys.stdout.write(table)
        if given.write:
            given.write.write_text(table)

    with tempfile.TemporaryDirectory(prefix="orion-leaks-") as directory:
        # The sandboxes' users pass through it.
        Path(directory).chmod(0o755)
        results = asyncio.run(run(plans, Path(directory), tell=tell))
    return 1 if any(result.faults for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
