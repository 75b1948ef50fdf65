"""`orion serve`, or another role, whose wall clock is off by what a file says; `time.monotonic` goes on as ever.

`python -m tests.e2e.skewed_server FILE [ROLE]`, a role as `Role` names it. In the process, and not the machine's clock, which others share. The clocks by
which deadlines, leases and tokens go: `time.time` and `time.time_ns`. `datetime.now` cannot be replaced; it says when messages were heard.
"""

import sys
import time
from pathlib import Path

from app.cli.commands.serve import serve
from app.compose.adapters import Role
from app.settings.settings import load_settings

_true_time_ns = time.time_ns


def main() -> int:
    path = Path(sys.argv[1])

    def skewed_ns() -> int:
        return _true_time_ns() + 1_000_000_000 * int(path.read_text())

    time.time_ns = skewed_ns
    time.time = lambda: skewed_ns() / 1e9
    role = Role(sys.argv[2]) if len(sys.argv) > 2 else Role.WHOLE
    return serve(load_settings(env_file=None), role=role)


if __name__ == "__main__":
    sys.exit(main())
