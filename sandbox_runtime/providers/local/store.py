"""What lies in the state directory, and its files, which are filled, saved and removed by the coreutils: killable, and fast on large trees.

    environments/<id>/        immutable once a snapshot names it; bound into sandboxes, never copied
    snapshots/<id>/           snapshot.json, work/ and home/ where they were not empty
    copies/<id>/              a copy of a snapshot's work/ and home/, for the next sandbox that begins with it
    names/<digest>.json       name -> snapshot
    sandboxes/<id>/           sandbox.json, work/, home/, run/, tmp/
    trash/                    on its way out
    system/                   files shown to every sandbox

Blocking code; several processes may share one directory.
"""

import asyncio
import fcntl
import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Self

from sandbox_runtime.command import BoundedBuffer
from sandbox_runtime.lifecycle import Owner
from sandbox_runtime.providers.local.isolation import Place
from sandbox_runtime.providers.local.processes import HostCommand, start_process
from sandbox_runtime.types import ExecExited, ExecOutput

LOCKED_S, LOCK_POLL_S = 15.0, 0.005


@dataclass(frozen=True, slots=True)
class _Record:
    """A file of JSON."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), default=datetime.isoformat)

    @classmethod
    def from_json(cls, text: str) -> Self:
        data = json.loads(text)
        for key in data.keys() & {"created_at", "superseded_at"}:
            data[key] = data[key] and datetime.fromisoformat(data[key])
        if "owner" in data:
            data["owner"] = Owner(**data["owner"])
        return cls(**data)


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxRecord(_Record):
    """`sandbox.json` in a sandbox's directory; one without it was never finished."""

    id: str
    owner: Owner
    created_at: datetime
    labels: Mapping[str, str]
    environment: str | None
    """Id of the environment it uses, which must not be removed meanwhile."""
    host_uid: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRecord(_Record):
    """`snapshot.json` in a snapshot's directory."""

    id: str
    created_at: datetime
    environment: str | None
    superseded_at: datetime | None = None
    """When another snapshot took its name: not listed any more, and removed after a while."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NameRecord(_Record):
    """`names/<digest>.json`: which snapshot a name means."""

    name: str
    snapshot: str


_DIRECTORIES = ("environments", "snapshots", "copies", "names", "sandboxes", "trash", "system")
SUPERSEDED_KEPT = timedelta(hours=1)
"""A replaced snapshot stays restorable this long, for those who have just looked it up."""
_MAX_ID_CHARS = 64
COPY_TIMEOUT_S = 300.0
_UNFINISHED = "."


class LocalStore:
    """All reading and writing of the state directory but the contents of sandboxes."""

    def __init__(self, root: Path, *, base: str, locked_s: float = LOCKED_S) -> None:
        """`base` says what environments depend on besides their name: the host's Python and the kind of isolation.

        `locked_s`: who keeps others out for so long is frozen, and is not waited for any longer.
        """
        self._root = root
        self._base = base
        self._locked_s = locked_s

    @property
    def system(self) -> Path:
        return self._root / "system"

    @property
    def trash(self) -> Path:
        return self._root / "trash"

    def environment(self, environment_id: str) -> Path:
        return self._root / "environments" / environment_id

    def snapshot(self, snapshot_id: str) -> Path:
        return self._root / "snapshots" / snapshot_id

    def copy(self, snapshot_id: str) -> Path:
        return self._root / "copies" / snapshot_id

    def sandbox(self, sandbox_id: str) -> Path:
        return self._root / "sandboxes" / sandbox_id

    def prepare(self, system_files: Mapping[str, str]) -> None:
        """Makes the directories; nobody else on the machine may look inside."""
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in _DIRECTORIES:
            (self._root / name).mkdir(mode=0o755, exist_ok=True)
        for name, text in system_files.items():
            _write_atomically(self.system / name, text, durable=False)
            (self.system / name).chmod(0o644)

    def claim(self, record: SandboxRecord, *, uids: range | None) -> SandboxRecord | None:
        """Makes the sandbox's directory and its record, with a host uid from `uids` if given; None when all are taken."""
        with self._locked():
            if uids is not None:
                taken = {other.host_uid for other in self.sandboxes()}
                free = next((uid for uid in uids if uid not in taken), None)
                if free is None:
                    return None
                record = replace(record, host_uid=free)
            directory = self.sandbox(record.id)
            directory.mkdir(mode=0o755)
            _write_atomically(directory / "sandbox.json", record.to_json(), durable=False)
            return record

    def sandboxes(self) -> list[SandboxRecord]:
        records: list[SandboxRecord] = []
        for path in (self._root / "sandboxes").glob("*/sandbox.json"):
            # Not synced to the disk: after a power failure it may be empty, and its sandbox is dead anyway.
            with suppress(FileNotFoundError, json.JSONDecodeError):
                records.append(SandboxRecord.from_json(path.read_text(encoding="utf-8")))
        return records

    def snapshots(self) -> list[SnapshotRecord]:
        records: list[SnapshotRecord] = []
        for path in (self._root / "snapshots").glob("*/snapshot.json"):
            with suppress(FileNotFoundError):
                records.append(SnapshotRecord.from_json(path.read_text(encoding="utf-8")))
        return sorted(records, key=lambda record: record.created_at)

    def sizes(self) -> dict[str, int]:
        """Returns the bytes of the environment that each snapshot brought, by its id; without those that stand on another's."""
        bringers: dict[str, str] = {}
        for record in self.snapshots():
            if record.environment is not None:
                bringers.setdefault(record.environment, record.id)
        return {
            snapshot_id: _allocated_bytes(self.environment(environment))
            for environment, snapshot_id in bringers.items()
        }

    def find(self, snapshot_id: str) -> SnapshotRecord | None:
        if not snapshot_id.isalnum() or len(snapshot_id) > _MAX_ID_CHARS:
            return None
        try:
            text = (self.snapshot(snapshot_id) / "snapshot.json").read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return None
        return SnapshotRecord.from_json(text)

    def find_named(self, name: str) -> SnapshotRecord | None:
        try:
            text = self._name_path(name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        return self.find(NameRecord.from_json(text).snapshot)

    def names(self) -> dict[str, str]:
        """Returns the names of snapshots by their ids."""
        names: dict[str, str] = {}
        for path in (self._root / "names").glob("*.json"):
            with suppress(FileNotFoundError):
                record = NameRecord.from_json(path.read_text(encoding="utf-8"))
                names[record.snapshot] = record.name
        return names

    def publish(self, made: Path, record: SnapshotRecord, *, name: str | None) -> None:
        """Turns a finished directory into a snapshot: from here on, and only from here on, it is found."""
        _write_atomically(made / "snapshot.json", record.to_json())
        with self._locked():
            made.rename(self.snapshot(record.id))
            _sync_directory(self._root / "snapshots")
            if name is None:
                return
            previous = self.find_named(name)
            text = NameRecord(name=name, snapshot=record.id).to_json()
            _write_atomically(self._name_path(name), text)
            if previous is not None:
                old = replace(previous, superseded_at=datetime.now(UTC))
                _write_atomically(self.snapshot(old.id) / "snapshot.json", old.to_json())

    def publish_copy(self, made: Path, snapshot_id: str) -> None:
        """Turns a finished directory into the copy of a snapshot; throws it away when there is one, or the snapshot is gone."""
        with self._locked():
            if self.find(snapshot_id) is None or self.copy(snapshot_id).exists():
                self._throw_away(made)
            else:
                made.rename(self.copy(snapshot_id))

    def take_copy(self, snapshot_id: str, target: Path) -> bool:
        """Moves the copy of a snapshot to `target`; False: there is none."""
        try:
            self.copy(snapshot_id).rename(target)
        except FileNotFoundError:
            return False
        return True

    def discard_snapshot(self, snapshot_id: str) -> None:
        if self.find(snapshot_id) is None:
            return
        with self._locked():
            for path in (self._root / "names").glob("*.json"):
                if NameRecord.from_json(path.read_text(encoding="utf-8")).snapshot == snapshot_id:
                    path.unlink()
            self._throw_away(self.snapshot(snapshot_id))

    def discard_sandbox(self, sandbox_id: str) -> None:
        with self._locked():
            self._throw_away(self.sandbox(sandbox_id))

    def abandoned(self) -> list[str]:
        """Returns ids of the sandboxes that the next `sweep` throws away."""
        living = {record.id for record in self.sandboxes() if record.owner.alive}
        return [
            path.name for path in (self._root / "sandboxes").iterdir() if path.name not in living
        ]

    def sweep(self) -> None:
        """Throws away sandboxes whose owner is dead, replaced snapshots, and environments that nobody refers to."""
        with self._locked():
            living = {record.id: record for record in self.sandboxes() if record.owner.alive}
            self._throw_away_others("sandboxes", set(living))
            oldest = datetime.now(UTC) - SUPERSEDED_KEPT
            kept = {
                record.id: record
                for record in self.snapshots()
                if record.superseded_at is None or record.superseded_at > oldest
            }
            self._throw_away_others("snapshots", set(kept))
            self._throw_away_others("copies", {*kept, *self._copies_in_work()})
            used = {record.environment for record in living.values()}
            used |= {record.environment for record in kept.values()}
            self._throw_away_others("environments", used)

    def _throw_away_others(self, kind: str, kept: "set[str] | set[str | None]") -> None:
        for path in (self._root / kind).iterdir():
            if path.name not in kept:
                self._throw_away(path)

    def _copies_in_work(self) -> Iterator[str]:
        """Yields names of what may still become copies."""
        for path in (self._root / "copies").glob(f"{_UNFINISHED}*"):
            with suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime < 2 * COPY_TIMEOUT_S:
                    yield path.name

    def _throw_away(self, path: Path) -> None:
        """Renames it, so that it is gone at once and whole; the bytes are removed from the trash later."""
        with suppress(FileNotFoundError):
            path.rename(self.trash / secrets.token_hex(8))

    def _name_path(self, name: str) -> Path:
        digest = hashlib.sha256(f"{self._base}\0{name}".encode()).hexdigest()
        return self._root / "names" / f"{digest[:32]}.json"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keeps other processes out of what takes milliseconds."""
        path = self._root / "lock"
        while True:
            with path.open("a", encoding="utf-8") as file:
                if _lock_within(file, self._locked_s):
                    if _is_at(file, path):
                        yield
                        return
                elif _is_at(file, path):
                    path.unlink(missing_ok=True)


def _lock_within(file: IO[str], seconds: float) -> bool:
    until_s = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until_s:
                return False
            time.sleep(LOCK_POLL_S)
        else:
            return True


def _is_at(file: IO[str], path: Path) -> bool:
    """Whether the path still leads to the file: a lock is the file's, not the path's. Source: flock(2)."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _allocated_bytes(directory: Path) -> int:
    total = 0
    for parent, _directories, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):
                total += Path(parent, name).lstat().st_blocks * 512  # Source: stat(2)
    return total


