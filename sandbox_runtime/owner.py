"""Which process made a sandbox, and whether it still lives."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A process, told apart from a later one that got the same pid."""

    pid: int
    started: str
    """Start time in clock ticks since boot, and the id of that boot."""

    @classmethod
    def current(cls) -> Self:
        pid = os.getpid()
        return cls(pid=pid, started=_start_of(pid))

    @property
    def alive(self) -> bool:
        try:
            return _start_of(self.pid) == self.started
        except (FileNotFoundError, ProcessLookupError):
            return False


def _start_of(pid: int) -> str:
    """Source: proc(5), /proc/pid/stat, field 22; the command name may hold spaces and parentheses."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    ticks = stat.rpartition(")")[2].split()[19]
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{ticks}@{boot}"
