"""ORION_DATABASE_URL against a real PostgreSQL: every command works on it, and what is wrong with it is one sentence without its password."""

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Iterator
from contextlib import AsyncExitStack, ExitStack, suppress
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from app.aio import open_task_group
from app.runs.testing import Run
from app.store.engine import (
    CALL_TIMEOUT_S,
    CLOSE_TIMEOUT_S,
    LOCK_KEY,
    UnreadableStoreError,
    open_engine,
    postgres_engine,
    refuse_network_file_system,
    refuse_old_server,
)
from app.store.group_commit import ACCEPT_TIMEOUT_S
from app.store.migrations import migrate_store, newest_version
from app.store.runs import open_store
from tests.building import make_request, make_run
from tests.forking import run_forked
from tests.pgbouncer import run_pgbouncer
from tests.postgres import LOCKED_ROLE, create_database, dump_and_restore, frozen, unreachable

pytestmark = pytest.mark.postgresql

SECRET = "geheim-3141-wort"  # noqa: S105 - of a server that is gone with the tests
NEEDED = {"SLACK_BOT_TOKEN": "xoxb-1", "SLACK_SIGNING_SECRET": "s", "ANTHROPIC_API_KEY": "k"}
CONNECT_LIMIT_S = 8.0
"""To connect takes 5 s at the most; and a margin."""


def orion(*args: str, url: str, state_dir: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "PYTHONPATH": str(Path.cwd()),
        "HOME": "/nonexistent",
        "ORION_STATE_DIR": str(state_dir),
        "ORION_DATABASE_URL": url,
        "ORION_SANDBOX": "local",
        "ORION_PORT": "0",
        **NEEDED,
    }
    return run_forked("app.cli", *args, environment=environment, directory=Path("/"))


