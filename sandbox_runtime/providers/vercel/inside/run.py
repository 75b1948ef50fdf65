"""Runs one command in the machine as the agent's user and ends it whole: the service itself kills one process, not a tree.

Usage, as root: `python3 -I -S RUN`. Standard library only, and nothing newer than Python 3.9.

On stdin: two lengths of 12 digits each, the request as JSON, the command's own input, then orders: K means kill, C that
one piece of output was taken, R and I are the terminal's. Its end means nothing: the service ends it when it likes. SIGTERM
means kill, too.
On stdout, lines: `!` when the request was read, `o` or `e` and a piece of output in base64, `.` when nothing was said
for a while, so that no connection looks dead, and last `x` and the exit code (128 + n after signal n), when nothing that
the command started is alive. It exits with that code.

Everything it starts stays below it, in its own session or orphaned, because it is their subreaper (prctl(2)).
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # the public one takes 20 ms more, for its enums
import binascii
import json
import os
import resource
import select
import time

from sandbox_runtime.providers.inside.command import (
    KILLED,
    NOT_EXECUTABLE,
    adopt_orphans,
    execute,
    fail,
    keep_input,
    limit,
    read_request,
    wake_on,
    write,
)
from sandbox_runtime.providers.inside.terminal import ControllingTerminal, split_orders
from sandbox_runtime.providers.inside.tree import kill_tree, reap
from sandbox_runtime.providers.inside.user import become

_REQUEST_S = 60
_PIECE_BYTES = 48 * 1024


class Killed(Exception):  # noqa: N818 - no error
    """By whoever waits for the command, or because its time is over."""


class Output:
    """Frames on stdout; as many pieces ahead of the reader as it allows."""

    def __init__(self, window: int, keep: int) -> None:
        self._left = window
        self._is_free = window == 0
        self._keep = {b"o": keep, b"e": keep}
        self._is_kept_whole = keep < 0

    @property
    def is_open(self) -> bool:
        return self._is_free or self._left > 0

    def taken(self, pieces: int) -> None:
        self._left += pieces

    def piece(self, stream: bytes, data: bytes) -> None:
        """What is past the bound is dropped here: nobody would keep it."""
        if not self._is_kept_whole:
            data = data[: self._keep[stream]]
            self._keep[stream] -= len(data)
        if data:
            self.frame(stream + binascii.b2a_base64(data, newline=False))
            self._left -= 1

    def frame(self, line: bytes) -> None:
        data = line + b"\n"
        while data:
            data = data[os.write(1, data) :]


class Orders:
    """What is said on stdin while the command runs."""

    def __init__(self, output: Output, terminal: ControllingTerminal | None) -> None:
        self.output = output
        self._terminal = terminal
        self._rest = b""
        self.reading = [0]

    @property
    def writing(self) -> list[int]:
        terminal = self._terminal
        return [terminal.writer] if terminal is not None and terminal.is_behind else []

    def obey(self, *, is_read: bool) -> None:
        """What came since, if there is anything to read, and what the terminal had no room for."""
        terminal = self._terminal
        if terminal is not None and terminal.is_behind:
            terminal.write()
        if not is_read:
            return
        data = os.read(0, 65536)
        if not data:
            self.reading = []
        orders, self._rest = split_orders(self._rest + data)
        for kind, more in orders:
            if kind == b"K":
                raise Killed
            if kind == b"C":
                self.output.taken(1)
            elif terminal is not None:
                terminal.obey(kind, more)


def main() -> None:
    """Read the request, run it, end it."""
    write("/proc/self/comm", "sandbox-run")
    signal.alarm(_REQUEST_S)  # nothing was started yet: whoever asked may be gone
    body, length = read_request()
    request = json.loads(body)
    stdin = keep_input(length)
    signal.alarm(0)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    woken = wake_on(
        signal.SIGCHLD, signal.SIGTERM
    )  # until here SIGTERM ends it: nothing was started
    os.fchown(stdin, request["uid"], request["uid"])
    adopt_orphans()
    output = Output(request["window"], request["keep"])
    output.frame(b"!")
    terminal = ControllingTerminal(request["terminal"]) if request["terminal"] else None
    pid, streams = _start(request, stdin, terminal)
    os.close(stdin)
    try:
        code = _watch(pid, streams, Orders(output, terminal), woken, request)
    except Killed:
        kill_tree()
        code = KILLED
    output.frame(b"x%d" % code)
    os._exit(code)


def _start(
    request: dict[str, object], stdin: int, terminal: ControllingTerminal | None
) -> tuple[int, dict[int, bytes]]:
    uid = int(request["uid"])  # type: ignore[call-overload]  # of our own host
    streams, ends = _outputs(terminal)
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            if terminal is not None:
                terminal.control()
            os.dup2(stdin if terminal is None else terminal.command_end, 0)
            os.dup2(ends[0], 1)
            os.dup2(ends[0] if request["merge"] else ends[-1], 2)
            os.closerange(3, 256)
            bounds = request["limits"].items()  # type: ignore[attr-defined]  # same
            limit((getattr(resource, "RLIMIT_" + name), bound) for name, bound in bounds)
            become(uid)
            _execute(request)
        except OSError as exc:
            fail(os.fsencode(request["argv"][0]), exc)  # type: ignore[index]  # same
        finally:
            os._exit(NOT_EXECUTABLE)
    for end in ends:
        os.close(end)
    return pid, streams


def _outputs(terminal: ControllingTerminal | None) -> tuple[dict[int, bytes], tuple[int, ...]]:
    """Where output comes from, and the ends that the command gets as its stdout and stderr."""
    if terminal is not None:
        return {terminal.reader: b"o"}, (terminal.command_end,)
    out, out_end = os.pipe()
    err, err_end = os.pipe()
    return {out: b"o", err: b"e"}, (out_end, err_end)


def _execute(request: dict[str, object]) -> None:
    os.umask(0o022)
    argv = tuple(os.fsencode(argument) for argument in request["argv"])  # type: ignore[attr-defined]  # same
    env = {os.fsencode(k): os.fsencode(v) for k, v in request["env"].items()}  # type: ignore[attr-defined]  # same
    execute(argv, env, os.fsencode(str(request["cwd"])))


def _watch(
    pid: int, streams: dict[int, bytes], orders: Orders, woken: int, request: dict[str, object]
) -> int:
    """Pass output on until the command and all that it started are dead; its exit code."""
    output = orders.output
    beat_s = float(request["beat_s"])  # type: ignore[arg-type]  # same
    limit_s = request["limit_s"]
    deadline = None if limit_s is None else time.monotonic() + float(limit_s)  # type: ignore[arg-type]  # same
    code: int | None = None
    while code is None or streams:
        reading = [*orders.reading, woken, *(streams if output.is_open else ())]
        wait_s = beat_s if deadline is None else min(beat_s, max(0.0, deadline - time.monotonic()))
        ready, writable, _ = select.select(reading, orders.writing, (), wait_s)
        if deadline is not None and time.monotonic() >= deadline:
            raise Killed
        if not ready and not writable:
            output.frame(b".")
        if woken in ready and signal.SIGTERM in os.read(woken, 4096):
            raise Killed
        orders.obey(is_read=0 in ready)
        for fd in ready:
            if fd in streams:
                _pass(fd, streams, output)
        if code is None:
            code = reap(pid)
            if code is not None:
                kill_tree()
    return code


def _pass(fd: int, streams: dict[int, bytes], output: Output) -> None:
    try:
        data = os.read(fd, _PIECE_BYTES)
    except OSError:
        data = b""  # a terminal that nobody has open any more
    if data:
        output.piece(streams[fd], data)
    else:
        os.close(fd)
        del streams[fd]


if __name__ == "__main__":
    main()
