"""How a database is reached: SQLite's file on one connection, PostgreSQL through a pool, calls with a deadline, errors in one sentence."""

import asyncio
import errno
import fcntl
import os
import re
import secrets
import socket
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

import sqlalchemy as sa
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_random

from app.aio import open_task_group
from app.errors import MustEndError

if TYPE_CHECKING:
    import psycopg

CALL_TIMEOUT_S = 10.0
"""For one store call; SQLite's own wait for the write lock is half of it."""
CLOSE_TIMEOUT_S = 2.0
"""For calls that are still under way when their store closes, which nobody waits for any more."""
POSTGRES_CONNECTIONS = 4
"""And threads: a call is a round trip of about a millisecond, so a few serve hundreds a second, and 20 processes fit a server's 100."""
OLDEST_POSTGRES = 13
"""Nobody has tried Orion on an older one."""
IDLE_TIMEOUT_S = 3.0
"""Within a transaction, which is a few statements without a pause between them."""
LOCK_KEY = 7_091_511
"""Any number, the same in all processes: whoever holds this advisory lock of PostgreSQL's changes the tables."""

_HELD = ("55P03", "57014")
"""A lock or a statement took too long. Source: PostgreSQL documentation, Appendix A, Error Codes, read 2026-11."""
_FORBIDDEN = "42501"
"""A privilege is missing. Source: the same."""
_OPENED = "opened"
"""The execution option of an engine on PostgreSQL that has its driver's connections, those in use and the others."""
MIGRATION_TIMEOUT_S = 600.0
"""For one statement by which tables are made or changed, over all rows that there are, and between two; locks are waited for as long as by any other call."""

T = TypeVar("T")


class UnreadableStoreError(MustEndError):
    """The database cannot be used as it is. One sentence: which one and why, and what to do."""

    def __init__(self, reason: str, fix: str) -> None:
        super().__init__(f"{reason}: {fix}")
        self.reason = reason
        self.fix = fix


class WalConnection(sqlite3.Connection):
    """A connection in WAL mode: a commit survives kill -9, and a power loss from the next acceptance or checkpoint on.

    SQLite's default journal is two to three times slower.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - sqlite3's own signature
        super().__init__(*args, **kwargs)
        # Two that make the file a WAL one at once are told "locked" without SQLite's own wait.
        for attempt in Retrying(
            retry=retry_if_exception_type(sqlite3.OperationalError),
            stop=stop_after_delay(CALL_TIMEOUT_S / 2),
            wait=wait_random(0.01, 0.05),
            reraise=True,
        ):
            with attempt:
                self.execute("PRAGMA journal_mode=WAL")
        self.execute("PRAGMA synchronous=NORMAL")


class _AcceptingConnection(WalConnection):
    """Keeps what was acknowledged through a power loss, and waits for nobody.

    Without a busy timeout SQLite says at once that the write lock is taken; with one it would sleep up to 0.1 s between
    looks, and be overtaken meanwhile. Checkpoints, which may take a slow disk half a second, are left to the others.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - sqlite3's own signature
        super().__init__(*args, **kwargs)
        self.execute("PRAGMA busy_timeout=0")
        self.execute("PRAGMA wal_autocheckpoint=0")
        self.execute("PRAGMA synchronous=FULL")


def accepting_engine(path: Path) -> sa.Engine:
    """Returns an engine of one connection whose commits survive a power loss."""
    return sqlite_engine(path, connection=_AcceptingConnection)


def accepting_connection(
    engine: sa.Engine, *, timeout_s: float
) -> Callable[[], Awaitable["psycopg.AsyncConnection[Any]"]]:
    """Returns what connects the loop to the PostgreSQL of an engine: each statement is a transaction, and has its values written into it.

    `timeout_s`: for a connection that has gone silent; to connect half of it.
    """
    import psycopg  # noqa: PLC0415 - an extra

    _, address = engine.dialect.create_connect_args(engine.url)
    settings = {**address, **_connection_settings(timeout_s)}
    cursors = psycopg.AsyncClientCursor
    return partial(
        psycopg.AsyncConnection.connect, autocommit=True, cursor_factory=cursors, **settings
    )