def _write_atomically(path: Path, text: str, *, durable: bool = True) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        if durable:
            os.fsync(file.fileno())
    temporary.replace(path)
    if durable:
        _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


_PATH = "/usr/local/bin:/usr/bin:/bin"
_SAVED = ("work", "home")


def _make(directory: Path, *, mode: int) -> None:
    directory.mkdir()
    directory.chmod(mode)


async def copy_workspace(store: LocalStore, snapshot_id: str) -> None:
    """Makes the copy of a snapshot, unless there is one. Raises: OSError: the disk."""
    saved, made = store.snapshot(snapshot_id), store.copy(f"{_UNFINISHED}{secrets.token_hex(8)}")
    if not saved.exists() or store.copy(snapshot_id).exists():
        return
    _make(made, mode=0o755)
    try:
        for name in set(_SAVED).intersection(os.listdir(saved)):  # noqa: PTH208  # names only
            _make(made / name, mode=0o755)
            await _copy(saved / name, made / name)
        await asyncio.to_thread(store.publish_copy, made, snapshot_id)
    finally:
        await remove_tree(made)


async def fill_place(
    place: Place, *, saved: Path | None, template: Path | None, is_copy: bool = False
) -> None:
    """Makes the directories of a new sandbox, with the workspace from `saved` and a copy of the environment `template`.

    `is_copy`: `saved` is this sandbox's alone, on the same disk.
    """
    owned = [place.home, place.run, place.tmp]
    if place.mounted is None:
        owned.append(place.work)
    if place.environment_writable or place.environment_id is None:
        owned.append(place.environment)
    for directory in owned:
        _make(directory, mode=0o1777 if directory == place.tmp else 0o755)
    if saved is not None:
        for name in set(_saved(place)).intersection(os.listdir(saved)):  # noqa: PTH208  # names only
            if is_copy:
                (saved / name).rename(place.directory / name)
            else:
                await _copy(saved / name, place.directory / name)
    if place.environment_writable and template is not None:
        await _copy(template, place.environment)
    if place.host_uid is not None:
        await _chown(place.host_uid, *owned)


