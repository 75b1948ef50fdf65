"""Databases that Orion cannot use, met by the command line as a process: one sentence, what to do, exit code 1."""

import asyncio
import gzip
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from app.store.engine import own_state_directory
from app.store.migrations import newest_version
from app.store.runs import open_store
from tests.building import make_request, make_run
from tests.forking import run_forked

NOBODY = 65_534

RUNS = 60
PAGE = 4096
NEEDED = {"SLACK_BOT_TOKEN": "xoxb-1", "SLACK_SIGNING_SECRET": "s", "ANTHROPIC_API_KEY": "k"}
AS_ANYBODY = (
    ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.geteuid() == 0 else ()
)
"""For root no file is closed, unless it gives that up."""


def orion(state_dir: Path, *args: str) -> str:
    """What `orion …` says when it fails, in a line."""
    shown = _run(state_dir, *args)
    assert shown.returncode == 1, shown
    assert "Traceback" not in shown.stderr + shown.stdout
    assert shown.stderr.count("\n") == 1, shown.stderr
    return shown.stderr


def _run(state_dir: Path, *args: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(Path.cwd()),
        "HOME": "/nonexistent",
        "ORION_STATE_DIR": str(state_dir),
        "ORION_PORT": "0",
        **NEEDED,
    }
    path = state_dir / "orion.db"
    if not (path.is_file() and path.stat().st_mode & 0o600 != 0o600):
        return run_forked("app.cli", *args, environment=environment, directory=Path("/"))
    return subprocess.run(
        [*AS_ANYBODY, sys.executable, "-m", "app.cli", *args],
        cwd="/",
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


async def _fill(path: Path) -> None:
    async with open_store(path) as store:
        for n in range(RUNS):
            await store.add(make_run(make_request(ts=f"{n}.000001", text="word " * 500)))


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    """With a store that works."""
    state_dir = tmp_path / "state"
    asyncio.run(_fill(state_dir / "orion.db"))
    return state_dir


def _sql(statement: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        connection = sqlite3.connect(path)
        connection.execute(statement)
        connection.commit()
        connection.close()

    return damage


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2 // PAGE * PAGE)


def _overwrite(*, of: str) -> Callable[[Path], None]:
    """The first page of a table or an index: others may hold texts alone, in which no damage shows."""

    def damage(path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            found = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", [of])
            (page,) = found.fetchone()
        with path.open("r+b") as file:
            file.seek((page - 1) * PAGE + 100)
            file.write(b"\xa5" * (PAGE - 100))

    return damage


def _other_file(path: Path) -> None:
    path.write_text("These are not the runs that you are looking for.\n" * 100)


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _chmod(mode: int) -> Callable[[Path], None]:
    return lambda path: path.chmod(mode)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        pytest.param(
            _sql("UPDATE orion_schema SET version = 99"),
            ("written by a newer Orion", "version 99", "update Orion"),
            id="newer",
        ),
        pytest.param(
            _sql("DELETE FROM orion_schema"),
            ("half made", "put a copy"),
            id="half",
            marks=pytest.mark.long,
        ),
        pytest.param(_cut, ("is damaged", "put a copy"), id="cut"),
        pytest.param(
            _overwrite(of="ix_orion_runs_user"),
            ("is damaged", "put a copy"),
            id="some-page",
            marks=pytest.mark.long,
        ),
        pytest.param(_other_file, ("is not an SQLite database", "move it away"), id="other"),
        pytest.param(_directory, ("cannot be used", "check"), id="directory"),
        pytest.param(
            _chmod(0), ("cannot be used", "its owner"), id="closed", marks=pytest.mark.long
        ),
        pytest.param(_chmod(0o400), ("cannot be used", "its owner"), id="read-only"),
    ],
)
def test_serve_refuses_a_store_that_it_cannot_use(
    state_dir: Path, damage: Callable[[Path], None], words: tuple[str, ...]
) -> None:
    """It names the file, why, and what to do; and leaves the file as it is."""
    path = state_dir / "orion.db"
    damage(path)
    before = _content(path)
    said = orion(state_dir, "serve")
    assert said.startswith(f"orion cannot start: {path} ")
    assert all(word in said for word in words), said
    assert _content(path) == before


def _content(path: Path) -> tuple[int, bytes]:
    """Mode and bytes, whether they may be read or not."""
    mode = path.stat().st_mode
    if not path.is_file():
        return mode, b""
    path.chmod(0o600)
    content = path.read_bytes()
    path.chmod(mode)
    return mode, content


def test_the_other_commands_refuse_it_too(state_dir: Path) -> None:
    """In the same words; doctor names the fix."""
    _other_file(state_dir / "orion.db")
    reason, fix = f"{state_dir / 'orion.db'} is not an SQLite database", "move it away"
    for command in (
        ("runs", "list"),
        ("runs", "show", "run_1"),
        ("runs", "stop", "run_1"),
        ("migrate",),
    ):
        assert orion(state_dir, *command).startswith(f"{reason}: {fix}")
    shown = _run(state_dir, "doctor", "--json")
    findings = [json.loads(line) for line in shown.stdout.splitlines()]
    (database,) = (finding for finding in findings if finding["part"] == "database")
    assert (database["ok"], database["detail"]) == (False, reason)
    assert database["fix"].startswith(fix)


def test_an_older_store_waits_for_migrate(tmp_path: Path) -> None:
    """One that yesterday's Orion has made is refused until `orion migrate`, and then used; a newer one is not."""
    path = tmp_path / "state" / "orion.db"
    path.parent.mkdir(mode=0o700)
    path.write_bytes(gzip.decompress(Path("tests/data/store/version-6.db.gz").read_bytes()))
    for command in (("serve",), ("runs", "list")):
        assert "run `orion migrate`" in orion(path.parent, *command)
    for words in (f"version {newest_version()}, raised from 6", "as before"):
        migrated = _run(path.parent, "migrate")
        assert (migrated.returncode, migrated.stderr) == (0, "")
        assert migrated.stdout.startswith(f"{path}: version ")
        assert words in migrated.stdout
    listed = _run(path.parent, "runs", "list", "--json", "--limit", "100")
    assert len(json.loads(listed.stdout)) == 6
    _sql("UPDATE orion_schema SET version = version + 1, oldest = NULL")(path)
    assert "update Orion" in orion(path.parent, "migrate")


def test_migrate_leaves_a_running_orion_alone(state_dir: Path) -> None:
    """It names the owner of the state directory's lock; without a store there is nothing to do."""
    code = (
        "import sys, pathlib\nfrom app.store.engine import own_state_directory\n"
        "with own_state_directory(pathlib.Path(sys.argv[1])):\n    print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(state_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert f"pid {holder.pid}" in orion(state_dir, "migrate")
    (state_dir / "orion.db").unlink()
    shown = _run(state_dir, "migrate")
    assert (shown.returncode, "not there yet" in shown.stdout) == (0, True)
    assert not (state_dir / "orion.db").exists()


def test_a_state_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """A file stands in its place."""
    (tmp_path / "file").write_text("")
    for command in (("serve",), ("runs", "list"), ("migrate",)):
        said = orion(tmp_path / "file" / "state", *command)
        assert said.startswith("ORION_STATE_DIR=")
        assert "cannot be used: Not a directory" in said


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        yield Path(directory)


def test_a_state_directory_of_another_user_is_named_with_who_has_to_own_it(
    open_to_all: Path,
) -> None:
    """As a container finds it that was started before the directory was made for it."""
    open_to_all.chmod(0o755)
    state = open_to_all / "state"
    state.mkdir(mode=0o500)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    try:
        with (
            pytest.raises(PermissionError, match=r"state cannot be written to by user \d+, who"),
            own_state_directory(state),
        ):
            pass
    finally:
        if is_root:
            os.seteuid(0)
