"""How commands of this machine's sandboxes are kept apart: where a sandbox lies, its limits, bubblewrap, and the choice of no isolation.

As an ordinary user one bubblewrap does it all. As root two: the outer one makes the mounts (only root may read, say, a
Python under /root) and, through setpriv, gives the command a host uid of its own; the inner one makes the namespaces as
that uid. A single bubblewrap started by root would leave the command as uid 0 of the host, whose number of processes the
kernel does not limit.

Source: bwrap(1) 0.8.0; setpriv(1); setrlimit(2), RLIMIT_NPROC "not enforced for … real user ID 0".
"""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from typing_extensions import override

from sandbox_runtime.command import MARK_NAME, Command
from sandbox_runtime.host import (
    UID,
    USER,
    HostView,
    ca_env,
    cache_env,
    egress_env,
    python_prefixes,
    search_path,
)
from sandbox_runtime.providers.local.processes import (
    NICENESS,
    HostCommand,
    MemoryFile,
    StatusFile,
    mark_of,
)
from sandbox_runtime.types import (
    BrokeredNetwork,
    Network,
    OpenNetwork,
    SandboxLimits,
    SandboxPaths,
    endpoint_of,
)

# Changing directory is the command's own first step, so that a missing one is its failure and not the sandbox's.
_IN_DIRECTORY = 'cd -- "$0" || exit 126; exec "$@"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One sandbox on the host."""

    directory: Path
    """Holds work, home, run and tmp."""
    environment_id: str | None
    environment: Path
    environment_writable: bool
    network: Network
    limits: SandboxLimits
    host_uid: int | None
    """Whose processes and files they are on the host, when the service is root; None = the service's own user."""
    mounted: Path | None = None
    """A directory of the host's that is the work directory; it is neither filled, saved nor removed."""

    @property
    def work(self) -> Path:
        return self.mounted or self.directory / "work"

    @property
    def home(self) -> Path:
        return self.directory / "home"

    @property
    def run(self) -> Path:
        return self.directory / "run"

    @property
    def tmp(self) -> Path:
        """Returns what the sandbox's commands share as their /tmp; never saved."""
        return self.directory / "tmp"


class Isolation(Protocol):
    """Says how commands of this machine's sandboxes are kept apart."""

    def paths(self, place: Place) -> SandboxPaths:
        """Returns paths as processes inside see them."""
        ...

    def command(self, place: Place, command: Command) -> HostCommand: ...

    def base_env(self, place: Place) -> Mapping[str, str]:
        """Returns what every command finds in its environment, before the caller's own."""
        ...


def argv_of(command: Command, work: str) -> list[str]:
    """Returns the command in its directory, from `work` on, as seen inside."""
    if command.cwd is None:
        return list(command.argv)
    return ["/bin/sh", "-c", _IN_DIRECTORY, command.directory(work), *command.argv]


def limit_arguments(prlimit: str, limits: SandboxLimits, *, count_processes: bool) -> list[str]:
    """Returns what to put before a command. prlimit itself exits with 127 or 126 when it cannot run it, as a shell would.

    Source: prlimit(1) and include/exitcodes.h of util-linux 2.38; setrlimit(2).
    """
    bounds = {
        # Address space bounds shared memory, too, but runtimes of today may reserve far more of it than they use.
        "as": limits.memory_bytes + limits.reserved_bytes,
        "data": limits.memory_bytes,
        "fsize": limits.max_file_bytes,
        "nofile": limits.max_open_files,
        "core": 0,
    }
    if count_processes:
        bounds["nproc"] = limits.max_processes
    return [prlimit, *(f"--{name}={bound}:{bound}" for name, bound in bounds.items()), "--"]


