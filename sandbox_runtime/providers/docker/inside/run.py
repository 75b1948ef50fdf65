"""Runs one command in the container and ends it whole: the engine itself can neither kill an exec nor what it started.

Usage: `python3 -I -S -c SOURCE`. Standard library only, and nothing newer than Python 3.9.

On stdin: two lengths of 12 digits each, the request's fields joined by NUL, the command's own input, and then single
bytes: K means kill. The end of stdin means that nobody waits any more: a bound command is killed, a free one goes on.
On stdout, before anything of the command's: one byte, ACK. Exits as the command did (128 + n after signal n), and only
when nothing that it started is alive.

Everything it starts stays below it, in its own session or orphaned, because it is their subreaper (prctl(2)).
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # the public one takes 20 ms more, for its enums
import os
import resource
import select

from sandbox_runtime.providers.inside.command import (
    KILLED,
    adopt_orphans,
    execute,
    fail,
    keep_input,
    limit,
    read_request,
    split_command,
    wake_on,
    write,
)
from sandbox_runtime.providers.inside.tree import kill_tree, reap

_ACK = b"\x06"


def main() -> None:
    """Read the request, run it, end it."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # `pkill python` in the command must not reach it
    write("/proc/self/comm", "sandbox-run")
    body, length = read_request()
    stdin = keep_input(length) if length else os.open("/dev/null", os.O_RDONLY)
    is_bound, is_merged, fsize, nofile, *command = body.split(b"\0")
    argv, added, cwd = split_command(*command)
    adopt_orphans()
    woken = wake_on(signal.SIGCHLD)
    os.write(1, _ACK)
    try:
        pid = os.fork()
    except OSError as exc:
        fail(argv[0], exc)
    if pid == 0:
        try:
            os.setsid()
            os.dup2(stdin, 0)
            if is_merged == b"1":
                os.dup2(1, 2)
            limit(((resource.RLIMIT_FSIZE, int(fsize)), (resource.RLIMIT_NOFILE, int(nofile))))
            execute(argv, {**os.environb, **added}, cwd)
        except OSError as exc:
            fail(argv[0], exc)
    os.close(stdin)
    code = _watch(pid, woken, is_bound=is_bound == b"1")
    kill_tree()
    os._exit(code)


def _watch(pid: int, woken: int, *, is_bound: bool) -> int:
    """Wait for the command's end or the order to kill it; its exit code."""
    poller = select.poll()
    poller.register(0, select.POLLIN)
    poller.register(woken, select.POLLIN)
    while True:
        for fd, _ in poller.poll():
            data = os.read(fd, 4096)
            if fd == 0 and (data or is_bound):
                return KILLED
            if fd == 0:
                poller.unregister(0)
        code = reap(pid)
        if code is not None:
            return code


if __name__ == "__main__":
    main()
