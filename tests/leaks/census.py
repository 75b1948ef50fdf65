"""What a service holds on its machine and its engine: by kind, each thing by a name that tells what it is."""

import json
import os
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from app.runs.testing import Session
from app.store.runs import open_store
from tests.crash.rig import members_of_group
from tests.e2e.docker_world import docker, objects_of
from tests.e2e.orion_process import OrionProcess

DESCRIPTORS = "open descriptors of the service"
CONNECTIONS = "its connections over TCP (up to 20 more may idle)"
IDLE_CONNECTIONS = 20
"""Of clients that keep some for the next request; those come and go. Source: httpx, `Limits`, 20 by default."""
_DATABASE = ("-wal", "-shm", "-journal")
"""SQLite's own files come and go with its connections."""
_LARGE = ("environments", "snapshots")
"""Directories without sockets and with too many files to look for some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """`kinds` maps what is counted to what was found of it."""

    kinds: Mapping[str, tuple[str, ...]]
    waiting: int = 0
    """Sandboxes in the warm pool, which are counted among the others."""

    def beyond(self, before: "Census") -> list[str]:
        """What there is more of than before, with some of the names."""
        more = []
        for kind, found in self.kinds.items():
            known = before.kinds[kind]
            if len(found) > len(known) + allowance_of(kind):
                new = [name for name in found if name not in known] or found
                more.append(f"{kind}: {len(known)} before, {len(found)} after: {new[:5]}")
        return more


def allowance_of(kind: str) -> int:
    """How many more there may be."""
    return IDLE_CONNECTIONS if kind == CONNECTIONS else 0


async def take_census(orion: OrionProcess, *, temporary: Path, namespace: str | None) -> Census:
    """Of a running service. `temporary` is its TMPDIR, `namespace` its name on the engine, if it uses one."""
    async with open_store(orion.state_dir / "orion.db") as store:
        sessions = await store.sessions.all()
    kinds = _machine(orion, temporary) | _workspaces(orion.state_dir, sessions)
    if namespace is not None:
        kinds |= _engine(namespace, sessions)
    return Census(
        kinds={kind: tuple(found) for kind, found in kinds.items()},
        waiting=await orion.waiting_sandboxes(),
    )


def _machine(orion: OrionProcess, temporary: Path) -> dict[str, list[str]]:
    state_dir, pid = orion.state_dir, orion.pid
    descriptors = _descriptors(pid)
    connected = _connections(pid)
    return {
        "processes in sandboxes": orion.sandbox_processes(),
        "other processes of the service's group": [
            each for each in members_of_group(pid) if each != str(pid)
        ],
        "children that nobody waits for": _zombies_of(pid),
        "sandbox folders": orion.sandbox_directories(),
        "folders being removed": _names(state_dir / "trash"),
        "other entries of the state folder": [
            name for name in _names(state_dir) if not name.endswith(_DATABASE)
        ],
        "doors of the broker": _names(state_dir / "broker"),
        "temporary files": _names(temporary),
        "socket files": _socket_files(state_dir),
        "unix sockets": _lines_with(Path("/proc/net/unix"), state_dir.name),
        "mounts on the host": _lines_with(Path("/proc/self/mountinfo"), state_dir.name),
        DESCRIPTORS: [one for one in descriptors if one.partition(" -> ")[2] not in connected],
        CONNECTIONS: [one for one in descriptors if one.partition(" -> ")[2] in connected],
    }


def _workspaces(state_dir: Path, sessions: Iterable[Session]) -> dict[str, list[str]]:
    """A replaced workspace is kept for an hour by design: what counts is what is neither a thread's nor replaced."""
    owned = {session.snapshot_slug for session in sessions}
    unowned = []
    for path in (state_dir / "snapshots").glob("*"):
        record = json.loads((path / "snapshot.json").read_text())
        if path.name not in owned and not record.get("superseded_at"):
            unowned.append(path.name)
    return {"saved folders beside those of threads (two are the agent's)": unowned}


def _engine(namespace: str, sessions: Iterable[Session]) -> dict[str, list[str]]:
    owned = {session.snapshot_slug for session in sessions}
    listed = docker(
        *("images", "--all", "--no-trunc", "--filter", f"label=orion.name={namespace}"),
        *("--format", "{{.ID}} {{.Tag}}"),
    )
    tags: dict[str, set[str]] = {}
    for line in listed.splitlines():
        image, _, tag = line.partition(" ")
        tags.setdefault(image, set()).add(tag)
    return {
        "containers": objects_of(namespace, "ps", "--all"),
        "volumes": objects_of(namespace, "volume", "ls"),
        "networks": objects_of(namespace, "network", "ls"),
        "images beside those of threads (one is the agent's)": [
            image for image, named in tags.items() if not named & owned
        ],
    }


def _names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []


def _zombies_of(pid: int) -> list[str]:
    """Source: Linux, proc_pid_stat(5), fields state and ppid."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, parent = (entry / "stat").read_text().rpartition(") ")[2].split()[:2]
            if state == "Z" and int(parent) == pid:
                found.append(entry.name)
    return found


def _socket_files(state_dir: Path) -> list[str]:
    found = []
    for directory, folders, files in os.walk(state_dir):
        folders[:] = [name for name in folders if name not in _LARGE]
        for name in files:
            path = Path(directory, name)
            with suppress(OSError):
                if stat.S_ISSOCK(path.lstat().st_mode):
                    found.append(str(path.relative_to(state_dir)))
    return found


def _lines_with(path: Path, needle: str) -> list[str]:
    return [line for line in path.read_text().splitlines() if needle in line]


def _connections(pid: int) -> set[str]:
    """As descriptors name them. Source: Linux, proc_pid_net(5), tcp: the tenth field is the inode; state 0A listens."""
    found = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] != "0A":
                found.add(f"socket:[{fields[9]}]")
    return found


def _descriptors(pid: int) -> list[str]:
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            found.append(f"{entry.name} -> {entry.readlink()}")
    return found
