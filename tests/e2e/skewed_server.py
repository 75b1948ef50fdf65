"""`orion serve` whose wall clock is off by what a file says; `time.monotonic` goes on as ever.

`python -m tests.e2e.skewed_server FILE`. In the process, and not the machine's clock, which others share. Every clock the
service and its engine read: `time.time`, `time.time_ns`, `SystemClock` (`datetime.now` cannot be replaced).
"""

import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from app.commands.serve import serve
from app.config import load_settings
from app.runs.clock import SystemClock

_true_time_ns = time.time_ns


def main() -> int:
    path = Path(sys.argv[1])

    def skewed_ns() -> int:
        return _true_time_ns() + 1_000_000_000 * int(path.read_text())

    def now(self: SystemClock) -> datetime:  # noqa: ARG001 - becomes its method
        return datetime.fromtimestamp(skewed_ns() / 1e9, UTC)

    time.time_ns = skewed_ns
    time.time = lambda: skewed_ns() / 1e9
    SystemClock.now = now  # type: ignore[method-assign]  # the very point of this program
    return serve(load_settings(env_file=None))


if __name__ == "__main__":
    sys.exit(main())
