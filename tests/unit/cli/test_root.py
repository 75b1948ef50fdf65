"""The command line as a process."""

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from app.store.runs import open_store
from tests.forking import run_forked


def orion(*args: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    own = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path.cwd()), "HOME": str(cwd)}
    return run_forked("app.cli", *args, environment=own | env, directory=cwd)


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    """`orion --help` names the commands and loads neither the engine nor Slack nor FastAPI."""
    shown = orion("--help", cwd=tmp_path)
    assert shown.returncode == 0
    for command in (
        "serve",
        "playground",
        "verify",
        "doctor",
        "migrate",
        "manifest",
        "runs",
        "snapshots",
    ):
        assert command in shown.stdout
    code = "import sys, app.cli; print([m for m in ('slack_bolt', 'fastapi', 'sqlalchemy', 'langfuse') if m in sys.modules])"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert loaded.stdout.strip() == "[]"


def test_bad_settings_are_a_usage_error(tmp_path: Path) -> None:
    """All bad settings are named in one go, without a traceback, with exit code 2."""
    shown = orion("serve", cwd=tmp_path, ORION_PORT="x", ORION_SANDBOX="mars")
    assert shown.returncode == 2
    assert "ORION_PORT" in shown.stderr
    assert "ORION_SANDBOX" in shown.stderr
    assert "Traceback" not in shown.stderr
    missing = orion("serve", cwd=tmp_path)
    assert missing.returncode == 2
    assert "SLACK_BOT_TOKEN" in missing.stderr
    assert "ANTHROPIC_API_KEY" in missing.stderr


@pytest.mark.parametrize(
    "args",
    [
        ("playground", "--port", "99999"),
        ("playground", "--port", "-1"),
        ("sandboxes", "clean", "--days", "-1"),
        ("sandboxes", "clean", "--days", "inf"),
        ("sandboxes", "logs", "x", "--tail", "-1"),
        ("runs", "list", "--limit", "0"),
        ("runs", "cost", "--days", "0"),
    ],
)
def test_a_number_out_of_range_is_a_usage_error(args: tuple[str, ...], tmp_path: Path) -> None:
    """It names its option, and nothing is begun with it."""
    refused = orion(*args, cwd=tmp_path)
    assert refused.returncode == 2
    assert f"Invalid value for '{args[-2]}'" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "args",
    [
        ("--events-url", "http://127.0.0.1:3000/slack/events"),
        ("--without-orion", "--events-url", "127.0.0.1:3000/slack/events"),
    ],
)
def test_an_events_url_of_no_use_is_a_usage_error(args: tuple[str, ...], tmp_path: Path) -> None:
    """The playground's own Orion is posted to by itself, and of a stand-in that waits for nothing nobody would hear."""
    refused = orion("playground", *args, cwd=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr.startswith("--events-url: ")
    assert not list(tmp_path.iterdir())


def test_runs_of_no_state(tmp_path: Path) -> None:
    """A state directory in which no Orion has run is named, and gets no database by being looked at."""
    state = tmp_path / "mistyped"
    for args in (("list", "--json"), ("show", "run_x"), ("stop", "run_x")):
        shown = orion("runs", *args, cwd=tmp_path, ORION_STATE_DIR=str(state))
        assert shown.returncode == 1
        assert str(state) in shown.stderr
        assert "Traceback" not in shown.stderr
    assert not list(state.glob("*"))


def test_runs_of_an_empty_database(tmp_path: Path) -> None:
    """Listing nothing is fine; showing or stopping what is not there is a clear failure."""

    async def make() -> None:
        async with open_store(tmp_path / "orion.db"):
            pass

    asyncio.run(make())
    state = str(tmp_path)
    assert orion("runs", "list", "--json", cwd=tmp_path, ORION_STATE_DIR=state).stdout == "[]\n"
    for command in ("show", "stop"):
        shown = orion("runs", command, "run_x", cwd=tmp_path, ORION_STATE_DIR=state)
        assert shown.returncode == 1
        assert shown.stderr == "no runs have an id beginning with 'run_x'\n"


@pytest.mark.parametrize(
    "args", [("show", ""), ("show", "run_"), ("show", "", "--log"), ("stop", "run_")]
)
def test_which_run_must_be_said(args: tuple[str, ...], tmp_path: Path) -> None:
    """What all ids begin with is none: a usage error, also where there are no runs."""
    shown = orion("runs", *args, cwd=tmp_path)
    told = "say which run: its id, or the beginning of it\n"
    assert (shown.returncode, shown.stderr) == (2, told)


@pytest.mark.parametrize("args", [[], ["x", "--old"]])
def test_what_to_remove_must_be_said(args: list[str], tmp_path: Path) -> None:
    """Either names or all old ones: anything else is a usage error."""
    shown = orion("snapshots", "rm", *args, cwd=tmp_path)
    assert (shown.returncode, shown.stderr) == (2, "say which: names, or --old\n")


@pytest.mark.parametrize("args", [[], ["--public-url", "https://orion.example"]])
def test_manifest_is_json(args: list[str], tmp_path: Path) -> None:
    """The manifest is for a socket, or for HTTP when there is an address."""
    made = json.loads(orion("manifest", *args, cwd=tmp_path).stdout)
    assert made["settings"]["socket_mode_enabled"] is (not args)
    url = made["settings"]["event_subscriptions"].get("request_url")
    assert url == (f"{args[1]}/slack/events" if args else None)


@pytest.mark.parametrize("url", ["foo", "http://orion.example", "https://", "https://a b"])
def test_manifest_for_no_address(url: str, tmp_path: Path) -> None:
    """Slack sends events to https only; anything else is named before somebody pastes it."""
    refused = orion("manifest", "--public-url", url, cwd=tmp_path)
    assert refused.returncode == 2
    assert repr(url) in refused.stderr
    assert not refused.stdout


def test_a_busy_state_directory_is_named(tmp_path: Path) -> None:
    """A second owner of a state directory is refused with the first one's pid."""
    code = (
        "import sys, time, pathlib\nfrom app.store.engine import own_state_directory\n"
        "with own_state_directory(pathlib.Path(sys.argv[1])):\n    print('held', flush=True); time.sleep(30)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        second = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        holder.kill()
    assert f"pid {holder.pid}" in second.stderr
    time.sleep(0.1)
    third = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    with third:
        assert third.stdout is not None
        assert third.stdout.readline() == "held\n"
        third.kill()


@pytest.mark.parametrize("arguments", [["worker"], ["serve", "--no-work"]])
def test_what_works_beside_others_needs_a_server(arguments: list[str], tmp_path: Path) -> None:
    """On SQLite it ends with 2, and says what to set."""
    done = orion(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert "set ORION_DATABASE_URL to a postgresql:// URL" in done.stderr