NETWORK_FILE_SYSTEMS = re.compile(
    r"nfs\d?|cifs|smb\w*|afs|ceph|glusterfs|lustre|gpfs|beegfs|fuse\.(?:sshfs|glusterfs|s3fs|rclone|gcsfuse|mountpoint-s3|ceph.*)"
)
"""By their names in Linux, on which SQLite's locks or its shared memory do not hold. Source: sqlite.org, "Write-Ahead Logging", read 2026-11: all processes must be on one host."""


MOUNTS = Path("/proc/self/mountinfo")


def refuse_network_file_system(path: Path, *, mounts: Path = MOUNTS) -> None:
    """Keeps SQLite from a disk that other hosts may write to.

    Args:
        path: absolute.
        mounts: where Linux says what is mounted. Source: proc_pid_mountinfo(5).

    Raises:
        UnreadableStoreError: it is, or would be, on one.
    """
    kind, where = "", Path("/")
    for line in mounts.read_text().splitlines():
        fields, _, described = line.partition(" - ")
        mounted = Path(re.sub(r"\\(\d{3})", lambda one: chr(int(one[1], 8)), fields.split()[4]))
        if path.resolve().is_relative_to(mounted) and len(mounted.parts) >= len(where.parts):
            kind, where = described.split()[0], mounted
    if NETWORK_FILE_SYSTEMS.fullmatch(kind):
        raise UnreadableStoreError(
            f"{path} is on a network file system ({where} is {kind}), which SQLite's locks do not hold on",
            "give ORION_STATE_DIR a local disk, or ORION_DATABASE_URL a PostgreSQL",
        )


def sqlite_engine(path: Path, *, connection: type[WalConnection] = WalConnection) -> sa.Engine:
    """Returns an engine for one thread: one connection, as more would only fight for SQLite's one write lock."""
    return sa.create_engine(
        sa.URL.create("sqlite", database=str(path)),
        connect_args={
            "factory": connection,
            "timeout": CALL_TIMEOUT_S / 2,
            "check_same_thread": False,
        },
        poolclass=sa.pool.StaticPool,
    )


def postgres_engine(
    url: str,
    *,
    connections: int = POSTGRES_CONNECTIONS,
    timeout_s: float = CALL_TIMEOUT_S,
) -> sa.Engine:
    """Returns an engine for as many threads as connections.

    Nothing is kept in a session, so it may be a pooler's that gives one for each transaction (PgBouncer, Neon, Supabase).

    Args:
        url: `postgresql://…`
        connections: the most at once.
        timeout_s: for one statement, for a transaction that its process has left open, and for a connection that has gone silent;
            to connect half of it.

    Raises:
        UnreadableStoreError: its driver is not installed.
    """
    opened: WeakSet[Any] = WeakSet()
    try:
        engine = sa.create_engine(
            sa.make_url(url).set(drivername="postgresql+psycopg"),
            pool_size=connections,
            max_overflow=0,
            pool_pre_ping=True,
            # The driver begins no transactions: see `begin` below.
            isolation_level="AUTOCOMMIT",
            execution_options={_OPENED: opened},
            connect_args=_connection_settings(timeout_s),
        )
    except ModuleNotFoundError as exc:
        raise UnreadableStoreError(
            "ORION_DATABASE_URL needs the package psycopg",
            "install the extra 'postgresql' (pip install 'orion[postgresql]')",
        ) from exc
    sa.event.listen(engine, "connect", lambda connection, _: opened.add(connection))
    limits = limits_of(
        statement_timeout=timeout_s,
        # A process that is frozen in a transaction must not keep the others from what it has locked.
        idle_in_transaction_session_timeout=min(timeout_s, IDLE_TIMEOUT_S),
    )
    begin = f"BEGIN; {limits}"  # in one round trip
    sa.event.listen(engine, "begin", lambda one: one.exec_driver_sql(begin))
    return engine