async def save_workspace(place: Place, target: Path) -> None:
    """Copies what is worth keeping of a sandbox in which nothing runs."""
    _make(target, mode=0o755)
    for name in _saved(place):
        source = place.directory / name
        if os.listdir(source):  # noqa: PTH208  # whether there is anything
            _make(target / name, mode=0o755)
            try:
                await _copy(source, target / name)
            except OSError:
                await _open_up(source, target / name)
                await _copy(source, target / name)


def _saved(place: Place) -> tuple[str, ...]:
    return _SAVED if place.mounted is None else ("home",)


async def seal_environment(place: Place) -> None:
    """Gives a finished environment to the service, readable by the users of all sandboxes."""
    if place.host_uid is not None:
        await _chown(0, place.environment)
        await _run("chmod", "-R", "a+rX", "--", str(place.environment))


async def remove_tree(path: Path) -> None:
    """Removes a tree, whatever modes its directories have. One that does not exist is fine."""
    try:
        await _run("rm", "-rf", "--", str(path))
    except OSError:
        await _open_up(path)
        await _run("rm", "-rf", "--", str(path))


async def _copy(source: Path, target: Path) -> None:
    # The dot: where the source is a link, what it leads to is copied.
    await _run("cp", "-a", "--reflink=auto", "-T", "--", f"{source}/.", str(target))


async def _chown(uid: int, *paths: Path) -> None:
    await _run("chown", "-R", "-h", "--", f"{uid}:{uid}", *map(str, paths))


async def _open_up(*paths: Path) -> None:
    """An ordinary user cannot read what it has forbidden itself; root never gets here."""
    await _run("chmod", "-R", "u+rwX", "--", *map(str, paths))


async def _run(*argv: str) -> None:
    """Raises: OSError: it failed."""
    command = HostCommand(
        argv=lambda _memory, _status: list(argv),
        env={"PATH": _PATH, "LC_ALL": "C"},
        cwd="/",
        namespaces=0,
    )
    stderr = BoundedBuffer(2000)
    exit_code = -1
    process = start_process(command, stdin=b"", merge_output=True)
    try:
        async with asyncio.timeout(COPY_TIMEOUT_S):
            async for event in process.events():
                match event:
                    case ExecOutput():
                        stderr.feed(event.data)
                    case ExecExited():
                        exit_code = event.exit_code
    finally:
        await process.kill()
    if exit_code != 0:
        raise OSError(f"{argv[0]} failed: {os.fsdecode(stderr.value()).strip()}")