def at_low_priority(argv: Sequence[str]) -> list[str]:
    """Returns the command, giving way to the service and to everything else of the machine."""
    return ["nice", "-n", str(NICENESS), *argv]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainIsolation(Isolation):
    """`isolation="none"`: commands are plain processes of the service's user, on the host's file system and network.

    For trusted code, by explicit choice only. What holds: resource limits (except the number of processes, which the kernel
    counts per user), a scrubbed environment, and that everything a command starts dies with it, unless it empties its own
    environment. What does not: nothing stops a command from reading the host's files or using its network, so a closed or
    brokered network is a request and not a wall.
    """

    prlimit: str
    setpriv: str
    host: HostView
    ca_bundle: Path | None

    @override
    def paths(self, place: Place) -> SandboxPaths:
        broker = place.directory / "broker"
        return SandboxPaths(
            work=str(place.work),
            home=str(place.home),
            run=str(place.run),
            environment=str(place.environment),
            broker=endpoint_of(place.network) or str(broker),
        )

    @override
    def base_env(self, place: Place) -> Mapping[str, str]:
        env = {"HOME": str(place.home), "PATH": search_path(), "TMPDIR": str(place.tmp)}
        env |= cache_env(str(place.tmp) if place.environment_writable else None)
        if self.ca_bundle is not None:
            env |= ca_env(self.ca_bundle)
        if isinstance(place.network, OpenNetwork):
            env |= self.host.env
        return env

    @override
    def command(self, place: Place, command: Command) -> HostCommand:
        mark = f"{mark_of(place.directory.name)}-{secrets.token_hex(16)}"
        limits = limit_arguments(self.prlimit, place.limits, count_processes=False)
        # The whole tree dies with its exec; this covers the command itself when the service is killed.
        inside = argv_of(command, str(place.work))
        argv = at_low_priority([self.setpriv, "--pdeathsig", "KILL", *limits, *inside])
        name, _, value = mark.partition("=")
        return HostCommand(
            argv=lambda _memory, _status: argv,
            env={**command.env, name: value},
            cwd=str(place.work),
            namespaces=0,
            mark=mark,
        )


PASSWD = f"""\
root:x:0:0:root:/root:/usr/sbin/nologin
{USER}:x:{UID}:{UID}:{USER}:/home/{USER}:/bin/sh
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
"""
GROUP = f"root:x:0:\n{USER}:x:{UID}:\nnogroup:x:65534:\n"

