"""Runs one command in the sandbox, holds its output back as the reader wants, and ends it whole.

Usage, as root: `python3 -I -S -c SOURCE`. Standard library only, and nothing newer than Python 3.9.

On stdin: two lengths of 12 digits each, the request's fields joined by NUL, the command's own input, and then orders:
K means kill, W that another window of output may come, R and I are the terminal's. The end of stdin
means that nobody listens any more: a bound command is killed, a free one goes on, and its output is dropped.
On stdout, before anything of the command's: one byte, ACK. Exits as the command did (128 + n after signal n), and only
when nothing that it started is alive.

The command runs as an unprivileged user that can become nobody else. Everything it starts stays below this process, in its
own session or orphaned, because it is their subreaper (prctl(2)), and cannot touch it, because it is root.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # the public one takes 20 ms more, for its enums
import os
import resource
import select

from sandbox_runtime.providers.deno.inside.pump import WINDOW, Pump
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
from sandbox_runtime.providers.inside.terminal import ControllingTerminal, split_orders
from sandbox_runtime.providers.inside.tree import kill_tree, reap
from sandbox_runtime.providers.inside.user import become

_ACK = b"\x06"
_LIMITS = (
    resource.RLIMIT_DATA,
    resource.RLIMIT_NPROC,
    resource.RLIMIT_FSIZE,
    resource.RLIMIT_NOFILE,
)
"""In the order of a request."""


def main() -> None:
    """Read the request, run it, end it."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    write("/proc/self/comm", "sandbox-run")
    body, length = read_request()
    stdin = keep_input(length) if length else os.open("/dev/null", os.O_RDONLY)
    fields = body.split(b"\0")
    is_bound, is_merged, size, user, *limits = (field.decode() for field in fields[:8])
    argv, env, cwd = split_command(*fields[8:])
    if is_bound == "0":
        _leave_parent()
    adopt_orphans()
    for fd in (1, 2):
        os.set_blocking(fd, False)
    woken = wake_on(signal.SIGCHLD)
    os.write(1, _ACK)
    terminal = ControllingTerminal(size) if size else None
    routes, given = _outputs(terminal, is_merged=is_merged == "1")
    try:
        pid = os.fork()
    except OSError as exc:
        fail(argv[0], exc)
    if pid == 0:
        try:
            os.setsid()
            if terminal is not None:
                terminal.control()
            for number, fd in enumerate((stdin if terminal is None else given[0], *given)):
                os.dup2(fd, number)
            os.closerange(3, 64)
            limit(zip(_LIMITS, map(int, limits)))  # noqa: B905  # Python 3.9 has no strict
            become(int(user))
            execute(argv, env, cwd)
        except OSError as exc:
            fail(argv[0], exc)
    for fd in {*given, stdin}:
        os.close(fd)
    pump = Pump(routes, select.poll())
    code = _watch(pid, woken, pump, terminal, is_bound=is_bound == "1")
    kill_tree()
    _drain(pump)
    os._exit(code)


def _leave_parent() -> None:
    """Into a session of our own, below a process that only waits: whatever ends that one does not end us."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        return
    status = os.waitpid(pid, 0)[1]
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def _outputs(
    terminal: ControllingTerminal | None, *, is_merged: bool
) -> tuple[dict[int, int], tuple[int, int]]:
    """Where output comes from and goes to, and what the command gets as its stdout and stderr."""
    if terminal is not None:
        return {terminal.reader: 1}, (terminal.command_end, terminal.command_end)
    out, given_out = os.pipe()
    os.set_blocking(out, False)
    if is_merged:
        return {out: 1}, (given_out, given_out)
    err, given_err = os.pipe()
    os.set_blocking(err, False)
    return {out: 1, err: 2}, (given_out, given_err)


def _watch(
    pid: int, woken: int, pump: Pump, terminal: ControllingTerminal | None, *, is_bound: bool
) -> int:
    """Pass on output until the command's end or the order to kill it; its exit code."""
    orders = b""
    pump.poller.register(0, select.POLLIN)
    pump.poller.register(woken, select.POLLIN)
    while True:
        pump.watch()
        if terminal is not None and terminal.is_behind:
            pump.poller.register(terminal.writer, select.POLLOUT)
        for fd, _ in pump.poller.poll():
            if fd == 0:
                is_killed, orders = _listen(orders, pump, terminal, is_bound=is_bound)
                if is_killed:
                    pump.drop()
                    return KILLED
            elif fd == woken:
                os.read(woken, 4096)
            elif terminal is not None and fd == terminal.writer:
                pump.poller.unregister(fd)
                terminal.write()
            else:
                pump.take(fd)
        code = reap(pid)
        if code is not None:
            return code


def _listen(
    orders: bytes, pump: Pump, terminal: ControllingTerminal | None, *, is_bound: bool
) -> tuple[bool, bytes]:
    data = os.read(0, 65536)
    if not data and is_bound:
        return True, b""
    if not data:
        pump.poller.unregister(0)
        pump.drop()
    return _obey(orders + data, pump, terminal)


def _obey(data: bytes, pump: Pump, terminal: ControllingTerminal | None) -> tuple[bool, bytes]:
    """Whether it is to be killed, and the beginning of an order whose rest is still to come."""
    orders, rest = split_orders(data)
    for kind, more in orders:
        if kind == b"K":
            return True, rest
        if kind == b"W":
            pump.credit += WINDOW
        elif terminal is not None:
            terminal.obey(kind, more)
    return False, rest


def _drain(pump: Pump) -> None:
    """Pass on what is left in the pipes, whose other ends are all closed."""
    orders = b""
    while pump.is_heard and not pump.is_done:
        pump.watch()
        for fd, _ in pump.poller.poll():
            if fd == 0:
                data = os.read(0, 65536)
                is_killed, orders = _obey(orders + data, pump, None)
                if is_killed or not data:
                    return
            else:
                pump.take(fd)


if __name__ == "__main__":
    main()
