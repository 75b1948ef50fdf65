"""PID 1 of a sandbox's container: reaps orphans, kills everything else when told to, ends at the sandbox's maximum age.

Usage: `python3 -I -S -c SOURCE MAX_AGE_S`. Standard library only, and nothing newer than Python 3.9.

Not the engine's own init: what that one runs can be killed from inside, which would end the container. The kernel lets
nobody in its namespace kill or stop PID 1 (pid_namespaces(7)), and PID 1 can kill all others at once, without a fork,
also when the limit of processes is reached.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # the public one takes 20 ms more, for its enums
import os
import sys
import time

_KILL_ALL = signal.SIGUSR1
_WATCHED = (signal.SIGCHLD, _KILL_ALL)


def main() -> None:
    """Waits for children, orders and the end of time."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    deadline = time.monotonic() + float(sys.argv[1])
    try:
        with open("/proc/self/comm", "w") as name:  # noqa: PTH123  # quick start
            name.write("sandbox-init")
    except OSError:
        pass
    while (left_s := deadline - time.monotonic()) > 0:
        received = signal.sigtimedwait(_WATCHED, left_s)
        if received is not None and received.si_signo == _KILL_ALL:
            _kill_all()
        _reap()


def _kill_all() -> None:
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


if __name__ == "__main__":
    main()
