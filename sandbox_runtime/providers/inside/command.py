"""How a runner gets its request and becomes the command. Part of each run.py: standard library only, up to Python 3.9."""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # the public one takes 20 ms more, for its enums
import ctypes
import os
import resource

TYPE_CHECKING = False  # typing itself would double the time of a start
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import NoReturn

NOT_EXECUTABLE, MISSING, KILLED = 126, 127, 137
_SET_CHILD_SUBREAPER = 36  # Source: Linux, include/uapi/linux/prctl.h.
_VICTIM = "500"
"""Out of memory, the kernel shall take the command rather than what runs it. Source: proc(5), oom_score_adj."""


def write(path: str, text: str) -> None:
    """As far as the kernel lets us."""
    try:
        with open(path, "w") as file:  # noqa: PTH123  # pathlib would double the time of a start
            file.write(text)
    except OSError:
        pass


def read_request() -> tuple[bytes, int]:
    """What is asked for, and how many bytes of the command's own input follow."""
    lengths = _read(24)
    return _read(int(lengths[:12])), int(lengths[12:])


def _read(length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        piece = os.read(0, length - len(data))
        if not piece:
            os._exit(0)  # nobody waits any more, and nothing was started
        data += piece
    return bytes(data)


def split_command(
    cwd: bytes, count: bytes, *rest: bytes
) -> tuple[tuple[bytes, ...], dict[bytes, bytes], bytes]:
    """Arguments, environment and directory, of the last fields of a request."""
    env = dict(field.split(b"=", 1) for field in rest[int(count) :])
    return rest[: int(count)], env, cwd


def keep_input(length: int) -> int:
    """In an anonymous file: a command that does not read its input blocks nobody."""
    fd = os.memfd_create("stdin")
    while length > 0:
        piece = _read(min(length, 1 << 20))
        length -= len(piece)
        while piece:
            piece = piece[os.write(fd, piece) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def adopt_orphans() -> None:
    """Whatever the command starts stays below this process."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def wake_on(*numbers: int) -> int:
    """What can be read when one of the signals has come."""
    woken, waker = os.pipe()
    for fd in (woken, waker):
        os.set_blocking(fd, False)
    for number in numbers:
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    return woken


def limit(bounds: Iterable[tuple[int, int]]) -> None:
    """Each kind of resource to its bound, and no core files."""
    for kind, bound in (*bounds, (resource.RLIMIT_CORE, 0)):
        hard = resource.getrlimit(kind)[1]
        value = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        resource.setrlimit(kind, (value, value))
    write("/proc/self/oom_score_adj", _VICTIM)


def execute(argv: tuple[bytes, ...], env: dict[bytes, bytes], cwd: bytes) -> None:
    """Be the command, with signals as it expects them."""
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
        os._exit(NOT_EXECUTABLE)
    os.execvpe(argv[0], argv, env)  # noqa: S606  # no shell is the point


def fail(program: bytes, exc: OSError) -> NoReturn:
    """The command cannot be started: say so and exit as a shell would."""
    try:
        os.write(2, program[:200] + os.fsencode(f": {exc.strerror}\n"))
    except OSError:
        pass
    missing = isinstance(exc, (FileNotFoundError, NotADirectoryError))
    os._exit(MISSING if missing else NOT_EXECUTABLE)