_WORK, _HOME, _RUN, _ENVIRONMENT, _BROKER = "/work", f"/home/{USER}", "/orion", "/env", "/broker"
_TMP = "/tmp"  # noqa: S108  # the sandbox's own
_CA_BUNDLE = Path("/etc/ssl/ca-bundle.pem")
_SYSTEM_DIRECTORIES = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
# Nothing with a secret: /etc/ssl/private stays out.
_ETC = (
    *("alternatives", "ca-certificates", "hosts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d"),
    *("localtime", "nsswitch.conf", "pki/ca-trust/extracted", "pki/tls/certs", "ssl/certs"),
    "ssl/openssl.cnf",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """Absolute paths of the programs used."""

    bwrap: str
    setpriv: str
    prlimit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BubblewrapIsolation(Isolation):
    """`isolation="bubblewrap"`."""

    tools: Tools
    system: Path
    """Holds the made-up passwd and group files."""
    host: HostView
    ca_bundle: Path | None
    filter: bytes
    """Of system calls, as `seccomp.filter_program` gives it."""

    @override
    def paths(self, place: Place) -> SandboxPaths:
        name = Path(endpoint_of(place.network)).name or "broker.sock"
        return SandboxPaths(
            work=_WORK,
            home=_HOME,
            run=_RUN,
            environment=_ENVIRONMENT,
            broker=f"{_BROKER}/{name}",
        )

    @override
    def base_env(self, place: Place) -> Mapping[str, str]:
        env = {"HOME": _HOME, "PATH": search_path(), "USER": USER, "LOGNAME": USER}
        env |= cache_env(_TMP if place.environment_writable else None)
        if self.ca_bundle is not None:
            env |= ca_env(_CA_BUNDLE)
        if isinstance(place.network, BrokeredNetwork):
            env |= egress_env()
        if isinstance(place.network, OpenNetwork):
            env |= self.host.env
        return env

    @override
    def command(self, place: Place, command: Command) -> HostCommand:
        def argv(memory: MemoryFile, status: StatusFile) -> list[str]:
            # Arguments travel in anonymous files: neither `ps` on the host nor /proc/1 inside shows the environment.
            def block(arguments: Iterable[str]) -> str:
                text = "".join(f"{argument}\0" for argument in arguments)
                return str(memory(text.encode("utf-8", "surrogateescape")))

            bwrap = self.tools.bwrap
            namespaces = [
                *_namespaces(place),
                *("--json-status-fd", str(status()), "--chdir", _WORK, "--clearenv"),
                *("--seccomp", str(memory(self.filter))),
                *(
                    text
                    for name, value in command.env.items()
                    for text in ("--setenv", name, value)
                ),
            ]
            limited = [
                *limit_arguments(self.tools.prlimit, place.limits, count_processes=True),
                *argv_of(command, _WORK),
            ]
            if place.host_uid is None:
                inner = block([*self._mounts(place), *namespaces])
                return at_low_priority([bwrap, "--args", inner, *limited])
            uid = str(place.host_uid)
            outer = block([*_OUTER, *self._mounts(place), "--json-status-fd", str(status())])
            inner = block(["--bind", "/", "/", "--proc", "/proc", *_DEVICES, *namespaces])
            become = [self.tools.setpriv, "--reuid", uid, "--regid", uid, "--clear-groups"]
            return at_low_priority(
                [bwrap, "--args", outer, *become, bwrap, "--args", inner, *limited]
            )

        return HostCommand(
            argv=argv,
            # Nothing else: bubblewrap is PID 1 inside, and everyone there can read what it was started with.
            env={MARK_NAME: place.directory.name},
            cwd="/",
            namespaces=1 if place.host_uid is None else 2,
            output_uid=place.host_uid,
        )

    def _mounts(self, place: Place) -> list[str]:
        mounts = _Mounts()
        mounts.bind(Path("/usr"))
        mounts.mirror(*(Path("/", name) for name in _SYSTEM_DIRECTORIES))
        for path in (Path("/etc", name) for name in _ETC):
            mounts.bind(path)
        for name in ("passwd", "group"):
            mounts.bind(self.system / name, Path("/etc", name))
        for path in python_prefixes():
            mounts.bind(path)
        if self.ca_bundle is not None:
            mounts.bind(self.ca_bundle, _CA_BUNDLE)
        if isinstance(place.network, OpenNetwork):
            # Those below /tmp or another directory of the sandbox are hidden by it: a mount point made in a place that
            # commands can write to could be led astray by a planted link.
            for path in (Path("/etc/resolv.conf"), *self.host.files):
                mounts.bind(path)
        if endpoint := endpoint_of(place.network):
            # The directory, not the socket: a broker that restarts makes a new socket in it.
            mounts.bind(Path(endpoint).parent, Path(_BROKER))
        mounts.bind(place.environment, Path(_ENVIRONMENT), writable=place.environment_writable)
        for source, target in (
            (place.work, _WORK),
            (place.home, _HOME),
            (place.run, _RUN),
            (place.tmp, _TMP),
        ):
            mounts.bind(source, Path(target), writable=True)
        # An inner bubblewrap may mount its /proc only where it sees a whole one, and bubblewrap's own has covers.
        proc = ["--proc", "/proc"] if place.host_uid is None else ["--bind", "/proc", "/proc"]
        return [*mounts.arguments, *proc, *_DEVICES, "--remount-ro", "/"]


_OUTER = (
    *("--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"),
    *("--cap-add", "CAP_SETPCAP"),
    # A PID namespace here too. The signal that a dying parent leaves its child is subject to the permission to kill, which
    # this bubblewrap, without capabilities, has not over the inner one's user: without this, all would outlive the service.
    *("--unshare-pid", "--die-with-parent", "--new-session", "--clearenv"),
)


def _namespaces(place: Place) -> list[str]:
    uid = str(UID)
    network = [] if isinstance(place.network, OpenNetwork) else ["--unshare-net"]
    return [
        *("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts"),
        *("--unshare-cgroup-try", *network, "--uid", uid, "--gid", uid, "--disable-userns"),
        *("--cap-drop", "ALL", "--hostname", "sandbox", "--die-with-parent", "--new-session"),
    ]


_SHARED_MEMORY_BYTES = 256 * 1024 * 1024
_DEVICES = [
    *("--dev", "/dev", "--size", str(_SHARED_MEMORY_BYTES)),
    *("--tmpfs", "/dev/shm", "--remount-ro", "/dev"),  # noqa: S108 - inside the sandbox
]
"""Bubblewrap's own /dev is memory of the host, half of it, that no limit of a process counts."""


class _Mounts:
    """Collects bind mounts, making each one's parent directories open to the sandbox user first."""

    def __init__(self) -> None:
        self.arguments: list[str] = []
        self._bound: set[Path] = set()
        self._made: set[Path] = {Path("/")}

    def bind(self, source: Path, target: Path | None = None, *, writable: bool = False) -> None:
        """Binds `source`, by default at its own path, where it may be missing on this host or visible already."""
        target = target or source
        if source == target and (self._is_bound(source) or not source.exists()):
            return
        self._make_parents(target)
        self.arguments += ["--bind" if writable else "--ro-bind", str(source), str(target)]
        if source == target:
            self._bound.add(target)

    def mirror(self, *paths: Path) -> None:
        """Shows system directories as they are on the host: links or directories."""
        for path in paths:
            if path.is_symlink():
                self.arguments += ["--symlink", str(path.readlink()), str(path)]
                self._made.add(path)
            else:
                self.bind(path)

    def _make_parents(self, target: Path) -> None:
        # Without --perms, bubblewrap makes the parents of a bind with mode 0700 for the user it runs as.
        for parent in reversed(target.parents):
            if parent not in self._made and not self._is_bound(parent):
                self.arguments += ["--perms", "0755", "--dir", str(parent)]
                self._made.add(parent)

    def _is_bound(self, path: Path) -> bool:
        return any(path.is_relative_to(bound) for bound in self._bound)
