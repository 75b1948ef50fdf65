"""A PostgreSQL of the tests' own: on a free port of this machine, in a temporary directory, gone with the tests."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg

from tests.ports import free_port

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
UNSAFE_BUT_QUICK = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")
"""What a crash of the machine would cost is of no interest here."""

LOCKED_ROLE = "of_password"
"""A role that a test may create, who has to say its password; the others are let in."""
LOCKED_RULE = f"host all {LOCKED_ROLE} 127.0.0.1/32 scram-sha-256"


@contextmanager
def run_postgres(settings: Sequence[str] = UNSAFE_BUT_QUICK) -> Iterator[str]:
    """Yields the URL of the server, without a database's name. Ended by its pid. Without settings it waits for its disk.

    Raises:
        FileNotFoundError: PostgreSQL is not installed.
    """
    with tempfile.TemporaryDirectory(prefix="orion-postgres-") as home:
        user = _unprivileged_user()
        if user is not None:
            shutil.chown(home, user)
        data = Path(home, "data")
        subprocess.run(
            [_program("initdb"), "-D", data, "-U", "orion", "-A", "trust", "-E", "UTF8", "-N"],
            check=True,
            cwd=home,
            capture_output=True,
            timeout=START_TIMEOUT_S,
            user=user,
        )
        rules = data / "pg_hba.conf"
        rules.write_text(f"{LOCKED_RULE}\n{rules.read_text()}")
        port = free_port()
        argv = [str(_program("postgres")), "-D", str(data)]
        argv += ["-h", "127.0.0.1", "-p", str(port), "-k", ""]
        for setting in settings:
            argv += ["-c", setting]
        with Path(home, "log").open("wb") as log:
            server = subprocess.Popen(argv, cwd=home, stdout=log, stderr=log, user=user)
        url = f"postgresql://orion@127.0.0.1:{port}"
        try:
            _wait_until_ready(url, server, Path(home, "log"))
            yield url
        finally:
            server.send_signal(
                2
            )  # SIGINT: end all sessions. Source: PostgreSQL 15 docs, 19.5 Shutting Down the Server
            try:
                server.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait(STOP_TIMEOUT_S)


def create_database(server_url: str, name: str) -> str:
    """Make an empty database; returns its URL."""
    with psycopg.connect(f"{server_url}/postgres", autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"'.encode())
    return f"{server_url}/{name}"


def dump_and_restore(url: str, copy_url: str, file: Path) -> None:
    """Copies a database into an empty one, as `docs/operate.md` says."""
    for argv in (
        ["pg_dump", "--format=custom", f"--file={file}", url],
        ["pg_restore", f"--dbname={copy_url}", str(file)],
    ):
        subprocess.run([_program(argv[0]), *argv[1:]], check=True, timeout=START_TIMEOUT_S)


@contextmanager
def unreachable(url: str) -> Iterator[None]:
    """Cuts every connection to a database, and lets nobody in, while the block runs."""
    server, _, name = url.rpartition("/")
    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        connection.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false'.encode())
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name]
        )
        try:
            yield
        finally:
            connection.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true'.encode())


@contextmanager
def frozen(url: str) -> Iterator[None]:
    """Stops the server and whoever serves this database while the block runs; the system goes on to answer for their sockets."""
    server, _, name = url.rpartition("/")
    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        found = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = %s", [name]
        ).fetchall()
        # Its second field after the name. Source: proc_pid_stat(5).
        stat = Path(f"/proc/{connection.info.backend_pid}/stat").read_text()
        postmaster = int(stat.rpartition(")")[2].split()[1])
    pids = [postmaster, *(pid for (pid,) in found)]
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def _program(name: str) -> Path:
    """Debian keeps them out of the PATH, by version."""
    found = [*sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}")), shutil.which(name)]
    for path in reversed(found):
        if path is not None:
            return Path(path)
    raise FileNotFoundError(f"there is no {name}: apt-get install postgresql")


def _unprivileged_user() -> str | None:
    """PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def _wait_until_ready(url: str, server: "subprocess.Popen[bytes]", log: Path) -> None:
    until = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            psycopg.connect(f"{url}/postgres", connect_timeout=2).close()
        except psycopg.OperationalError as exc:
            if server.poll() is not None or time.monotonic() > until:
                raise AssertionError(f"PostgreSQL does not start:\n{log.read_text()}") from exc
            time.sleep(0.05)
        else:
            return
