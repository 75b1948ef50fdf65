"""What the processes of a local sandbox use, by the kernel's own figures."""

import os
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

from sandbox_runtime.types import SandboxStats


def measure_processes(mark: bytes) -> SandboxStats:
    """Returns what the processes use that have the mark in their environment, with their descendants; shared memory is counted for each.

    Whoever is not root sees those of its own account alone. Source: proc_pid_stat(5): ppid, utime, stime, rss.
    """
    children, used, found = (
        defaultdict[str, list[str]](list),
        dict[str, tuple[int, int]](),
        set[str](),
    )
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is another account's
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            children[fields[1]].append(process.name)
            used[process.name] = int(fields[11]) + int(fields[12]), int(fields[21])
            if mark in (process / "environ").read_bytes():
                found.add(process.name)
    waiting = list(found)
    while waiting:
        more = [child for child in children[waiting.pop()] if child not in found]
        found.update(more)
        waiting += more
    ticks, pages = (sum(each) for each in zip((0, 0), *(used[one] for one in found), strict=True))
    return SandboxStats(
        cpu_s=ticks / os.sysconf("SC_CLK_TCK"), memory_bytes=pages * os.sysconf("SC_PAGESIZE")
    )
