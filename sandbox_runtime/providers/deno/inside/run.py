"""Runs one command in the sandbox, holds its output back as the reader wants, and ends it whole.

Usage, as root: `python3 -I -S -c SOURCE`. Standard library only, and nothing newer than Python 3.9.

On stdin: two lengths of 12 digits each, the request's fields joined by NUL, the command's own input, and then single
bytes: K means kill, W that another window of output may come, R and eight digits the terminal's new size. The end of stdin
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
import struct

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
from sandbox_runtime.providers.inside.tree import kill_tree, reap
from sandbox_runtime.providers.inside.user import become

_ACK = b"\x06"
_TIOCSCTTY, _TIOCSWINSZ = 0x540E, 0x5414  # Source: Linux, include/uapi/asm-generic/ioctls.h.
_LIMITS = (
    resource.RLIMIT_DATA,
    resource.RLIMIT_NPROC,
    resource.RLIMIT_FSIZE,
    resource.RLIMIT_NOFILE,
)
"""In the order of a request."""
_RESIZE, _TYPED = 9, 5
"""Bytes of an order to resize, and of one to type before what is typed."""


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
    routes, given = _outputs(is_merged=is_merged == "1", size=size)
    terminal = next(iter(routes)) if size else None
    try:
        pid = os.fork()
    except OSError as exc:
        fail(argv[0], exc)
    if pid == 0:
        try:
            os.setsid()
            if size:
                import fcntl  # noqa: PLC0415  # only here

                fcntl.ioctl(given[0], _TIOCSCTTY, 0)
            for number, fd in enumerate((given[0] if size else stdin, *given)):
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


def _outputs(*, is_merged: bool, size: str) -> tuple[dict[int, int], tuple[int, int]]:
    """Where output comes from and goes to, and what the command gets as its stdout and stderr."""
    if size:
        master, slave = os.openpty()
        _resize(master, size)
        os.set_blocking(master, False)
        return {master: 1}, (slave, slave)
    out, given_out = os.pipe()
    os.set_blocking(out, False)
    if is_merged:
        return {out: 1}, (given_out, given_out)
    err, given_err = os.pipe()
    os.set_blocking(err, False)
    return {out: 1, err: 2}, (given_out, given_err)


def _resize(terminal: int, size: str) -> None:
    """`size`: four digits of rows, four of columns."""
    import fcntl  # noqa: PLC0415  # only for terminals

    try:
        fcntl.ioctl(terminal, _TIOCSWINSZ, struct.pack("HHHH", int(size[:4]), int(size[4:]), 0, 0))
    except OSError:
        pass


def _watch(pid: int, woken: int, pump: Pump, terminal: int | None, *, is_bound: bool) -> int:
    """Pass on output until the command's end or the order to kill it; its exit code."""
    orders = b""
    pump.poller.register(0, select.POLLIN)
    pump.poller.register(woken, select.POLLIN)
    while True:
        pump.watch()
        for fd, _ in pump.poller.poll():
            if fd == 0:
                data = os.read(0, 65536)
                if not data and is_bound:
                    pump.drop()
                    return KILLED
                if not data:
                    pump.poller.unregister(0)
                    pump.drop()
                orders = _obey(orders + data, pump, terminal)
                if orders.startswith(b"K"):
                    pump.drop()
                    return KILLED
            elif fd == woken:
                os.read(woken, 4096)
            else:
                pump.take(fd)
        code = reap(pid)
        if code is not None:
            return code


def _obey(orders: bytes, pump: Pump, terminal: int | None) -> bytes:
    """What is left of them: an incomplete one, or a K. `I`, four digits and as many bytes are typed at the terminal."""
    while orders and not orders.startswith(b"K"):
        kind, length = orders[:1], 1
        if kind == b"W":
            pump.credit += WINDOW
        elif kind == b"R" and len(orders) >= _RESIZE:
            length = _RESIZE
            if terminal is not None:
                _resize(terminal, orders[1:_RESIZE].decode())
        elif (
            kind == b"I" and len(orders) >= _TYPED and len(orders) >= _TYPED + int(orders[1:_TYPED])
        ):
            length = _TYPED + int(orders[1:_TYPED])
            _type(terminal, orders[_TYPED:length])
        elif kind in (b"R", b"I"):
            return orders
        orders = orders[length:]
    return orders


def _type(terminal: int | None, data: bytes) -> None:
    try:
        if terminal is not None:
            os.write(terminal, data)
    except OSError:
        pass  # it does not read, and its buffer is full


def _drain(pump: Pump) -> None:
    """Pass on what is left in the pipes, whose other ends are all closed."""
    orders = b""
    while pump.is_heard and not pump.is_done:
        pump.watch()
        for fd, _ in pump.poller.poll():
            if fd == 0:
                data = os.read(0, 65536)
                orders = _obey(orders + data, pump, None)
                if not data or orders.startswith(b"K"):
                    return
            else:
                pump.take(fd)


if __name__ == "__main__":
    main()
