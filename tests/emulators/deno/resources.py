"""What there is at the emulated Deno, and what follows from it alone.

Sources: as in organisation.py.
"""

import asyncio
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from tests.emulators.machine import Machine
from tests.emulators.machine_disk import SUDO_DIRECTORY, MachineImage, User, install
from tests.emulators.machine_network import OPEN, Address, Headers, Policy, Rewrite

REGIONS = ("ams", "ord")
MAX_RUNNING = 5
MAX_LIFETIME_S = 30 * 60
MIN_VOLUME, MAX_VOLUME = 300_000_000, 20 * 1024**3
BUILTIN = "builtin:debian-13"
DETACH_S = 0.05
"""How long a volume's snapshot fails after its sandbox ended."""
SLUG = re.compile(r"[a-z0-9-]{1,32}")
_UNITS = {"GB": 10**9, "MB": 10**6, "kB": 10**3, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10}

APP = User(name="app", uid=1, home="/home/app")
IMAGE = MachineImage(users=(APP,), sudoers=("app",))

_INSTALLER = """#!/bin/sh
# Nothing can be downloaded here: what is asked for counts as there when this host has it, under /usr.
case "$1" in
    update | install) exit 0 ;;
    *) echo "E: Invalid operation $1" >&2; exit 100 ;;
esac
"""


class Refused(Exception):  # noqa: N818  # it is an answer
    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


@dataclass(slots=True, kw_only=True)
class Disk:
    """A volume or a snapshot."""

    id: str
    slug: str
    region: str
    directory: Path
    capacity: int = 0
    is_bootable: bool = False
    source: "Disk | None" = None
    volume: str = ""
    """Of a snapshot: the id of the volume that it was made from."""
    own_bytes: int = 0
    """When it was made."""
    detached_at: float = 0.0


@dataclass(slots=True, kw_only=True)
class Box:
    """A sandbox."""

    id: str
    region: str
    labels: Mapping[str, str]
    created_at: datetime
    stop_at: float
    """By the wall clock."""
    machine: Machine
    root: Disk | None
    """A volume; None = a copy of a snapshot, or the bare system."""
    snapshot: Disk | None
    volumes: Mapping[str, Disk]
    env: dict[str, str]
    config: Mapping[str, object]
    stopped_at: datetime | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_running(self) -> bool:
        return self.stopped_at is None

    @property
    def disks(self) -> Sequence[Disk]:
        return [*self.volumes.values(), *([self.root] if self.root else [])]


def install_system(image: MachineImage, directory: Path, internet: Sequence[Address]) -> None:
    """A disk as the platform's base image has it: this host's programs, and a user who may become root."""
    install(image, directory, internet)
    installer = directory / f".{SUDO_DIRECTORY}/apt-get"
    installer.write_text(_INSTALLER)
    installer.chmod(0o755)


def make_policy(config: Mapping[str, object], env: dict[str, str]) -> Policy:
    """What may be reached; and, in `env`, texts in place of secrets."""
    swaps: dict[str, dict[str, str]] = {}
    for name, secret in dict(config["secrets"]).items():  # type: ignore[call-overload]  # checked
        env[name] = f"DENO_SECRET_PLACEHOLDER_{secrets.token_hex(16)}"
        for host in secret["hosts"]:
            swaps.setdefault(host, {})[env[name]] = secret["value"]
    if config["allow_net"] is None:
        return OPEN
    hosts: dict[str, Rewrite | None] = {}
    for host in config["allow_net"]:  # type: ignore[attr-defined]  # same
        found = swaps.get(host.rpartition(":")[0] or host)
        hosts[host] = None if found is None else _swapping(found)
    return Policy(hosts=hosts)


def _swapping(values: Mapping[str, str]) -> Rewrite:
    def rewrite(headers: Headers) -> Headers:
        for text, value in values.items():
            headers = [(name, found.replace(text, value)) for name, found in headers]
        return headers

    return rewrite


def parse_bytes(capacity: object) -> int:
    if isinstance(capacity, int):
        return capacity
    found = re.fullmatch(r"(\d+)\s*([A-Za-z]+)", str(capacity))
    if found is None or found[2] not in _UNITS:
        raise Refused(400, "BAD_REQUEST", f"not a capacity: {capacity}")
    return int(found[1]) * _UNITS[found[2]]


def used_bytes(directory: Path) -> int:
    return sum(
        p.lstat().st_size for p in directory.rglob("*") if p.is_file() and not p.is_symlink()
    )
