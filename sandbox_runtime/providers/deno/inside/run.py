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
import ctypes
import os
import resource
import select
import struct

from sandbox_runtime.providers.deno.inside.pump import WINDOW, Pump
from sandbox_runtime.providers.deno.inside.tree import kill_tree, reap

TYPE_CHECKING = False  # typing itself would double the time of a start
if TYPE_CHECKING:
    from typing import NoReturn

_ACK = b"\x06"
# Source: Linux, include/uapi/linux/prctl.h.
_SET_CHILD_SUBREAPER, _SET_NO_NEW_PRIVS, _CAPBSET_DROP = 36, 38, 24
_MAX_CAPABILITIES = 64
_CAPABILITY_VERSION_3 = 0x20080522  # Source: Linux, include/uapi/linux/capability.h.
_TIOCSCTTY, _TIOCSWINSZ = 0x540E, 0x5414  # Source: Linux, include/uapi/asm-generic/ioctls.h.
_NOT_EXECUTABLE, _MISSING, _KILLED = 126, 127, 137
_FIXED_FIELDS = 10
_RESIZE, _TYPED = 9, 5
"""Bytes of an order to resize, and of one to type before what is typed."""


def main() -> None:
    """Read the request, run it, end it."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    _write("/proc/self/comm", "sandbox-run")
    lengths = _read(24)
    fields = _read(int(lengths[:12])).split(b"\0")
    stdin = _input(int(lengths[12:]))
    is_bound, is_merged, size, user, *limits = (
        field.decode() for field in fields[: _FIXED_FIELDS - 2]
    )
    cwd, count = fields[_FIXED_FIELDS - 2 : _FIXED_FIELDS]
    argv = fields[_FIXED_FIELDS : _FIXED_FIELDS + int(count)]
    env = dict(field.split(b"=", 1) for field in fields[_FIXED_FIELDS + int(count) :])
    if is_bound == "0":
        _leave_parent()
    libc = ctypes.CDLL(None)
    libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    woken, waker = os.pipe()
    for fd in (woken, waker, 1, 2):
        os.set_blocking(fd, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    os.write(1, _ACK)
    routes, given = _outputs(is_merged=is_merged == "1", size=size)
    terminal = next(iter(routes)) if size else None
    try:
        pid = os.fork()
    except OSError as exc:
        _fail(argv[0], exc)
    if pid == 0:
        try:
            os.setsid()
            if size:
                import fcntl  # noqa: PLC0415  # only here

                fcntl.ioctl(given[0], _TIOCSCTTY, 0)
            for number, fd in enumerate((given[0] if size else stdin, *given)):
                os.dup2(fd, number)
            os.closerange(3, 64)
            _limit(libc, int(user), [int(limit) for limit in limits])
            _execute(argv, env, cwd)
        except OSError as exc:
            _fail(argv[0], exc)
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


def _write(path: str, text: str) -> None:
    try:
        with open(path, "w") as file:  # noqa: PTH123  # pathlib would double the time of a start
            file.write(text)
    except OSError:
        pass


def _read(length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        piece = os.read(0, length - len(data))
        if not piece:
            os._exit(0)  # nobody waits any more, and nothing was started
        data += piece
    return bytes(data)


def _input(length: int) -> int:
    if length == 0:
        return os.open("/dev/null", os.O_RDONLY)
    # In an anonymous file: a command that does not read its input blocks nobody.
    fd = os.memfd_create("stdin")
    while length > 0:
        piece = _read(min(length, 1 << 20))
        length -= len(piece)
        while piece:
            piece = piece[os.write(fd, piece) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


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


def _limit(libc: ctypes.CDLL, user: int, limits: list[int]) -> None:
    """`limits`: bytes of memory, processes, bytes of a file, open files."""
    memory, processes, fsize, nofile = limits
    for kind, bound in (
        (resource.RLIMIT_FSIZE, fsize),
        (resource.RLIMIT_NOFILE, nofile),
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_DATA, memory),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        limit = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        resource.setrlimit(kind, (limit, limit))
    for capability in range(_MAX_CAPABILITIES):
        libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0)
    for number in (1, 2):
        os.fchown(number, user, user)  # so that it can be opened by name
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    libc.capset(struct.pack("Ii", _CAPABILITY_VERSION_3, 0), bytes(24))
    libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    # Out of memory, the kernel shall take the command rather than what runs it. Source: proc(5), oom_score_adj.
    _write("/proc/self/oom_score_adj", "500")


def _execute(argv: list[bytes], env: dict[bytes, bytes], cwd: bytes) -> None:
    for number in (
        signal.SIGTERM,
        signal.SIGINT,
        signal.SIGHUP,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGCHLD,
        signal.SIGPIPE,  # these two are ignored by Python
        signal.SIGXFSZ,
    ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.chdir(cwd)
    except OSError as exc:
        os.write(2, os.fsencode(f"{os.fsdecode(cwd)}: {exc.strerror}\n"))
        os._exit(_NOT_EXECUTABLE)
    os.execvpe(argv[0], argv, env)  # noqa: S606  # no shell is the point


def _fail(program: bytes, exc: OSError) -> NoReturn:
    try:
        os.write(2, program[:200] + os.fsencode(f": {exc.strerror}\n"))
    except OSError:
        pass
    missing = isinstance(exc, (FileNotFoundError, NotADirectoryError))
    os._exit(_MISSING if missing else _NOT_EXECUTABLE)


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
                    return _KILLED
                if not data:
                    pump.poller.unregister(0)
                    pump.drop()
                orders = _obey(orders + data, pump, terminal)
                if orders.startswith(b"K"):
                    pump.drop()
                    return _KILLED
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