def refusal(*args: str, url: str, state_dir: Path, code: int = 1) -> str:
    """What `orion …` says when it fails."""
    shown = orion(*args, url=url, state_dir=state_dir)
    assert shown.returncode == code, shown
    assert "Traceback" not in shown.stderr + shown.stdout
    assert SECRET not in shown.stderr + shown.stdout
    return shown.stderr


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def silent_server() -> Iterator[str]:
    """Takes connections, and never says anything."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"postgresql://orion:{SECRET}@127.0.0.1:{listener.getsockname()[1]}/orion"


@pytest.mark.parametrize("command", [("serve",), ("runs", "list"), ("migrate",), ("doctor",)])
def test_an_url_of_another_kind_is_a_bad_setting(command: tuple[str, ...], state_dir: Path) -> None:
    """Exit code 2, as with any other."""
    told = refusal(*command, url=f"mysql://u:{SECRET}@h/db", state_dir=state_dir, code=2)
    assert "bad settings:\nORION_DATABASE_URL: must start with postgresql://" in told


@pytest.mark.parametrize(
    "url",
    ["postgresql://u:p@{}/w#1@h:1/d", "postgresql://u:{}@x@h/d", "postgresql://u:p@h:99999/d"],
)
def test_signs_that_must_be_escaped_are_named_and_not_what_they_stand_in(
    url: str, state_dir: Path
) -> None:
    """Where a password was not escaped nobody knows where it ends."""
    told = refusal("doctor", url=url.format(SECRET), state_dir=state_dir, code=2)
    assert "write %3A for a colon, %2F for a slash, %40 for @, %23 for #" in told


@pytest.mark.postgresql
def test_a_user_who_may_not_make_tables_is_told_which_right_is_missing(
    postgres_url: str, state_dir: Path
) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE ROLE guest LOGIN")
        try:
            url = postgres_url.replace("orion@", "guest@")
            told = refusal("runs", "list", url=url, state_dir=state_dir)
        finally:
            connection.execute("DROP ROLE guest")
    assert "does not let this user make or read its tables (permission denied" in told
    assert "GRANT ALL ON SCHEMA public" in told


def with_password(url: str) -> str:
    return url.replace("orion@", f"orion:{SECRET}@")


def test_every_command_says_in_a_line_why_a_server_cannot_be_reached(
    postgres_url: str, state_dir: Path
) -> None:
    """Nobody listens, no such database, TLS that is not offered, an option that is none: named with host and reason."""
    base, _, database = with_password(postgres_url).rpartition("/")
    for url, words in (
        (f"postgresql://orion:{SECRET}@127.0.0.1:1/orion", "Connection refused"),
        (f"{base}/no_such_database", 'database "no_such_database" does not exist'),
        (f"{base}/{database}?sslmode=require", "server does not support SSL, but SSL was required"),
        (f"{base}/{database}?pgbouncer=true", 'invalid connection option "pgbouncer"'),
        (f"postgresql://orion:{SECRET}@no-such-host.invalid/orion", "failed to resolve host"),
    ):
        told = refusal("runs", "list", url=url, state_dir=state_dir)
        assert told.count("\n") == 1
        assert words in told
        assert "cannot be reached (" in told
        assert "postgresql://orion:***@" in told
        assert "check ORION_DATABASE_URL" in told
    for command in (("serve",), ("migrate",), ("sandboxes", "list"), ("runs", "stop", "run_1")):
        told = refusal(*command, url=f"{base}/no_such_database", state_dir=state_dir)
        assert told.count("\n") == 1
        assert 'database "no_such_database" does not exist' in told


def test_a_wrong_password_is_told_and_not_shown(postgres_url: str, state_dir: Path) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {LOCKED_ROLE} LOGIN PASSWORD 'another'")
    url = postgres_url.replace("orion@", f"{LOCKED_ROLE}:{SECRET}@")
    told = refusal("runs", "list", url=url, state_dir=state_dir)
    assert f'password authentication failed for user "{LOCKED_ROLE}"' in told
    doctor = orion("doctor", url=url, state_dir=state_dir).stdout
    assert f"FAIL database   postgresql://{LOCKED_ROLE}:***@" in doctor
    assert SECRET not in doctor


@pytest.mark.long
async def test_a_server_that_never_answers_is_given_up_in_time(silent_server: str) -> None:
    began = time.monotonic()
    words = r"orion:\*\*\*@.+ cannot be reached \(connection timeout expired"
    with pytest.raises(UnreadableStoreError, match=words):
        async with open_store(silent_server):
            pass
    assert time.monotonic() - began < CONNECT_LIMIT_S


def test_all_connections_taken_is_told(postgres_url: str, state_dir: Path) -> None:
    """Not to a superuser, for whom some are kept."""
    with ExitStack() as stack:
        first = stack.enter_context(psycopg.connect(postgres_url, autocommit=True))
        first.execute("CREATE ROLE plain LOGIN")
        with suppress(psycopg.OperationalError):
            while True:
                stack.enter_context(psycopg.connect(postgres_url))
        url = postgres_url.replace("orion@", "plain@")
        told = refusal("runs", "list", url=url, state_dir=state_dir)
        first.execute("DROP ROLE plain")
    assert "too many clients already" in told
    assert "has connections left" in told


@pytest.mark.parametrize("version", [(12, 22), (9, 6, 24), (0,)])
def test_an_old_server_is_refused_by_its_version(version: tuple[int, ...]) -> None:
    """No such server is at hand: what one says of itself is judged."""
    with pytest.raises(UnreadableStoreError, match=r"is PostgreSQL .+: Orion needs PostgreSQL 13"):
        refuse_old_server(version, "postgresql://h/d")
    refuse_old_server((13, 0), "postgresql://h/d")


@pytest.mark.parametrize(("encoding", "is_refused"), [("SQL_ASCII", False), ("LATIN1", True)])
def test_a_database_that_cannot_keep_every_text_is_refused(
    postgres_url: str, encoding: str, *, is_refused: bool
) -> None:
    """One without an encoding keeps it as bytes, and gives it back."""
    server, _, name = postgres_url.rpartition("/")
    url = f"{server}/{name}_{encoding.lower()}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        made = f"CREATE DATABASE {url.rpartition('/')[2]} ENCODING '{encoding}' TEMPLATE template0"
        connection.execute(f"{made} LC_COLLATE 'C' LC_CTYPE 'C'".encode())
    run = make_run(make_request(text="a ☂ — umbrella"))

    async def keep() -> Run | None:
        async with open_store(url) as store:
            await store.add(run)
            return await store.get(run.id)

    if is_refused:
        with pytest.raises(UnreadableStoreError, match=r"keeps text as LATIN1.*ENCODING 'UTF8'"):
            asyncio.run(keep())
    else:
        assert asyncio.run(keep()) == run


_MOUNTS = """\
22 28 0:20 / /sys rw,relatime shared:7 - sysfs sysfs rw
28 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
95 28 0:44 / /mnt/team\\040disk rw shared:50 - nfs4 server:/export rw,vers=4.2
96 95 0:45 / /mnt/team\\040disk/here rw shared:51 - xfs /dev/vdb rw
97 28 0:46 / /home/me/far rw - fuse.sshfs me@far: rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/orion/orion.db", None),
        ("/mnt/team disk/orion/orion.db", "/mnt/team disk is nfs4"),
        ("/mnt/team disk/here/orion.db", None),
        ("/mnt/team disks/orion.db", None),
        ("/home/me/far/orion.db", "/home/me/far is fuse.sshfs"),
    ],
)
def test_sqlite_wants_a_local_disk(tmp_path: Path, path: str, kind: str | None) -> None:
    """As Linux names what is mounted, the nearest above the file."""
    mounts = tmp_path / "mountinfo"
    mounts.write_text(_MOUNTS)
    if kind is None:
        refuse_network_file_system(Path(path), mounts=mounts)
    else:
        with pytest.raises(UnreadableStoreError, match=f"{kind}.*ORION_DATABASE_URL"):
            refuse_network_file_system(Path(path), mounts=mounts)


