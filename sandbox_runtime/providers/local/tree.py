"""Finding and killing what a command started: by its PID namespace, or by a mark in the environment."""

import json
import os
import signal
from contextlib import suppress
from pathlib import Path

MARK_NAME = "SANDBOX_RUNTIME_MARK"
"""Variable in the environment of what is started for a sandbox; its value begins with the sandbox's id."""


def mark_of(sandbox_id: str) -> str:
    """What the environments of a sandbox's processes hold."""
    return f"{MARK_NAME}={sandbox_id}"


class NamespaceInit:
    """The init process of the outermost bubblewrap, as it reports. Killing it kills everything in its namespace.

    Source: bwrap(1) 0.8.0, --json-status-fd: first `{"child-pid": …, "pid-namespace": …}`, at the end `{"exit-code": n}`,
    which is written only if the command was started. Of nested ones the outer begins first and ends last.
    """

    def __init__(self, levels: int) -> None:
        self._levels = levels
        self._exit_codes: list[int] = []
        self.seen = False
        self.pidfd: int | None = None
        """Readable when the namespace is dead. Whoever watches it closes it and sets None."""
        self._unread = b""

    def feed(self, data: bytes) -> None:
        """Take in status output."""
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            status = json.loads(line)
            if "exit-code" in status:
                self._exit_codes.append(int(status["exit-code"]))
            if "child-pid" in status and not self.seen:
                self.seen = True
                self.pidfd = _open_init(int(status["child-pid"]), int(status["pid-namespace"]))

    @property
    def exit_code(self) -> int | None:
        """The command's; None as long as one of the bubblewraps has not told that it started what it should."""
        return self._exit_codes[0] if len(self._exit_codes) == self._levels else None

    def kill(self) -> None:
        if self.pidfd is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)


def _open_init(pid: int, namespace: int) -> int | None:
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    # The pid may be of someone else by now: ours is in the namespace that bubblewrap named.
    try:
        is_ours = Path(f"/proc/{pid}/ns/pid").stat().st_ino == namespace
    except PermissionError:
        is_ours = True
    except (FileNotFoundError, ProcessLookupError):
        is_ours = False
    if is_ours:
        return fd
    os.close(fd)
    return None


def kill_marked(mark: str) -> int:
    """Kill every process with the string in its environment; how many got the signal.

    A process that has emptied its environment is not found: a namespace is the only complete answer.
    """
    needle = mark.encode()
    killed = 0
    for entry in os.listdir("/proc"):  # noqa: PTH208  # a plain listing, many times per second
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:  # noqa: PTH123  # same
                is_marked = needle in file.read()
        except OSError:
            continue
        if is_marked:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(int(entry), signal.SIGKILL)
                killed += 1
    return killed
