"""How bubblewrap is told to isolate one command.

As an ordinary user one bubblewrap does it all. As root two: the outer one makes the mounts (only root may read, say, a
Python under /root) and, through setpriv, gives the command a host uid of its own; the inner one makes the namespaces as
that uid. A single bubblewrap started by root would leave the command as uid 0 of the host, whose number of processes the
kernel does not limit.

Source: bwrap(1) 0.8.0; setpriv(1); setrlimit(2), RLIMIT_NPROC "not enforced for … real user ID 0".
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from typing_extensions import override

from sandbox_runtime.command_sandbox import Command
from sandbox_runtime.host import HostView, ca_env, python_prefixes, search_path
from sandbox_runtime.providers.local.limits import limit_arguments, yielding
from sandbox_runtime.providers.local.place import Isolation, Place, argv_of
from sandbox_runtime.providers.local.processes import HostCommand, MemoryFile, StatusFile
from sandbox_runtime.providers.local.tree import MARK_NAME
from sandbox_runtime.sandbox_user import UID, USER, cache_env
from sandbox_runtime.types import OpenNetwork, SandboxPaths, endpoint_of

PASSWD = f"""\
root:x:0:0:root:/root:/usr/sbin/nologin
{USER}:x:{UID}:{UID}:{USER}:/home/{USER}:/bin/sh
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
"""
GROUP = f"root:x:0:\n{USER}:x:{UID}:\nnogroup:x:65534:\n"

_WORK, _HOME, _RUN, _ENVIRONMENT, _BROKER = (
    "/work",
    f"/home/{USER}",
    "/orion",
    "/env",
    "/broker",
)
_TMP = "/tmp"  # noqa: S108  # the sandbox's own
_CA_BUNDLE = Path("/etc/ssl/ca-bundle.pem")
_SYSTEM_DIRECTORIES = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
# Nothing with a secret: /etc/ssl/private stays out.
_ETC = (
    "alternatives",
    "ca-certificates",
    "hosts",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "nsswitch.conf",
    "pki/ca-trust/extracted",
    "pki/tls/certs",
    "ssl/certs",
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
        if isinstance(place.network, OpenNetwork):
            env |= self.host.env
        return env

    @override
    def command(self, place: Place, command: Command) -> HostCommand:
        def argv(memory: MemoryFile, status: StatusFile) -> list[str]:
            # Arguments travel in anonymous files: neither `ps` on the host nor /proc/1 inside shows the environment.
            def block(arguments: Iterable[str]) -> str:
                return str(
                    memory(
                        b"".join(a.encode("utf-8", "surrogateescape") + b"\0" for a in arguments)
                    )
                )

            bwrap = self.tools.bwrap
            namespaces = [
                *_namespaces(place),
                *("--json-status-fd", str(status()), "--chdir", _WORK, "--clearenv"),
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
                return yielding([bwrap, "--args", inner, *limited])
            uid = str(place.host_uid)
            outer = block([*_OUTER, *self._mounts(place), "--json-status-fd", str(status())])
            inner = block(["--bind", "/", "/", "--proc", "/proc", *_DEVICES, *namespaces])
            become = [self.tools.setpriv, "--reuid", uid, "--regid", uid, "--clear-groups"]
            return yielding([bwrap, "--args", outer, *become, bwrap, "--args", inner, *limited])

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
        *(
            "--unshare-user",
            "--unshare-pid",
            "--unshare-ipc",
            "--unshare-uts",
            "--unshare-cgroup-try",
        ),
        *network,
        *(
            "--uid",
            uid,
            "--gid",
            uid,
            "--disable-userns",
            "--cap-drop",
            "ALL",
            "--hostname",
            "sandbox",
        ),
        *("--die-with-parent", "--new-session"),
    ]


_SHARED_MEMORY_BYTES = 256 * 1024 * 1024
_DEVICES = [
    "--dev",
    "/dev",
    "--size",
    str(_SHARED_MEMORY_BYTES),
    "--tmpfs",
    "/dev/shm",  # noqa: S108 - inside the sandbox
    "--remount-ro",
    "/dev",
]
"""Bubblewrap's own /dev is memory of the host, half of it, that no limit of a process counts."""


class _Mounts:
    """Collects bind mounts, making each one's parent directories open to the sandbox user first."""

    def __init__(self) -> None:
        self.arguments: list[str] = []
        self._bound: set[Path] = set()
        self._made: set[Path] = {Path("/")}

    def bind(self, source: Path, target: Path | None = None, *, writable: bool = False) -> None:
        """Bind `source`, by default at its own path, where it may be missing on this host or visible already."""
        target = target or source
        if source == target and (self._is_bound(source) or not source.exists()):
            return
        self._make_parents(target)
        self.arguments += ["--bind" if writable else "--ro-bind", str(source), str(target)]
        if source == target:
            self._bound.add(target)

    def mirror(self, *paths: Path) -> None:
        """Show system directories as they are on the host: links or directories."""
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