def test_migrate_wants_one_too(tmp_path: Path) -> None:
    """An older Orion may have made the file there: it is left as it is."""
    path, mounts = tmp_path / "far" / "orion.db", tmp_path / "mountinfo"
    mounts.write_text(f"{_MOUNTS}99 28 0:47 / {path.parent} rw - nfs4 server:/export rw\n")
    path.parent.mkdir()
    path.write_bytes(b"")
    refused = f"{path} is on a network file system .*/far is nfs4.*ORION_DATABASE_URL"
    with pytest.raises(UnreadableStoreError, match=refused):
        migrate_store(path, mounts=mounts)
    assert path.read_bytes() == b""


def test_the_version_that_is_judged_is_the_servers_own(postgres_url: str) -> None:
    with open_engine(postgres_url) as engine, engine.connect() as connection:
        told = connection.exec_driver_sql("SHOW server_version_num").scalar_one()
        found = connection.dialect.server_version_info
    assert found is not None
    assert int(found[0]) == int(told) // 10_000


def test_commands_work_on_a_server(postgres_url: str, state_dir: Path) -> None:
    """Records, sandboxes, migration and doctor; no file of a database is made beside it."""
    run = make_run()

    async def fill() -> None:
        async with open_store(postgres_url) as store:
            await store.add(run)

    asyncio.run(fill())
    url = with_password(postgres_url)
    listed = orion("runs", "list", "--json", url=url, state_dir=state_dir)
    assert [row["id"] for row in json.loads(listed.stdout)] == [run.id]
    assert orion("runs", "show", run.id, url=url, state_dir=state_dir).returncode == 0
    assert orion("runs", "stop", run.id, url=url, state_dir=state_dir).stdout == "asked to stop\n"
    assert orion("runs", "cost", url=url, state_dir=state_dir).returncode == 0
    migrated = orion("migrate", url=url, state_dir=state_dir).stdout
    assert migrated.startswith("postgresql://orion:***@")
    assert migrated.endswith(f": version {newest_version()}, as before\n")
    for part, words in (("database", "PostgreSQL 15"), ("database", " connections free, 1 runs")):
        shown = orion("doctor", "--json", url=url, state_dir=state_dir).stdout
        details = {row["part"]: row["detail"] for row in map(json.loads, shown.splitlines())}
        assert words in details[part]
        assert SECRET not in shown
    assert not list(state_dir.glob("*.db"))


@pytest.mark.pgbouncer
async def test_a_pooler_that_gives_connections_by_transaction_will_do(postgres_url: str) -> None:
    """Many calls at once over two connections of the server: nothing is left in a session."""
    with run_pgbouncer(postgres_url, mode="transaction", connections=2) as url:
        async with open_store(url) as store:
            runs = [make_run(make_request(ts=f"{n}.000001")) for n in range(40)]
            async with open_task_group() as group:
                for run in runs:
                    group.create_task(store.add(run))
            async with open_task_group() as group:
                for _ in range(3):
                    for run in runs:
                        group.create_task(store.update(run.id, reply_ts="1.2"))
            assert len(await store.unfinished()) == len(runs)
            assert "PostgreSQL 15" in await store.describe_server()


@pytest.mark.pgbouncer
async def test_a_pooler_that_gives_them_by_statement_is_refused(postgres_url: str) -> None:
    with (
        run_pgbouncer(postgres_url, mode="statement", connections=2) as url,
        pytest.raises(UnreadableStoreError, match="transaction") as told,
    ):
        async with open_store(url):
            pass
    assert "Traceback" not in str(told.value)


def test_a_database_of_a_newer_or_older_orion_is_refused(
    postgres_url: str, state_dir: Path
) -> None:
    """By every command; an older one is what `migrate` is for, after a copy."""

    async def make() -> None:
        async with open_store(postgres_url):
            pass

    asyncio.run(make())
    for version, words in (
        (99, "written by a newer Orion (its tables have version 99"),
        (1, "keep a copy (of PostgreSQL by pg_dump), and run `orion migrate`"),
    ):
        with psycopg.connect(postgres_url) as connection:
            connection.execute("UPDATE orion_schema SET version = %s", [version])
        for command in (("serve",), ("runs", "list"), ("sandboxes", "list")):
            assert words in refusal(*command, url=postgres_url, state_dir=state_dir)


