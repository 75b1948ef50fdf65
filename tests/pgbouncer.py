"""A PgBouncer of the tests' own before a PostgreSQL of theirs."""

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from tests.ports import free_port

START_TIMEOUT_S = 10.0
PLACES = "/usr/sbin:/usr/bin:/usr/local/bin"


@contextmanager
def run_pgbouncer(url: str, *, mode: str, connections: int) -> Iterator[str]:
    """Yields the same database's URL at the pooler.

    Args:
        url: of a database, whose user needs no password.
        mode: its pool_mode: session, transaction or statement.
        connections: the most that it opens.

    Raises:
        FileNotFoundError: PgBouncer is not installed.
    """
    program = shutil.which("pgbouncer", path=PLACES)
    if program is None:
        raise FileNotFoundError("PgBouncer is not installed: apt-get install pgbouncer")
    place, port = urlsplit(url), free_port()
    with tempfile.TemporaryDirectory(prefix="orion-pgbouncer-") as home:
        Path(home).chmod(0o755)
        users = Path(home, "users")
        users.write_text(f'"{place.username}" ""\n')
        settings = Path(home, "pgbouncer.ini")
        settings.write_text(
            f"[databases]\n* = host={place.hostname} port={place.port}\n[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            f"auth_type = trust\nauth_file = {users}\n"
            f"pool_mode = {mode}\ndefault_pool_size = {connections}\n"
        )
        pooler = subprocess.Popen(
            [program, "-q", "-u", "nobody", str(settings)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            _wait_until_open(port, pooler)
            yield f"postgresql://{place.username}@127.0.0.1:{port}{place.path}"
        finally:
            pooler.kill()
            pooler.wait(START_TIMEOUT_S)


def _wait_until_open(port: int, pooler: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError as exc:
            if pooler.poll() is not None or time.monotonic() > until:
                raise AssertionError("pgbouncer does not start") from exc
            time.sleep(0.02)
        else:
            return
