"""Finds and kills process trees inside the sandbox, also those that left their process group."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_PR_SET_CHILD_SUBREAPER = 36
"""Source: Linux, include/uapi/linux/prctl.h."""
_POLL_S = 0.02
_NICENESS = 10
"""About a tenth of the share of a busy processor that others have."""


def become_subreaper() -> None:
    """Makes orphaned descendants children of this process, so that none leaves its tree by a double fork."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def lower_priority(session: int) -> None:
    """Lowers the priority of a session that was just started, so that busy agents do not silence the service.

    `nice` alone does nothing between sessions where the kernel groups processes by session. Source: sched(7), autogroup.
    """
    with contextlib.suppress(OSError):
        Path(f"/proc/{session}/autogroup").write_text(str(_NICENESS), encoding="ascii")


def descendants(root: int) -> set[int]:
    """Returns living processes below `root`, without `root`; zombies do not count."""
    children: dict[int, list[int]] = {}
    zombies = set()
    for pid, parent, state in _processes():
        children.setdefault(parent, []).append(pid)
        if state in "ZX":
            zombies.add(pid)
    found: set[int] = set()
    todo = [root]
    while todo:
        below = [pid for pid in children.get(todo.pop(), ()) if pid not in found]
        found.update(below)
        todo.extend(below)
    return found - zombies


def marked(marker: bytes) -> set[int]:
    """Returns living processes that were started with `marker` in their environment, wherever they went since."""
    found = set()
    for pid, _, state in _processes():
        if state not in "ZX" and pid != os.getpid():
            with contextlib.suppress(OSError):
                if marker in Path(f"/proc/{pid}/environ").read_bytes():
                    found.add(pid)
    return found


def send(pids: set[int], number: signal.Signals) -> None:
    """Signals each; those that are gone by now are no error."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def kill_until_gone(
    find: Callable[[], set[int]], *, timeout_s: float, between: Callable[[], None] = lambda: None
) -> int:
    """Sends SIGKILL to whatever `find` returns, again and again (trees fork), until nothing is left.

    Returns:
        How many were still alive after `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        between()
        alive = find()
        if not alive or time.monotonic() > deadline:
            return len(alive)
        send(alive, signal.SIGKILL)
        time.sleep(_POLL_S)


def _processes() -> list[tuple[int, int, str]]:
    """Returns (pid, parent pid, state) of all processes.

    Source: proc(5), /proc/pid/stat: the name in parentheses may itself hold parentheses and spaces.
    """
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                state, parent, *_ = (entry / "stat").read_text("latin-1").rpartition(")")[2].split()
                found.append((int(entry.name), int(parent), state))
    return found