def test_a_server_ends_what_takes_too_long_and_who_stands_still(postgres_url: str) -> None:
    """A statement, and a transaction whose process says nothing more: its locks are free again."""
    engine = postgres_engine(postgres_url, timeout_s=0.5)
    with pytest.raises(sa.exc.OperationalError, match="statement timeout"), engine.begin() as one:
        one.exec_driver_sql("SELECT pg_sleep(5)")
    one = engine.connect()
    one.begin()
    one.exec_driver_sql("SELECT pg_advisory_xact_lock(1)")
    time.sleep(1)
    with psycopg.connect(postgres_url) as other:
        other.execute("SET statement_timeout = 1000")
        other.execute("SELECT pg_advisory_xact_lock(1)")
    with pytest.raises(sa.exc.DBAPIError):
        one.exec_driver_sql("SELECT 1")
    one.close()
    engine.dispose()


async def test_connections_that_the_server_has_dropped_are_replaced_unseen(
    postgres_url: str,
) -> None:
    """A failover, or a pooler that closes what stands idle: neither an acceptance nor a call fails for it."""
    async with open_store(postgres_url) as store:
        for number in range(2):
            assert await store.add(make_run(make_request(ts=f"179530236{number}.000100")))
            with unreachable(postgres_url):
                pass
        assert len(await store.recent(limit=9)) == 2


async def test_what_was_refused_beside_a_locked_table_is_not_stored_later(
    postgres_url: str,
) -> None:
    """The server gives up as whoever waits for it does: Slack delivers again, and that is stored."""
    async with open_store(postgres_url) as store:
        with psycopg.connect(postgres_url) as other:
            other.execute("LOCK TABLE orion_runs")
            with pytest.raises(OSError, match=r"^$|nothing could be stored"):
                await store.add(make_run())
            await asyncio.sleep(ACCEPT_TIMEOUT_S / 2)
        assert await store.get(make_run().id) is None
        assert await store.add(make_run())


@pytest.mark.long
async def test_a_server_that_is_frozen_keeps_no_store_from_closing(postgres_url: str) -> None:
    """Its sockets are as good as ever: neither an acceptance nor a call would ever end."""

    async def end(call: Awaitable[object]) -> None:
        with suppress(OSError):
            await call

    async with AsyncExitStack() as opened, open_task_group() as group:
        store = await opened.enter_async_context(open_store(postgres_url))
        await store.add(make_run(make_request(ts="1795302361.000100")))
        await store.recent(limit=1)
        with frozen(postgres_url):
            calls = [store.add(make_run()), *(store.recent(limit=1) for _ in range(9))]
            ending = [group.create_task(end(call)) for call in calls]
            await asyncio.sleep(0.2)  # all are with the server, or in line
            async with asyncio.timeout(CLOSE_TIMEOUT_S + CALL_TIMEOUT_S):
                await opened.aclose()
            await asyncio.wait(ending, timeout=CLOSE_TIMEOUT_S)
            assert all(one.done() for one in ending)


@pytest.mark.long
async def test_tables_that_somebody_holds_are_named(postgres_url: str) -> None:
    """A start or a migration waits for ten seconds, not for ever."""
    with psycopg.connect(postgres_url) as other:
        other.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK_KEY])
        began = time.monotonic()
        with pytest.raises(UnreadableStoreError, match="is locked by another program"):
            async with open_store(postgres_url):
                pass
        assert time.monotonic() - began < CALL_TIMEOUT_S + CONNECT_LIMIT_S


async def test_a_copy_that_is_put_back_is_the_same_orion(
    postgres_server: str, postgres_url: str, tmp_path: Path
) -> None:
    """With its runs, its name and its key."""
    copy_url = create_database(postgres_server, f"{postgres_url.rpartition('/')[2]}_copy")
    async with open_store(postgres_url) as store:
        await store.add(make_run())
        before = await store.installation.load()
    await asyncio.to_thread(dump_and_restore, postgres_url, copy_url, tmp_path / "orion.dump")
    async with open_store(copy_url) as store:
        assert await store.get(make_run().id) == make_run()
        assert await store.installation.load() == before


def test_a_driver_that_is_not_installed_is_named_with_its_extra() -> None:
    """PostgreSQL is an extra: without it the URL is of no use."""
    program = (
        "import asyncio, sys\nsys.modules['psycopg'] = None\n"
        "from app.store.engine import UnreadableStoreError\nfrom app.store.runs import open_store\n"
        "async def start():\n    async with open_store('postgresql://u:p@127.0.0.1:1/d'): pass\n"
        "try: asyncio.run(start())\nexcept UnreadableStoreError as exc: print(exc)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path.cwd(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "needs the package psycopg: install the extra 'postgresql'" in shown.stdout
