"""Disks of emulated machines: made from an image, copied, removed."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sandbox_runtime.host import python_prefixes
from tests.emulators.machine_network import Address, inside_addresses

COPY_S = 60.0
SUDO_DIRECTORY = "/opt/machine/bin"
FIRST_HOST_UID = 2_000_000
"""User n inside, but root, is this + n outside."""
_SUDO = (Path(__file__).parent / "machine_sudo.py").read_text("utf-8")
_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    name: str
    uid: int
    home: str


ROOT = User(name="root", uid=0, home="/root")
UBUNTU = User(name="ubuntu", uid=1000, home="/vercel")


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineImage:
    """What a new disk holds."""

    users: tuple[User, ...] = (UBUNTU,)
    """Beside root. Their homes are made."""
    sudoers: tuple[str, ...] = ("ubuntu",)
    directories: tuple[str, ...] = ()
    """Further ones, of the first user."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Of every command that its user starts: what the cloud puts there."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Texts by absolute path, of root."""
    binds: tuple[Path, ...] = ()
    """Files and directories of this host that are there too, read-only."""


def install(image: MachineImage, root: Path, internet: Sequence[Address]) -> None:
    """Make a new disk."""
    root.mkdir(parents=True)
    root.chmod(0o755)
    for name in ("etc/ssl", "home", "mnt", "opt", "root", "run", "srv", "usr", "var/tmp", f".{SUDO_DIRECTORY}"):  # fmt: skip
        (root / name).mkdir(parents=True)
    for name in ("tmp", "var/tmp"):
        (root / name).mkdir(exist_ok=True)
        (root / name).chmod(0o1777)
    (root / "root").chmod(0o711)  # the Python in use may be below it
    for path in (*python_prefixes(), *image.binds):
        point = root / str(path).lstrip("/")
        point.parent.mkdir(parents=True, exist_ok=True)
        point.mkdir(exist_ok=True) if path.is_dir() else point.touch()
    for name in _LINKS:
        if Path("/", name).is_symlink():
            (root / name).symlink_to(Path("/", name).readlink())
    users = (ROOT, *image.users)
    passwd = "".join(f"{u.name}:x:{u.uid}:{u.uid}::{u.home}:/bin/sh\n" for u in users)
    (root / "etc/passwd").write_text(passwd + "nobody:x:65534:65534::/nonexistent:/bin/false\n")
    (root / "etc/group").write_text("".join(f"{u.name}:x:{u.uid}:\n" for u in users))
    (root / "etc/shadow").write_text("root:*:1::::::\n")
    (root / "etc/shadow").chmod(0o600)
    names = inside_addresses(internet)
    hosts = "".join(f"{address} {name}\n" for name, address in names.items() if name != address)
    (root / "etc/hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
    for name, text in image.files.items():
        (root / name.lstrip("/")).write_text(text)
    sudo = root / f".{SUDO_DIRECTORY}/sudo"
    sudo.write_text(_SUDO)
    sudo.chmod(0o755)
    homes = [(user.home, user) for user in image.users]
    for name, user in (*homes, *((name, image.users[0]) for name in image.directories)):
        made = root / name.lstrip("/")
        made.mkdir(parents=True, exist_ok=True)
        os.chown(made, FIRST_HOST_UID + user.uid, FIRST_HOST_UID + user.uid)


def disks_directory() -> Path:
    """Where disks are kept: in memory where there is room, since a copy is thousands of files. Machines have a /tmp of their own."""
    memory, room_bytes = Path("/dev/shm"), 4 * 2**30  # noqa: S108 - Linux's file system in memory
    if os.access(memory, os.W_OK):
        found = os.statvfs(memory)
        if found.f_bavail * found.f_frsize >= room_bytes and not found.f_flag & os.ST_NOEXEC:
            return memory
    return Path("/var/tmp")  # noqa: S108 - a directory of a random name is made in it


async def copy(source: Path, target: Path) -> None:
    """A disk, to a directory that does not exist yet."""
    await call("cp", "-a", "--reflink=auto", str(source), str(target))


async def discard(directory: Path) -> None:
    """Remove a disk, whatever is in it."""
    await call("rm", "-rf", "--", str(directory))


async def call(*argv: str) -> None:
    """A program of this host to its end. Raises: CalledProcessError."""

    def wait() -> None:
        subprocess.run(argv, check=True, timeout=COPY_S, stdout=sys.stderr)

    await asyncio.to_thread(wait)
