"""How a runner gets its request, becomes the command, and ends all that was started. Part of run.py: standard library only, up to Python 3.9."""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # the public one takes 20 ms more, for its enums
import ctypes
import os
import resource
import time

NOT_EXECUTABLE, MISSING, KILLED = 126, 127, 137
_SET_CHILD_SUBREAPER = 36  # Source: Linux, include/uapi/linux/prctl.h.
_VICTIM = "500"
"""Out of memory, the kernel shall take the command rather than what runs it. Source: proc(5), oom_score_adj."""


class Request:
    """Describes what is to be run, as `encode_command` writes it; its own input is still to be read."""

    def __init__(self, body: bytes, input_bytes: int) -> None:
        options, cwd, count, *rest = body.split(b"\0")
        self.cwd = cwd
        self.argv = tuple(rest[: int(count)])
        self.env = dict(field.split(b"=", 1) for field in rest[int(count) :])
        self.input_bytes = input_bytes
        said = dict(word.split("=", 1) for word in options.decode().split())
        self.is_bound = "bound" in said
        self.is_merged = "merged" in said
        self.terminal = said.get("terminal", "")
        """Its size: four digits of rows, four of columns; empty = it has none."""
        self.user = int(said["user"]) if "user" in said else None
        """None = ours, with our environment beside its own."""
        self.window = int(said.get("window", 0))
        """How many bytes of output may be ahead of their reader; 0 = any number."""
        self.keep = int(said["keep"]) if "keep" in said else None
        """How many bytes of each stream are passed on; None = all."""
        self.beat_s = float(said["beat_s"]) if "beat_s" in said else None
        self.limit_s = float(said["limit_s"]) if "limit_s" in said else None
        self.limits = {name: int(value) for name, value in said.items() if name.isupper()}
        """Names as of `resource.RLIMIT_`."""


def write(path: str, text: str) -> None:
    """Writes a file of the kernel's, as far as that lets us."""
    try:
        with open(path, "w") as file:  # noqa: PTH123  # pathlib would double the time of a start
            file.write(text)
    except OSError:
        pass


def read_request() -> Request:
    """Returns what is asked for; ends this process when nobody waits any more."""
    lengths = _read(24)
    return Request(_read(int(lengths[:12])), int(lengths[12:]))


def _read(length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        piece = os.read(0, length - len(data))
        if not piece:
            os._exit(0)  # nobody waits any more, and nothing was started
        data += piece
    return bytes(data)


def keep_input(request: Request) -> int:
    """Reads the command's input into an anonymous file: a command that does not read it blocks nobody."""
    length = request.input_bytes
    if not length:
        return os.open("/dev/null", os.O_RDONLY)
    fd = os.memfd_create("stdin")
    while length > 0:
        piece = _read(min(length, 1 << 20))
        length -= len(piece)
        while piece:
            piece = piece[os.write(fd, piece) :]
    os.lseek(fd, 0, os.SEEK_SET)
    if request.user is not None:
        os.fchown(fd, request.user, request.user)  # so that it can be opened by name
    return fd


def adopt_orphans() -> None:
    """Makes this process the parent of whatever the command leaves behind."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def wake_on(*numbers: int) -> int:
    """Returns what can be read when one of the signals has come: their numbers."""
    woken, waker = os.pipe()
    for fd in (woken, waker):
        os.set_blocking(fd, False)
    for number in numbers:
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    return woken


def limit(bounds: dict[str, int]) -> None:
    """Bounds each kind of resource, and allows no core files."""
    for name, bound in (*bounds.items(), ("CORE", 0)):
        kind = getattr(resource, "RLIMIT_" + name)
        hard = resource.getrlimit(kind)[1]
        value = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        resource.setrlimit(kind, (value, value))
    write("/proc/self/oom_score_adj", _VICTIM)


def execute(argv: tuple[bytes, ...], env: dict[bytes, bytes], cwd: bytes) -> None:
    """Becomes the command, with signals as it expects them."""
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
    os.umask(0o022)
    try:
        os.chdir(cwd)
    except OSError as exc:
        os.write(2, os.fsencode(f"{os.fsdecode(cwd)}: {exc.strerror}\n"))
        os._exit(NOT_EXECUTABLE)
    os.execvpe(argv[0], argv, env)  # noqa: S606  # no shell is the point


def say_failure(fd: int, program: bytes, exc: OSError) -> int:
    """Says why the command cannot be started; returns the exit code of a shell then."""
    try:
        os.write(fd, program[:200] + os.fsencode(f": {exc.strerror}\n"))
    except OSError:
        pass
    missing = isinstance(exc, (FileNotFoundError, NotADirectoryError))
    return MISSING if missing else NOT_EXECUTABLE


# Source: Linux, include/uapi/linux/prctl.h and capability.h.
_SET_NO_NEW_PRIVS, _CAPBSET_DROP = 38, 24
_MAX_CAPABILITIES = 64
_CAPABILITY_VERSION_3 = 0x20080522


def become(user: int) -> None:
    """Becomes another user than root, for good: no capability is left, none can be got, and sudo does nothing."""
    for number in (1, 2):
        os.fchown(number, user, user)  # so that it can be opened by name
    libc = ctypes.CDLL(None)
    for capability in range(_MAX_CAPABILITIES):
        libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0)
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    libc.capset(ctypes.byref(header), bytes(24))
    libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


_POLL_S = 0.002


def reap(main: int = 0) -> int | None:
    """Collects all that ended; returns the exit code of `main` if it is among them."""
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


def kill_tree() -> None:
    """Stops all that can fork, then kills it: against a fork bomb, killing alone is a race."""
    stopped: set[int] = set()
    while True:
        reap()
        found, is_whole = descendants()
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


def descendants() -> tuple[set[int], bool]:
    """Returns all below this process, zombies too, and whether the look was whole: one that vanished may have left a child.

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
