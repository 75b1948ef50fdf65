"""Kills what carries a mark in its environment, for a command whose own runner was killed; exits when nothing is left.

Usage: `python3 -I -S -c SOURCE MARK`. Standard library only, and nothing newer than Python 3.9.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # the public one takes 20 ms more, for its enums
import os
import sys
import time

_POLL_S = 0.005


def main() -> None:
    """Until a look at all processes finds none."""
    needle = os.fsencode(sys.argv[1])
    while _kill(needle):
        time.sleep(_POLL_S)


def _kill(needle: bytes) -> int:
    killed = 0
    for entry in os.listdir("/proc"):  # noqa: PTH208  # plain and quick
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:  # noqa: PTH123  # same
                is_marked = needle in file.read()
            if is_marked:
                os.kill(int(entry), signal.SIGKILL)
                killed += 1
        except OSError:
            pass
    return killed


if __name__ == "__main__":
    main()