def _connection_settings(timeout_s: float) -> dict[str, Any]:
    return {
        "connect_timeout": max(2, int(timeout_s / 2)),  # below it libpq takes 2
        "tcp_user_timeout": int(timeout_s * 1000),
        # Else a server that is gone while it is waited for would be missed after two hours. Source: tcp(7).
        "keepalives_idle": max(1, int(timeout_s / 2)),
        "keepalives_interval": max(1, int(timeout_s / 4)),
        "keepalives_count": 2,
        "prepare_threshold": None,
        "client_encoding": "utf8",  # a database without an encoding would give bytes
    }


def limits_of(**limits_s: float) -> str:
    """Returns statements that set these limits of PostgreSQL's for the transaction."""
    return "; ".join(
        f"SET LOCAL {name} = {limit_s * 1000:.0f}" for name, limit_s in limits_s.items()
    )


@contextmanager
def open_engine(location: Path | str) -> Iterator[sa.Engine]:
    """Opens the engine of an SQLite file or a `postgresql://…` URL for the length of a block."""
    engine = sqlite_engine(location) if isinstance(location, Path) else postgres_engine(location)
    try:
        yield engine
    finally:
        engine.dispose()


async def close_engine(engine: sa.Engine, executor: Executor) -> None:
    """Ends the threads that use an engine, and closes its connections. What is under way has `CLOSE_TIMEOUT_S` to end by itself."""
    async with open_task_group() as group:
        ending = group.create_task(asyncio.to_thread(executor.shutdown))
        await asyncio.wait([ending], timeout=CLOSE_TIMEOUT_S)
        if not ending.done():
            executor.shutdown(wait=False, cancel_futures=True)
            for connection in engine.get_execution_options().get(_OPENED, ()):
                _cut(connection)
    # Only now: of a call that is under way the connection is out, and the pool closes none of those.
    await asyncio.to_thread(engine.dispose)


def _cut(connection: Any) -> None:  # noqa: ANN401 - psycopg's
    """Lets whoever waits for PostgreSQL fail at once: the socket of a server that is frozen stays open, and its driver waits for ever."""
    import psycopg  # noqa: PLC0415 - an extra

    # It may have been closed meanwhile.
    with (
        suppress(OSError, psycopg.Error),
        socket.socket(fileno=os.dup(connection.fileno())) as one,
    ):
        one.shutdown(socket.SHUT_RDWR)


def name_of(location: Path | str) -> str:
    """Returns what an operator calls a database: its path, or its URL without the password."""
    if isinstance(location, Path):
        return str(location)
    # Options may hold a password, too.
    return sa.make_url(location).set(query={}).render_as_string(hide_password=True)


class AbandonedError(Exception):
    """Nobody waits for a transaction any more, so it is rolled back."""


