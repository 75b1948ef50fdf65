"""Kills all processes of a user, or those of them that carry a mark in their environment; exits when none is left.

Usage: `python3 -I -S -c SOURCE UID [MARK]`, as root or as that user. Standard library only, and nothing newer than
Python 3.9.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # the public one takes 20 ms more, for its enums
import os
import sys
import time

_AGAIN_S = 0.005


def main() -> None:
    """Kills until a look at all processes finds none."""
    mark = os.fsencode(sys.argv[2]) if len(sys.argv) > 2 else b""  # noqa: PLR2004  # itself, the user, a mark
    while kill_processes(mark, user=int(sys.argv[1])):
        time.sleep(_AGAIN_S)


def kill_processes(mark: bytes, *, user: int | None = None) -> int:
    """Kills every other process of a user, or of all, with the mark in its environment; returns how many got the signal.

    One that has emptied its environment is not found by a mark: only a namespace holds that, too.
    """
    killed = 0
    for entry in os.listdir("/proc"):  # noqa: PTH208  # plain and quick
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            if _is_of_another(entry, user):
                continue
            # A zombie has no environment.
            if mark in _read(f"/proc/{entry}/environ") if mark else not _is_zombie(entry):
                os.kill(int(entry), signal.SIGKILL)
                killed += 1
        except OSError:
            pass
    return killed


def _is_of_another(entry: str, user: int | None) -> bool:
    """Whether it is not this user's, whom its directory names, dumpable or not. Source: Linux, fs/proc/base.c, task_dump_owner."""
    return user is not None and os.stat(f"/proc/{entry}").st_uid != user  # noqa: PTH116  # same


def _is_zombie(entry: str) -> bool:
    return _read(f"/proc/{entry}/stat").rpartition(b")")[2].split()[0] == b"Z"


def _read(path: str) -> bytes:
    with open(path, "rb") as file:  # noqa: PTH123  # same
        return file.read()


if __name__ == "__main__":
    main()
