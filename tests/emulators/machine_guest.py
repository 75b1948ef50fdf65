"""PID 1 of an emulated machine: starts commands as asked, tells how they end. Standard library only.

Usage: `python3 -I -S -c SOURCE FD`. FD is a SOCK_SEQPACKET socket; its end is the machine's. One request is one message
`{"id": n}` with file descriptors: the body as JSON in a memory file, stdin, stdout, stderr. Answers: `{"id", "pid"}` or
`{"id", "errno"}`, later `{"id", "exit"}`. `{"id", "signal", "group"}` without descriptors signals it.

The same requests, always as root, are taken on SUDO_SOCKET from the users who may: that is what `sudo` inside asks.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import struct
import sys

SUDO_SOCKET = "/run/machine.sudo"
_MAX_MESSAGE = 65536
_MAX_FDS = 4
_DEFAULT_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD)
_PR_CAPBSET_DROP, _LAST_CAPABILITY = 24, 40
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, _CAPABILITY_VERSION_3 = 47, 4, 0x20080522
_MNT_DETACH = 2
_PRIVATE = b"/mnt"
_KEPT_CAPABILITIES = frozenset({0, 1, 3, 4, 5, 6, 7, 8, 10, 18})
"""CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, SETPCAP, NET_BIND_SERVICE, SYS_CHROOT."""


class Guest:
    """All that runs, by pid and by who asked for it."""

    def __init__(self, host: socket.socket, sudoers: set[int]) -> None:
        self._sudoers = sudoers
        self._pids: dict[int, tuple[socket.socket, int]] = {}
        self._poller = select.poll()
        self._peers: dict[int, socket.socket] = {}
        self._host = host
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(SUDO_SOCKET)  # noqa: PTH108  # pathlib would double the time of a start
        self._listener.bind(SUDO_SOCKET)
        os.chmod(SUDO_SOCKET, 0o666)  # noqa: PTH101, S103  # same; who asks is checked
        self._listener.listen()
        self._woken, waker = os.pipe()
        for fd in (self._woken, waker):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for fd in (host.fileno(), self._listener.fileno(), self._woken):
            self._poller.register(fd, select.POLLIN)

    def run(self) -> None:
        """Until the host goes away. Its first word is that all is set up."""
        self._host.send(b"ready")
        while True:
            for fd, _ in self._poller.poll():
                if fd == self._woken:
                    with contextlib.suppress(BlockingIOError):
                        os.read(fd, 4096)
                elif fd == self._host.fileno():
                    if not self._take(self._host):
                        os._exit(0)
                elif fd == self._listener.fileno():
                    self._accept()
                elif not self._take(self._peers[fd], as_root=True):
                    self._poller.unregister(fd)
                    self._peers.pop(fd).close()
            self._reap()

    def _accept(self) -> None:
        peer, _ = self._listener.accept()
        found = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        if struct.unpack("3i", found)[1] not in self._sudoers:
            peer.close()
            return
        self._peers[peer.fileno()] = peer
        self._poller.register(peer.fileno(), select.POLLIN)

    def _take(self, peer: socket.socket, *, as_root: bool = False) -> bool:
        try:
            data, fds, _, _ = socket.recv_fds(peer, _MAX_MESSAGE, _MAX_FDS)
        except OSError:
            return False
        if not data:
            return False
        message = json.loads(data)
        if "signal" in message:
            self._signal(message)
            return True
        with os.fdopen(fds[0], "rb") as file:
            file.seek(0)
            body = json.load(file)
        if as_root:
            body |= {"uid": 0, "gid": 0}
        pid = os.fork()
        if pid == 0:
            _become(body, fds[1:])
        for fd in fds[1:]:
            os.close(fd)
        self._pids[pid] = (peer, message["id"])
        self._tell(peer, {"id": message["id"], "pid": pid})
        return True

    def _signal(self, message: dict[str, int]) -> None:
        for pid, (_, number) in self._pids.items():
            if number == message["id"]:
                with contextlib.suppress(OSError):
                    if message.get("group"):
                        os.killpg(pid, message["signal"])
                    else:
                        os.kill(pid, message["signal"])

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid in self._pids:
                    peer, number = self._pids.pop(pid)
                    code = os.waitstatus_to_exitcode(status)
                    self._tell(peer, {"id": number, "exit": code if code >= 0 else 128 - code})

    def _tell(self, peer: socket.socket, message: dict[str, int]) -> None:
        with contextlib.suppress(OSError):
            peer.send(json.dumps(message).encode())


def _become(body: dict[str, object], fds: list[int]) -> None:
    """In the new process: never returns. A command that cannot start ends with 127 or 126, as in a shell."""
    program = "?"
    try:
        argv = [str(argument) for argument in body["argv"]]  # type: ignore[attr-defined]  # of our own host
        program = argv[0]
        os.setsid()
        for target, fd in enumerate(fds):
            os.dup2(fd, target)
        os.closerange(3, 1024)
        signal.set_wakeup_fd(-1)
        for number in _DEFAULT_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        os.setgroups([])
        os.setgid(int(body["gid"]))  # type: ignore[call-overload]  # same
        os.setuid(int(body["uid"]))  # type: ignore[call-overload]  # same
        os.umask(0o022)
        os.chdir(str(body["cwd"]))
        os.execvpe(program, argv, {str(k): str(v) for k, v in body["env"].items()})  # type: ignore[attr-defined]  # noqa: S606  # same
    except OSError as exc:
        with contextlib.suppress(OSError):
            os.write(2, f"{program[:200]}: {exc.strerror}\n".encode())
        os._exit(127 if isinstance(exc, FileNotFoundError) else 126)


def _forbid_namespaces() -> None:
    """No user namespaces inside, as in a kernel without them; the mounted /proc shows its settings read-only."""
    libc = ctypes.CDLL(None)
    libc.mount(b"proc", _PRIVATE, b"proc", 0, None)
    path = _PRIVATE + b"/sys/user/max_user_namespaces"
    with contextlib.suppress(OSError), open(path, "w") as file:  # noqa: PTH123  # pathlib takes its time
        file.write("0")
    libc.umount2(_PRIVATE, _MNT_DETACH)


def _drop_capabilities() -> None:
    """Of root inside too: no mounting, no tracing. Source: capabilities(7), prctl(2), PR_CAPBSET_DROP."""
    libc = ctypes.CDLL(None)
    for number in range(_LAST_CAPABILITY + 1):
        if number not in _KEPT_CAPABILITIES:
            libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)
    libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    kept = sum(1 << number for number in _KEPT_CAPABILITIES)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)(kept, kept, 0, 0, 0, 0)  # effective, permitted, none to inherit
    libc.capset(ctypes.byref(header), ctypes.byref(sets))


def main() -> None:
    """Usage: see above; then the numbers of the users who may use sudo."""
    _forbid_namespaces()
    _drop_capabilities()
    with open("/proc/self/comm", "w") as file:  # noqa: PTH123  # same
        file.write("init")
    host = socket.socket(fileno=int(sys.argv[1]))
    host.set_inheritable(False)
    Guest(host, {int(uid) for uid in sys.argv[2:]}).run()


if __name__ == "__main__":
    main()