_NOT_NOW = (
    sa.exc.OperationalError,
    sa.exc.InterfaceError,
    # Of PostgreSQL also a server that may only be read, and a transaction that was idle for too long.
    sa.exc.InternalError,
    sa.exc.TimeoutError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """A database as the stores use it: short transactions on threads of its own, each with a deadline."""

    engine: sa.Engine
    executor: Executor
    name: str
    """What the operator calls it; a path, or a URL without its password."""

    async def call(self, work: Callable[[sa.Connection], T]) -> T:
        """Runs blocking code in one transaction; when nobody waits for it any more, it changes nothing.

        Raises:
            TimeoutError: not done within `CALL_TIMEOUT_S`.
            OSError: the database cannot be reached, or not be used now.
            sqlalchemy.exc.SQLAlchemyError: any other mistake.
        """
        is_abandoned = threading.Event()

        def in_transaction() -> T:
            try:
                with self.engine.begin() as connection:
                    result = work(connection)
                    if is_abandoned.is_set():
                        raise AbandonedError
                    return result
            except _NOT_NOW as exc:
                reason = getattr(exc, "orig", exc)
                raise OSError(f"{self.name} cannot be used now ({_first_line(reason)})") from exc

        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                return await asyncio.get_running_loop().run_in_executor(
                    self.executor, in_transaction
                )
        except BaseException:
            # What it would write, a claim say, would be nobody's: whoever asked has given up.
            is_abandoned.set()
            raise

    async def insert(self, work: Callable[[sa.Connection], T]) -> T:
        """Awaits `call`, for code that looks whether a row is there and inserts it if not; once more when another process was quicker.

        Raises:
            sqlalchemy.exc.IntegrityError: the row clashes with another one than that.
        """
        try:
            return await self.call(work)
        except sa.exc.IntegrityError:
            return await self.call(work)


@contextmanager
def lock_tables(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Opens a transaction beside which nobody else changes tables, for as long as that takes; left by an error, it has changed nothing."""
    with engine.begin() as connection:
        if connection.dialect.name == "sqlite":
            # Python's sqlite3 begins none before CREATE and ALTER. Source: Python docs, sqlite3, transaction control.
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(LOCK_KEY)))
            limits = limits_of(
                lock_timeout=CALL_TIMEOUT_S,
                statement_timeout=MIGRATION_TIMEOUT_S,
                # A slow machine may think for seconds between two statements.
                idle_in_transaction_session_timeout=MIGRATION_TIMEOUT_S,
            )
            connection.exec_driver_sql(limits)
        yield connection


@contextmanager
def map_errors(name: str) -> Iterator[None]:
    """Turns errors of the database into sentences for its operator.

    Raises:
        UnreadableStoreError
    """
    try:
        yield
    except sa.exc.DBAPIError as exc:
        is_reached = exc.statement is not None or hasattr(exc.orig, "sqlite_errorcode")
        raise (_explain if is_reached else _explain_unreached)(exc, name) from exc


def describe_half_made(name: str, reason: str) -> UnreadableStoreError:
    """Returns the error for a database that lacks something which its version has."""
    return UnreadableStoreError(
        f"{name} is half made ({reason})", "put a copy of it back, or move it away to begin anew"
    )


def describe_damage(name: str, reason: object) -> UnreadableStoreError:
    """Returns the error for a file that SQLite cannot read."""
    return UnreadableStoreError(
        f"{name} is damaged ({_first_line(reason)})",
        "put a copy of it back, or move it away to begin anew",
    )


def _explain_unreached(error: sa.exc.DBAPIError, name: str) -> UnreadableStoreError:
    """Returns PostgreSQL's and libpq's own words, as a connection that fails has no code; the password is in none of them."""
    return UnreadableStoreError(
        f"{name} cannot be reached ({_first_line(error.orig)})",
        "check ORION_DATABASE_URL, and that the server runs, lets Orion in and has connections left",
    )


def _explain(error: sa.exc.DBAPIError, name: str) -> UnreadableStoreError:
    """Returns the error in words. Source of the codes: SQLite, Result and Error Codes, read 2026-11; the low byte is the primary one."""
    reason = _first_line(error.orig)
    if getattr(error.orig, "sqlstate", "") == _FORBIDDEN:
        return UnreadableStoreError(
            f"{name} does not let this user make or read its tables ({reason})",
            "let the user own the database, or: GRANT ALL ON SCHEMA public TO the user",
        )
    code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF
    if isinstance(error, sa.exc.ProgrammingError):  # PostgreSQL's for the same
        code = sqlite3.SQLITE_ERROR
    elif getattr(error.orig, "sqlstate", "") in _HELD:
        code = sqlite3.SQLITE_BUSY
    match code:
        case sqlite3.SQLITE_ERROR:  # a table or column is not there
            return describe_half_made(name, reason)
        case sqlite3.SQLITE_NOTADB:
            return UnreadableStoreError(
                f"{name} is not an SQLite database",
                "move it away, or give Orion another ORION_STATE_DIR",
            )
        case sqlite3.SQLITE_CORRUPT:
            return describe_damage(name, reason)
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return UnreadableStoreError(
                f"{name} is locked by another program", "end that program, then try again"
            )
        case _:
            return UnreadableStoreError(
                f"{name} cannot be used ({reason})",
                "check that it can be reached, its owner, and the free space",
            )


def _first_line(reason: object) -> str:
    return (str(reason).strip() or "no reason given").splitlines()[0]


def describe_server(connection: sa.Connection) -> str:
    """Returns the database's kind and version, and of a server how many connections it would still take."""
    version = ".".join(map(str, connection.dialect.server_version_info or ()))
    if connection.dialect.name == "sqlite":
        return f"SQLite {version}"
    limit, reserved, taken = connection.execute(_CONNECTIONS).one()
    free = max(0, int(limit) - int(reserved) - int(taken))
    return f"PostgreSQL {version}, {free} of {limit} connections free"


_CONNECTIONS = sa.text(
    "SELECT current_setting('max_connections'), current_setting('superuser_reserved_connections'),"
    " (SELECT sum(numbackends) FROM pg_stat_database)"  # which everybody may read, of all databases
)


def refuse_old_server(version: tuple[int | str, ...], name: str) -> None:
    """Raises: UnreadableStoreError: PostgreSQL is older than 13; `version` as it says it, such as (12, 22)."""
    if int(version[0]) < OLDEST_POSTGRES:
        raise UnreadableStoreError(
            f"{name} is PostgreSQL {'.'.join(map(str, version))}",
            f"Orion needs PostgreSQL {OLDEST_POSTGRES} or later; update the server",
        )


SHARED_WITHIN_S = 30.0
"""For another process that starts: after an outage it waits 12 s for those that are late, and asks engine and sandboxes for what is left."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class StateDirectoryBusyError(Exception):
    """Another Orion process owns the state directory."""


class StateDirectory:
    """A directory whose lock this process has; the kernel lets it go when the process dies."""

    def __init__(self, file: IO[str], *, path: Path, is_alone: bool) -> None:
        self._file = file
        self._path = path
        self.is_alone = is_alone
        """Nobody else uses it; no other process comes in before `share`."""

    def share(self) -> None:
        """Lets others in that share it, too."""
        fcntl.flock(self._file, fcntl.LOCK_SH)
        self.is_alone = False

    def place(self) -> str:
        """Returns `place_of` this directory."""
        return place_of(self._path)


def place_of(directory: Path) -> str:
    """Returns what is the same for processes that share this directory and a kernel, also in containers, and for nobody else."""
    path = directory / "place"
    with suppress(FileExistsError), path.open("x") as file:
        file.write(secrets.token_hex(8))
    return f"{path.read_text()}-{BOOT_ID.read_text()[:8]}"


@contextmanager
def own_state_directory(directory: Path, *, shares: bool = False) -> Iterator[StateDirectory]:
    """Holds the directory's lock while inside; `shares`: beside others that do, too.

    On SQLite whoever starts takes over all that is unfinished, and a second process would take it from the first.

    Raises:
        StateDirectoryBusyError: naming the directory and the owner's pid.
        PermissionError: it is another user's.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        file = (directory / "orion.lock").open("a+")
    except OSError as exc:
        is_read_only = exc.errno == errno.EROFS
        problem = (
            "is on a file system that is mounted read-only: in a container, mount a volume there"
            if is_read_only
            else f"cannot be written to by user {os.geteuid()}, who has to own it"
        )
        if not (is_read_only or isinstance(exc, PermissionError)):
            raise
        raise PermissionError(f"ORION_STATE_DIR={directory} {problem}") from exc
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_alone = True
        except BlockingIOError:
            is_alone = False
        if not is_alone and not (shares and _lock_beside_others(file)):
            file.seek(0)
            owner = file.read().strip() or "unknown"
            raise StateDirectoryBusyError(
                f"{directory} is in use by another Orion process (pid {owner}); "
                + (
                    f"it has let nobody in for {SHARED_WITHIN_S:g} s: look whether it starts, or is on SQLite"
                    if shares
                    else "stop it, or give this one its own ORION_STATE_DIR"
                )
            ) from None
        if is_alone:
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
        yield StateDirectory(file, path=directory, is_alone=is_alone)


def _lock_beside_others(file: IO[str]) -> bool:
    """Waits until whoever starts lets others in; False when that takes too long: it does not share."""
    until = time.monotonic() + SHARED_WITHIN_S
    while time.monotonic() < until:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.05)
        else:
            return True
    return False
