"""Runs one command in a sandbox, passes its output on as far as that is read, and ends it whole.

Usage: `python3 -I -S -c SOURCE FRAMING`, as root or as the agent's user. Standard library only, and nothing newer than
Python 3.9. FRAMING says how output leaves (output.py): `inherited`, `pipes` or `lines`.

On stdin: two lengths of 12 digits each, the request (command.py), the command's own input, and then orders: K means kill,
W that another window of output may come, R and I are the terminal's. The end of stdin means that nobody listens any more:
a bound command is killed, a free one goes on. So does, with `lines`, SIGTERM mean kill; otherwise it means nothing. On
stdout, before anything of the command's: that the request was read.
Exits as the command did (128 + n after signal n), and only when nothing that it started is alive.

Everything it starts stays below this process, in its own session or orphaned, because it is their subreaper (prctl(2)). As
root it makes the command another user's, who can become nobody else and cannot touch it.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # the public one takes 20 ms more, for its enums
import os
import select
import sys
import time

from sandbox_runtime.providers.inside.command import (
    KILLED,
    NOT_EXECUTABLE,
    Request,
    adopt_orphans,
    become,
    execute,
    keep_input,
    kill_tree,
    limit,
    read_request,
    reap,
    say_failure,
    wake_on,
    write,
)
from sandbox_runtime.providers.inside.output import ControllingTerminal, Output, split_orders

_REQUEST_S = 60


class KillOrder(Exception):  # noqa: N818  # no error
    """The command is to be killed: whoever waits for it says so, or its time is over."""


class Orders:
    """Reads what is said on stdin while the command runs, and keeps what is typed and has not been taken yet."""

    def __init__(
        self, output: Output, terminal: ControllingTerminal | None, *, is_bound: bool
    ) -> None:
        self.output = output
        self._terminal = terminal
        self._is_bound = is_bound
        self._rest = b""
        self._is_open = True

    def wanted(self) -> dict[int, int]:
        """Returns what can be done next, as `Output.wanted`, of the output too."""
        wanted = self.output.wanted()
        if self._is_open:
            wanted[0] = select.POLLIN
        if self._terminal is not None and self._terminal.is_behind:
            wanted[self._terminal.writer] = select.POLLOUT
        return wanted

    def take(self, fd: int) -> None:
        """Goes on with one that can be read, or written. Raises: KillOrder."""
        if fd == 0:
            self._read()
        elif self._terminal is not None and fd == self._terminal.writer:
            self._terminal.write()
        else:
            self.output.take(fd)

    def _read(self) -> None:
        data = os.read(0, 65536)
        if not data:
            self._is_open = False
            if self._is_bound:
                raise KillOrder
            self.output.leave()
        orders, self._rest = split_orders(self._rest + data)
        for kind, more in orders:
            if kind == b"K":
                raise KillOrder
            if kind == b"W":
                self.output.allow()
            elif self._terminal is not None:
                self._terminal.obey(kind, more)


def main() -> None:
    """Reads the request, runs it, ends it."""
    framing = sys.argv[1]
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    if framing != "lines":
        signal.signal(
            signal.SIGTERM, signal.SIG_IGN
        )  # `pkill python` in a command must not reach it
    write("/proc/self/comm", "sandbox-run")
    signal.alarm(_REQUEST_S)  # nothing was started yet: whoever asked may be gone
    request = read_request()
    stdin = keep_input(request)
    signal.alarm(0)
    if framing == "pipes" and not request.is_bound:
        _leave_parent()
    adopt_orphans()
    woken = wake_on(signal.SIGCHLD, *((signal.SIGTERM,) if framing == "lines" else ()))
    terminal = ControllingTerminal(request.terminal) if request.terminal else None
    output = Output(framing, request, terminal)
    pid, code = _start(request, stdin, output.given, terminal)
    for fd in {stdin, *output.given} - {1, 2}:
        os.close(fd)
    orders = Orders(output, terminal, is_bound=request.is_bound)
    try:
        code = _watch(pid, code, woken, orders, limit_s=request.limit_s, beat_s=request.beat_s)
    except KillOrder:
        output.leave()
        kill_tree()
        code = KILLED
    output.close(code)
    os._exit(code)


def _leave_parent() -> None:
    """Goes on in a session of its own, below a process that only waits: whatever ends that one does not end this one."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        return
    status = os.waitpid(pid, 0)[1]
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def _start(
    request: Request, stdin: int, given: tuple[int, int], terminal: ControllingTerminal | None
) -> tuple[int, int | None]:
    """Returns the command's process, or 0 and its exit code when there cannot be one."""
    try:
        pid = os.fork()
    except OSError as exc:
        return 0, say_failure(given[1], request.argv[0], exc)
    if pid == 0:
        code = NOT_EXECUTABLE
        try:
            os.setsid()
            if terminal is not None:
                terminal.control()
            for number, fd in enumerate((stdin if terminal is None else given[0], *given)):
                os.dup2(fd, number)
            os.closerange(3, 256)
            limit(request.limits)
            if request.user is None:
                env = {**os.environb, **request.env}
            else:
                env = request.env
                become(request.user)
            execute(request.argv, env, request.cwd)
        except OSError as exc:
            code = say_failure(2, request.argv[0], exc)
        finally:
            os._exit(code)
    return pid, None


def _watch(
    pid: int,
    code: int | None,
    woken: int,
    orders: Orders,
    *,
    limit_s: float | None,
    beat_s: float | None,
) -> int:
    """Passes output on until the command and all that it started are dead; returns its exit code. Raises: KillOrder."""
    deadline = None if limit_s is None else time.monotonic() + limit_s
    while code is None or not orders.output.is_done:
        ready = _poll({**orders.wanted(), woken: select.POLLIN}, beat_s, deadline)
        if not ready:
            orders.output.beat()
        for fd in ready:
            if fd != woken:
                orders.take(fd)
            elif signal.SIGTERM in os.read(woken, 4096):
                raise KillOrder
        if code is None:
            code = reap(pid)
            if code is not None:
                kill_tree()
    return code


def _poll(wanted: dict[int, int], beat_s: float | None, deadline: float | None) -> list[int]:
    """Returns what can be read or written, or nothing after `beat_s`. Raises: KillOrder: it is past the deadline."""
    poller = select.poll()
    for fd, events in wanted.items():
        poller.register(fd, events)
    waits = [] if beat_s is None else [beat_s]
    if deadline is not None:
        waits.append(deadline - time.monotonic())
    ready = poller.poll(max(0, int(1000 * min(waits)) + 1) if waits else None)
    if deadline is not None and time.monotonic() >= deadline:
        raise KillOrder
    return [fd for fd, _ in ready]


if __name__ == "__main__":
    main()
