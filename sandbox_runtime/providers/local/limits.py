"""Resource limits as arguments of prlimit (util-linux), and the priority of sandboxes, by nice (coreutils)."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from sandbox_runtime.types import SandboxLimits


def limit_arguments(prlimit: str, limits: SandboxLimits, *, count_processes: bool) -> list[str]:
    """What to put before a command. prlimit itself exits with 127 or 126 when it cannot run it, as a shell would.

    Source: prlimit(1) and include/exitcodes.h of util-linux 2.38; setrlimit(2).
    """
    bounds = {
        # Address space bounds shared memory, too, but runtimes of today may reserve far more of it than they use.
        "as": limits.memory_bytes + limits.reserved_bytes,
        "data": limits.memory_bytes,
        "fsize": limits.max_file_bytes,
        "nofile": limits.max_open_files,
        "core": 0,
    }
    if count_processes:
        bounds["nproc"] = limits.max_processes
    return [prlimit, *(f"--{name}={bound}:{bound}" for name, bound in bounds.items()), "--"]


NICENESS = 10
"""About a tenth of the service's share of a busy processor: 32 agents starting at once must not silence the service."""


def yielding(argv: Sequence[str]) -> list[str]:
    """The command, giving way to the service and to everything else of the machine."""
    return ["nice", "-n", str(NICENESS), *argv]


def give_way(session: int) -> None:
    """The same for a session that was just started, where the kernel groups processes by session.

    There `nice` counts within a session only. Source: sched(7), autogroup.
    """
    with suppress(OSError):
        Path(f"/proc/{session}/autogroup").write_text(str(NICENESS), encoding="ascii")
