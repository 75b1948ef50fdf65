"""Watches what an agent uses that no limit of the kernel adds up for it: its files together, and its processes."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from agent_scripts.inside import process_tree

_PAUSE_S = 1.0
_PAUSE_FACTOR = 10
"""A tree that takes long to measure is measured for a tenth of the time at most."""
_CROWDED = 0.95
"""Of the allowed processes; the kernel refuses the last one, and counts some that are not seen here."""
_CROWDED_LOOKS = 3
"""In a row: a burst that passes is no reason to end an agent."""
_BLOCK_BYTES = 512
"""Source: stat(2), st_blocks."""


class Usage:
    """Looks about once a second, on a thread of its own, which is started before the agent can use up what it needs."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._roots = [*config["disk_paths"], tempfile.gettempdir()]
        self._max_disk_bytes: int = config["max_disk_bytes"]
        self._max_processes: int = config["max_processes"]
        self._crowded_looks = 0
        self.excess = ""
        """`disk_limit` or `process_limit` once the agent has gone beyond."""

    def start(self) -> None:
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while not self.excess:
            started = time.monotonic()
            with contextlib.suppress(OSError):  # no descriptor is left for the moment: look again
                self._look()
            took = time.monotonic() - started
            time.sleep(max(_PAUSE_S, _PAUSE_FACTOR * took))

    def _look(self) -> None:
        tasks = count_tasks(process_tree.descendants(os.getpid()))
        is_crowded = tasks > _CROWDED * self._max_processes
        self._crowded_looks = self._crowded_looks + 1 if is_crowded else 0
        if self._crowded_looks >= _CROWDED_LOOKS:
            self.excess = "process_limit"
        elif disk_bytes(self._roots, stop_at=self._max_disk_bytes) > self._max_disk_bytes:
            self.excess = "disk_limit"


def disk_bytes(roots: list[str], *, stop_at: int) -> int:
    """What the files below `roots` take, those with several names once; counts no further than past `stop_at`."""
    total = 0
    seen = set()
    todo = list(roots)
    while todo and total <= stop_at:
        with contextlib.suppress(OSError), os.scandir(todo.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    found = entry.stat(follow_symlinks=False)
                    if found.st_nlink > 1 and not entry.is_dir(follow_symlinks=False):
                        if (found.st_dev, found.st_ino) in seen:
                            continue
                        seen.add((found.st_dev, found.st_ino))
                    total += found.st_blocks * _BLOCK_BYTES
                    if entry.is_dir(follow_symlinks=False):
                        todo.append(entry.path)
    return total


def count_tasks(pids: set[int]) -> int:
    """Of these processes, their threads counted one by one, as the kernel's limits do.

    Source: proc(5); a directory has two links and one more for each directory in it, of which `task` has one a thread.
    """
    tasks = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            tasks += Path(f"/proc/{pid}/task").stat().st_nlink - 2
    return tasks
