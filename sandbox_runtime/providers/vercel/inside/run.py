"""Runs one command in the machine as the agent's user and ends it whole: the service itself kills one process, not a tree.

Usage, as root: `python3 -I -S RUN`. Standard library only, and nothing newer than Python 3.9.

On stdin: two lengths of 12 digits each, the request as JSON, the command's own input, then single bytes: K means kill,
C that one piece of output was taken. Its end means nothing: the service ends it when it likes. SIGTERM means kill, too.
On stdout, lines: `!` when the request was read, `o` or `e` and a piece of output in base64, `.` when nothing was said
for a while, so that no connection looks dead, and last `x` and the exit code (128 + n after signal n), when nothing that
the command started is alive. It exits with that code.

Everything it starts stays below it, in its own session or orphaned, because it is their subreaper (prctl(2)).
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # the public one takes 20 ms more, for its enums
import base64
import ctypes
import json
import os
import resource
import select
import time

_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS, _PR_CAPBSET_DROP = 36, 38, 24
"""Source: Linux, include/uapi/linux/prctl.h."""
_MAX_CAPABILITY = 63
_CAPABILITY_VERSION_3 = 0x20080522
_NOT_EXECUTABLE, _MISSING, _KILLED = 126, 127, 137
_REQUEST_S = 60
_POLL_S = 0.002
_PIECE_BYTES = 48 * 1024
_VICTIM = "500"
"""Out of memory, the kernel shall take the command rather than this process. Source: proc(5), oom_score_adj."""


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
            self.frame(stream + base64.b64encode(data))
            self._left -= 1

    def frame(self, line: bytes) -> None:
        data = line + b"\n"
        while data:
            data = data[os.write(1, data) :]


def main() -> None:
    """Read the request, run it, end it."""
    with open("/proc/self/comm", "w") as file:  # pathlib would double the time of a start
        file.write("sandbox-run")
    signal.alarm(_REQUEST_S)  # nothing was started yet: whoever asked may be gone
    lengths = _read(24)
    request = json.loads(_read(int(lengths[:12])))
    stdin = _input(int(lengths[12:]))
    signal.alarm(0)
    woken = _signals()  # until here SIGTERM ends it: nothing was started
    os.fchown(stdin, request["uid"], request["uid"])
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    output = Output(request["window"], request["keep"])
    output.frame(b"!")
    pid, streams = _start(request, stdin)
    os.close(stdin)
    try:
        code = _watch(pid, streams, output, woken, request)
    except Killed:
        _kill_tree()
        code = _KILLED
    output.frame(b"x%d" % code)
    os._exit(code)


def _signals() -> int:
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    woken, waker = os.pipe()
    for fd in (woken, waker):
        os.set_blocking(fd, False)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    return woken


def _read(length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        piece = os.read(0, length - len(data))
        if not piece:
            os._exit(0)  # nobody waits any more, and nothing was started
        data += piece
    return bytes(data)


def _input(length: int) -> int:
    # In an anonymous file: a command that does not read its input blocks nobody.
    fd = os.memfd_create("stdin")
    while length > 0:
        piece = _read(min(length, 1 << 20))
        length -= len(piece)
        while piece:
            piece = piece[os.write(fd, piece) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _start(request: dict[str, object], stdin: int) -> tuple[int, dict[int, bytes]]:
    uid = int(request["uid"])  # type: ignore[call-overload]  # of our own host
    out, out_end = os.pipe()
    err, err_end = os.pipe()
    for end in (out_end, err_end):
        os.fchown(end, uid, uid)  # /dev/stdout is opened by name as that user
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            os.dup2(stdin, 0)
            os.dup2(out_end, 1)
            os.dup2(out_end if request["merge"] else err_end, 2)
            os.closerange(3, 256)
            _limit(request["limits"])  # type: ignore[arg-type]  # same
            _become(uid)
            _execute(request)
        except OSError as exc:
            os.write(2, os.fsencode(request["argv"][0])[:200] + os.fsencode(f": {exc.strerror}\n"))  # type: ignore[index]  # same
            missing = isinstance(exc, (FileNotFoundError, NotADirectoryError))
            os._exit(_MISSING if missing else _NOT_EXECUTABLE)
        finally:
            os._exit(_NOT_EXECUTABLE)
    for end in (out_end, err_end):
        os.close(end)
    return pid, {out: b"o", err: b"e"}


def _limit(limits: dict[str, int]) -> None:
    for name, bound in limits.items():
        kind = getattr(resource, "RLIMIT_" + name)
        hard = resource.getrlimit(kind)[1]
        limit = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        resource.setrlimit(kind, (limit, limit))
    with open("/proc/self/oom_score_adj", "w") as file:  # same
        file.write(_VICTIM)


def _become(uid: int) -> None:
    """The agent's user, for good: no capability is left, none can be got, and sudo does nothing."""
    libc = ctypes.CDLL(None)
    for number in range(_MAX_CAPABILITY + 1):
        libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    libc.capset(ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)()))
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def _execute(request: dict[str, object]) -> None:
    for number in (
        signal.SIGTERM,
        signal.SIGINT,
        signal.SIGHUP,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGCHLD,
        signal.SIGPIPE,
        signal.SIGXFSZ,
    ):
        signal.signal(number, signal.SIG_DFL)
    os.umask(0o022)
    cwd = str(request["cwd"])
    try:
        os.chdir(cwd)
    except OSError as exc:
        os.write(2, os.fsencode(f"{cwd}: {exc.strerror}\n"))
        os._exit(_NOT_EXECUTABLE)
    argv = [os.fsencode(argument) for argument in request["argv"]]  # type: ignore[attr-defined]  # same
    env = {os.fsencode(k): os.fsencode(v) for k, v in request["env"].items()}  # type: ignore[attr-defined]  # same
    os.execvpe(argv[0], argv, env)  # no shell is the point


def _watch(
    pid: int, streams: dict[int, bytes], output: Output, woken: int, request: dict[str, object]
) -> int:
    """Pass output on until the command and all that it started are dead; its exit code."""
    beat_s = float(request["beat_s"])  # type: ignore[arg-type]  # same
    limit_s = request["limit_s"]
    deadline = None if limit_s is None else time.monotonic() + float(limit_s)  # type: ignore[arg-type]  # same
    code: int | None = None
    control = [0]
    while code is None or streams:
        reading = [*control, woken, *(streams if output.is_open else ())]
        wait_s = beat_s if deadline is None else min(beat_s, max(0.0, deadline - time.monotonic()))
        ready = select.select(reading, (), (), wait_s)[0]
        if deadline is not None and time.monotonic() >= deadline:
            raise Killed
        if not ready:
            output.frame(b".")
        if woken in ready and signal.SIGTERM in os.read(woken, 4096):
            raise Killed
        if 0 in ready and not _control(output):
            control = []
        for fd in ready:
            if fd in streams:
                _pass(fd, streams, output)
        if code is None:
            code = _reap(pid)
            if code is not None:
                _kill_tree()
    return code


def _control(output: Output) -> bool:
    data = os.read(0, 4096)
    if b"K" in data:
        raise Killed
    output.taken(data.count(b"C"))
    return bool(data)


def _pass(fd: int, streams: dict[int, bytes], output: Output) -> None:
    data = os.read(fd, _PIECE_BYTES)
    if data:
        output.piece(streams[fd], data)
    else:
        os.close(fd)
        del streams[fd]


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
            except ProcessLookupError:
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
    for entry in os.listdir("/proc"):  # plain and quick
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:  # same
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
