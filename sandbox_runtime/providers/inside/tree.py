"""Ends all that a process has started. Part of each run.py: standard library only, and nothing newer than Python 3.9."""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # the public one takes 20 ms more, for its enums
import os
import time

_POLL_S = 0.002


def reap(main: int = 0) -> int | None:
    """Collect all that ended; the exit code of `main` if it is among them."""
    code = None
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == main:
                ended = os.waitstatus_to_exitcode(status)
                code = ended if ended >= 0 else 128 - ended
    except ChildProcessError:
        pass
    return code


def kill_tree() -> None:
    """Stop all that can fork, then kill: against a fork bomb, killing alone is a race."""
    stopped: set[int] = set()
    while True:
        reap()
        found, is_whole = descendants()
        if is_whole and not found:
            return
        fresh = found - stopped
        for pid in fresh or found:
            try:
                os.kill(pid, signal.SIGSTOP if fresh else signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        stopped = stopped | fresh if fresh else set()
        if not fresh:
            time.sleep(_POLL_S)


def descendants() -> tuple[set[int], bool]:
    """All below this process, zombies too, and whether the look was whole: one that vanished may have left a child.

    Source: proc(5), /proc/pid/stat: the name in parentheses may itself hold parentheses and spaces.
    """
    children: dict[int, list[int]] = {}
    is_whole = True
    for entry in os.listdir("/proc"):  # noqa: PTH208  # plain and quick
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:  # noqa: PTH123  # same
                parent = int(file.read().rpartition(b")")[2].split()[1])
        except OSError:
            is_whole = False
            continue
        children.setdefault(parent, []).append(int(entry))
    found: set[int] = set()
    todo = [os.getpid()]
    while todo:
        below = [pid for pid in children.get(todo.pop(), ()) if pid not in found]
        found.update(below)
        todo.extend(below)
    return found, is_whole
