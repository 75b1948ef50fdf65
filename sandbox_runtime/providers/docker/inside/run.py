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
import ctypes
import os
import resource
import select
import time

TYPE_CHECKING = False  # typing itself would double the time of a start
if TYPE_CHECKING:
    from typing import NoReturn

_ACK = b"\x06"
_PR_SET_CHILD_SUBREAPER = 36  # Source: Linux, include/uapi/linux/prctl.h.
_NOT_EXECUTABLE, _MISSING, _KILLED = 126, 127, 137
_POLL_S = 0.002
_VICTIM = "500"
"""Out of memory, the kernel shall take the command rather than this process or PID 1. Source: proc(5), oom_score_adj."""
_FIXED_FIELDS = 6


def main() -> None:
    """Read the request, run it, end it."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # `pkill python` in the command must not reach it
    _write("/proc/self/comm", "sandbox-run")
    lengths = _read(24)
    fields = _read(int(lengths[:12])).split(b"\0")
    stdin = _input(int(lengths[12:]))
    is_bound, is_merged, fsize, nofile, cwd, count = fields[:_FIXED_FIELDS]
    argv = fields[_FIXED_FIELDS : _FIXED_FIELDS + int(count)]
    added = dict(field.split(b"=", 1) for field in fields[_FIXED_FIELDS + int(count) :])
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    woken, waker = os.pipe()
    for fd in (woken, waker):
        os.set_blocking(fd, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    os.write(1, _ACK)
    try:
        pid = os.fork()
    except OSError as exc:
        _fail(argv[0], exc)
    if pid == 0:
        try:
            os.setsid()
            os.dup2(stdin, 0)
            if is_merged == b"1":
                os.dup2(1, 2)
            _limit(int(fsize), int(nofile))
            _execute(argv, {**os.environb, **added}, cwd)
        except OSError as exc:
            _fail(argv[0], exc)
    os.close(stdin)
    code = _watch(pid, woken, is_bound=is_bound == b"1")
    _kill_tree()
    os._exit(code)


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


def _limit(fsize: int, nofile: int) -> None:
    for kind, bound in (
        (resource.RLIMIT_FSIZE, fsize),
        (resource.RLIMIT_NOFILE, nofile),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        limit = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        resource.setrlimit(kind, (limit, limit))
    _write("/proc/self/oom_score_adj", _VICTIM)


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


def _watch(pid: int, woken: int, *, is_bound: bool) -> int:
    """Wait for the command's end or the order to kill it; its exit code."""
    poller = select.poll()
    poller.register(0, select.POLLIN)
    poller.register(woken, select.POLLIN)
    while True:
        for fd, _ in poller.poll():
            data = os.read(fd, 4096)
            if fd == 0 and (data or is_bound):
                return _KILLED
            if fd == 0:
                poller.unregister(0)
        code = _reap(pid)
        if code is not None:
            return code


def _reap(main: int = 0) -> int | None:
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


def _kill_tree() -> None:
    """Stop all that can fork, then kill: against a fork bomb, killing alone is a race."""
    stopped: set[int] = set()
    while True:
        _reap()
        found, is_whole = _descendants()
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


def _descendants() -> tuple[set[int], bool]:
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


if __name__ == "__main__":
    main()
