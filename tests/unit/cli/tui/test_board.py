"""`orion tui` with a pilot at its keys, over a real store: what it shows, what its keys do, and what is strange."""

import re
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, RichLog, Static

from app.cli.tui.board import Board, count, left, percent, share, size
from app.cli.tui.board import fill as show_rows
from app.cli.tui.office import FilterError, Office, open_office, plain, read_filter
from app.cli.tui.windows import Detail, Keys
from app.errors import ErrorCode
from app.runs.progress import LiveLogs
from app.runs.testing import Outcome, Run, RunState, Session, SessionStatus, session_id_for
from app.settings.settings import load_settings
from app.store.runs import SqlRunStore, open_store
from tests.building import make_request, make_run
from tests.ports import free_port
from tests.unit.operators.building import SCRIPT, fill
from tests.waiting import until


@asynccontextmanager
async def open_deployment(directory: Path) -> AsyncIterator[tuple[Office, SqlRunStore, Run]]:
    given = {"orion_state_dir": str(directory), "orion_sandbox": "local"}
    settings = load_settings(env_file=None, given=given, toml=None)
    async with open_store(directory / "orion.db") as store:
        failed = await fill(store)
        async with open_office(settings) as office:
            yield office, store, failed


@pytest.fixture
async def deployment(tmp_path: Path) -> AsyncIterator[tuple[Office, SqlRunStore, Run]]:
    async with open_deployment(tmp_path) as deployment:
        yield deployment


def rows_of(pilot: Pilot[None]) -> int:
    return pilot.app.query_one("#runs", DataTable).row_count


def state_of(pilot: Pilot[None]) -> str:
    return str(pilot.app.query_one("#state", Static).content)


def text_at(pilot: Pilot[None], selector: str) -> str:
    """What stands there; empty as long as its screen is not drawn."""
    found = pilot.app.screen.query(selector)
    return str(found.first(Static).content) if found else ""


def detail_of(pilot: Pilot[None]) -> str:
    return text_at(pilot, "#detail")


async def box_at(pilot: Pilot[None], selector: str) -> Input:
    """A field of a screen that is about to be drawn."""
    await until(lambda: bool(pilot.app.screen.query(selector)))
    return pilot.app.screen.query_one(selector, Input)


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (20, 10), (10, 3)])
async def test_runs_are_shown_in_any_terminal(
    deployment: tuple[Office, SqlRunStore, Run], size: tuple[int, int]
) -> None:
    """Also in one of 20 columns, and one that changes."""
    office, _, _ = deployment
    async with Board(office).run_test(size=size) as pilot:
        await until(lambda: rows_of(pilot) == 5)
        assert "3 going, 1 waiting, 5 shown" in state_of(pilot)
        await pilot.resize_terminal(40, 12)
        await pilot.resize_terminal(*size)
        assert rows_of(pilot) == 5


async def test_records_that_cannot_be_read_are_told(
    deployment: tuple[Office, SqlRunStore, Run], tmp_path: Path
) -> None:
    """From the first look on, which begins before there is a screen; and no more once they can be."""
    office, _, _ = deployment
    with sqlite3.connect(tmp_path / "orion.db") as database:
        database.execute("ALTER TABLE orion_runs RENAME TO elsewhere")
    async with Board(office).run_test() as pilot:
        await until(lambda: "the records cannot be read" in state_of(pilot))
        with sqlite3.connect(tmp_path / "orion.db") as database:
            database.execute("ALTER TABLE elsewhere RENAME TO orion_runs")
        await until(lambda: rows_of(pilot) == 5)


async def test_runs_are_filtered_by_words(deployment: tuple[Office, SqlRunStore, Run]) -> None:
    """A word that is none is told, and changes nothing."""
    office, _, _ = deployment
    async with Board(office).run_test(size=(100, 30)) as pilot:
        await until(lambda: rows_of(pilot) == 5)
        await pilot.press("f", *"state=failed", "enter")
        await until(lambda: rows_of(pilot) == 1)
        await pilot.press("f")
        pilot.app.query_one("#filter", Input).value = "mood=good"
        await pilot.press("enter")
        await until(lambda: "mood" in told(pilot))
        assert rows_of(pilot) == 1
        pilot.app.query_one("#filter", Input).value = ""
        await pilot.press("enter")
        await until(lambda: rows_of(pilot) == 5)


async def test_one_run_is_shown_whole_until_it_vanishes(
    deployment: tuple[Office, SqlRunStore, Run],
) -> None:
    """With its steps and answer, as text that harms no terminal."""
    office, store, failed = deployment
    async with Board(office).run_test(size=(100, 40)) as pilot:
        await until(lambda: rows_of(pilot) == 5)
        pilot.app.push_screen(Detail(office, failed.id))
        await pilot.pause()
        await until(lambda: "execute-agent" in detail_of(pilot))
        assert SCRIPT in detail_of(pilot)
        assert "AGENT_IDLE" in detail_of(pilot)
        later = datetime.now(UTC) + timedelta(days=1)
        await store.remove_ended(before=later, limit=10)
        await until(lambda: "is gone" in detail_of(pilot))


async def test_a_run_is_stopped_and_asked_again(
    deployment: tuple[Office, SqlRunStore, Run],
) -> None:
    """By a key on its line."""
    office, store, failed = deployment
    async with Board(office).run_test(size=(100, 40)) as pilot:
        await until(lambda: rows_of(pilot) == 5)
        table = pilot.app.query_one("#runs", DataTable)
        going = [run.id for run in await store.recent(limit=9) if run.state is RunState.RUNNING]
        table.move_cursor(row=table.get_row_index(going[0]))
        await pilot.press("s")
        await until(lambda: bool(pilot.app._notifications))
        stopped = await store.get(going[0])
        assert stopped is not None
        assert stopped.stop_requested_by == "operator"
        table.move_cursor(row=table.get_row_index(failed.id))
        await pilot.press("t")
        await until(lambda: rows_of(pilot) == 6)


async def test_a_new_run_comes_by_itself(deployment: tuple[Office, SqlRunStore, Run]) -> None:
    """And the line that is chosen stays chosen."""
    office, store, failed = deployment
    async with Board(office).run_test(size=(100, 40)) as pilot:
        await until(lambda: rows_of(pilot) == 5)
        table = pilot.app.query_one("#runs", DataTable)
        table.move_cursor(row=table.get_row_index(failed.id))
        new = make_run(make_request(text="just now", ts="1795302390.000100"))
        await store.add(replace(new, created_at=datetime.now(UTC)))
        await until(lambda: rows_of(pilot) == 6)
        assert table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value == failed.id


async def test_brackets_are_no_markup(deployment: tuple[Office, SqlRunStore, Run]) -> None:
    """In a question; a tag that ends what never began would end the terminal."""
    office, store, _ = deployment
    text = "[/b] [red]why[/red] a[0]?"
    await store.add(make_run(make_request(text=text, ts="1795302391.000100")))
    async with Board(office).run_test(size=(100, 40)) as pilot:
        await until(lambda: rows_of(pilot) == 6)
        table = pilot.app.query_one("#runs", DataTable)
        assert text in [str(cell) for key in table.rows for cell in table.get_row(key)]
        await pilot.press("f", *"[/b]", "enter")
        await until(lambda: bool(pilot.app._notifications))


async def test_of_the_same_lines_only_what_has_changed_is_touched(
    deployment: tuple[Office, SqlRunStore, Run],
) -> None:
    """A cell becomes longer, and the line that is chosen stays chosen."""
    office, _, _ = deployment
    async with Board(office).run_test(size=(100, 40)) as pilot:
        await until(lambda: rows_of(pilot) == 5)
        table = pilot.app.query_one("#sandboxes", DataTable)
        lines = {name: [name, *["-"] * 8] for name in "abc"}
        show_rows(table, lines)
        table.move_cursor(row=1)
        kept = table.get_row("a")[0]
        show_rows(table, lines | {"b": ["b", "a longer name", *["-"] * 7]})
        assert [str(cell) for cell in table.get_row("b")][:2] == ["b", "a longer name"]
        assert table.get_row("a")[0] is kept
        assert table.cursor_row == 1
        show_rows(table, {"c": lines["c"]})
        assert table.row_count == 1


def test_its_start_loads_neither_slack_nor_a_server() -> None:
    """They would take half of it."""
    code = "import sys, app.cli.root, app.cli.tui.board; print([m for m in ('slack_bolt', 'aiohttp', 'fastapi', 'vercel', 'aiodocker') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("text", ["x", "mood=good", "state=flying", "code=NONE", "=x"])
def test_a_filter_that_is_none_is_told(text: str) -> None:
    """With what there is."""
    with pytest.raises(FilterError):
        read_filter(text)


def test_a_filter_is_read() -> None:
    """Each word narrows it."""
    query = read_filter("state=failed user=U1 agent=claude provider=docker code=AGENT_IDLE")
    assert (query.state, query.user, query.provider) == (RunState.FAILED, "U1", "docker")


def test_text_harms_no_terminal() -> None:
    """Neither by escapes nor by marks that turn its direction."""
    assert plain("a\x1b[2Jb\x07c\u202ed\ne") == "a [2Jb c d e"


async def test_where_a_question_runs_is_chosen_by_a_key_or_a_word(
    deployment: tuple[Office, SqlRunStore, Run],
) -> None:
    """With a warning where a cloud has no credentials; a word that names no place is told."""
    office, _, _ = deployment
    async with Board(office).run_test(size=(100, 40)) as pilot:
        await until(lambda: rows_of(pilot) == 5)
        await pilot.press("n")

        def is_in(name: str) -> bool:
            return text_at(pilot, "#place").startswith(f"in {name} ")

        await until(lambda: is_in("local"))
        for name in ("deno", "docker", "vercel", "local"):
            await pilot.press("ctrl+p")
            await until(partial(is_in, name))
        await pilot.press(*"/cloud", "enter")
        await until(lambda: "in vercel " in text_at(pilot, "#place"))
        assert "no credentials: orion setup vercel" in text_at(pilot, "#place")
        await pilot.press(*"/docker", "enter")
        await until(lambda: "in docker " in text_at(pilot, "#place"))
        await pilot.press(*"/provider deno", "enter")
        await until(lambda: "in deno " in text_at(pilot, "#place"))
        await pilot.press(*"/moon", "enter")
        await until(lambda: "there are: local, deno, docker, vercel" in told(pilot))
        assert "in deno " in text_at(pilot, "#place")


def log_of(pilot: Pilot[None]) -> str:
    return "\n".join(line.text for log in pilot.app.screen.query(RichLog) for line in log.lines)


async def test_a_question_may_stand_behind_its_place(
    deployment: tuple[Office, SqlRunStore, Run],
) -> None:
    """It is asked there; what keeps it from being answered is shown."""
    office, _, _ = deployment
    async with Board(office).run_test(size=(100, 40)) as pilot:
        await until(lambda: rows_of(pilot) == 5)
        await pilot.press("n")
        (await box_at(pilot, "#question")).value = "/local what time is it"
        await pilot.press("enter")
        await until(lambda: "> what time is it" in log_of(pilot))


async def test_a_filter_is_left_by_escape(deployment: tuple[Office, SqlRunStore, Run]) -> None:
    """What is wrong does not hold, and stands in no title."""
    office, _, _ = deployment
    async with Board(office).run_test(size=(100, 30)) as pilot:
        await until(lambda: rows_of(pilot) == 5)
        await pilot.press("f", *"state=failed", "enter")
        await until(lambda: "[state=failed]" in state_of(pilot))
        await pilot.press("f", *"x", "enter", "escape")
        await until(lambda: pilot.app.query_one("#filter", Input).value == "state=failed")
        assert "[state=failed]" in state_of(pilot)
        await until(lambda: pilot.app.query_one("#runs", DataTable).has_focus)
        await pilot.press("f", *("backspace",) * 12, "enter")
        await until(lambda: rows_of(pilot) == 5)
        await pilot.press("f", "escape")
        await until(lambda: not pilot.app.query_one("#filter", Input).display)


async def test_a_log_is_followed_while_its_run_goes(
    deployment: tuple[Office, SqlRunStore, Run],
) -> None:
    """Line by line, with the words of its end; of one that has ended what is stored."""
    office, store, failed = deployment
    (going,) = [run for run in await store.unfinished() if run.request.text == "deploy the shop"]
    live = LiveLogs(office.settings.live_logs_dir)
    async with Board(office).run_test(size=(60, 24)) as pilot:
        await until(lambda: rows_of(pilot) == 5)
        table = pilot.app.query_one("#runs", DataTable)
        table.move_cursor(row=table.get_row_index(going.id))
        with live.record(going.id, goes_on=False) as tell:
            await pilot.press("l")
            tell("first line")
            await until(lambda: "first line" in log_of(pilot))
            tell("x" * 70 + " second")
            await until(lambda: "second" in log_of(pilot))
            assert all(len(line) < 60 for line in log_of(pilot).splitlines())
            outcome = Outcome(state=RunState.FAILED, error_code=ErrorCode.AGENT_IDLE)
            await store.update(going.id, state=RunState.FAILED, outcome=outcome)
            await until(lambda: "(AGENT_IDLE)" in log_of(pilot))
        await pilot.press("escape")
        table.move_cursor(row=table.get_row_index(failed.id))
        await pilot.press("l")
        await until(lambda: "alert(1)" in log_of(pilot))


async def test_a_cloud_is_set_up_by_the_states_that_the_command_says(
    deployment: tuple[Office, SqlRunStore, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it needs is asked for, a token unseen; what is wrong is told; and it may be left while it asks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ORION_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("ORION_DENO_API_URL", f"http://127.0.0.1:{free_port()}")
    office, _, _ = deployment
    async with Board(office).run_test(size=(100, 40)) as pilot:
        await until(lambda: rows_of(pilot) == 5)
        await pilot.press("c", "ctrl+p", "enter")
        await until(lambda: "deno: need: DENO_DEPLOY_TOKEN" in log_of(pilot))
        assert "deno: checking: " in log_of(pilot)
        box = pilot.app.screen.query_one("#answer", Input)
        await until(lambda: box.has_focus)
        assert box.password
        await pilot.press("enter")
        box.value = "ddo_secret-of-mine"
        await pilot.press("enter")
        await until(lambda: "deno: need: ORION_SANDBOX_REGION" in log_of(pilot))
        await until(lambda: box.value == "ord")
        assert not box.password
        await pilot.press("enter")
        await until(lambda: "deno: invalid: " in log_of(pilot), timeout_s=40)
        assert "deno: validating: " in log_of(pilot)
        assert "secret-of-mine" not in log_of(pilot)
        await until(lambda: box.has_focus)
        await pilot.press("escape")
        await pilot.pause()
        assert rows_of(pilot) == 5
    assert not (tmp_path / ".env").exists()


async def test_what_cannot_be_done_is_told_and_the_board_stays(
    deployment: tuple[Office, SqlRunStore, Run],
) -> None:
    """A run that goes cannot be asked again; one that was removed meanwhile cannot be stopped."""
    office, store, failed = deployment
    async with Board(office).run_test(size=(100, 40)) as pilot:
        await until(lambda: rows_of(pilot) == 5)
        table = pilot.app.query_one("#runs", DataTable)
        going = [run.id for run in await store.recent(limit=9) if run.state is RunState.RUNNING]
        table.move_cursor(row=table.get_row_index(going[0]))
        await pilot.press("t")
        await until(lambda: "has not failed" in told(pilot))
        table.move_cursor(row=table.get_row_index(failed.id))
        later = datetime.now(UTC) + timedelta(days=1)
        await store.remove_ended(before=later, limit=10)
        await pilot.press("s")
        await until(lambda: "no runs have an id beginning with" in told(pilot))
        await until(lambda: rows_of(pilot) == 4)


def told(pilot: Pilot[None]) -> str:
    return "\n".join(one.message for one in pilot.app._notifications)


async def test_a_sandbox_is_shown_whole(
    deployment: tuple[Office, SqlRunStore, Run],
) -> None:
    """With what is saved of its thread and how to reach it, as is a run of that thread."""
    office, store, failed = deployment
    session = Session(
        id=session_id_for(failed.thread),
        name="brave-otter",
        thread=failed.thread,
        provider="local",
        status=SessionStatus.STOPPED,
        snapshot_slug="snap-1",
        created_at=datetime.now(UTC),
        used_at=datetime.now(UTC),
    )
    await store.sessions.add(session)
    async with Board(office).run_test(size=(100, 60)) as pilot:
        sandboxes = pilot.app.query_one("#sandboxes", DataTable)
        await until(lambda: rows_of(pilot) == 5)
        pilot.app.push_screen(Detail(office, failed.id))
        await pilot.pause()
        await until(lambda: "orion sandboxes shell brave-otter" in detail_of(pilot))
        assert "snap-1 at local" in detail_of(pilot)
        await pilot.press("escape", "tab")
        await until(lambda: sandboxes.row_count == 1)
        await pilot.press("enter")
        await until(lambda: "reach" in text_at(pilot, "#facts"))
        facts = text_at(pilot, "#facts")
        assert re.search(r"^snapshot +snap-1$", facts, re.MULTILINE)
        assert re.search(r"^reach +orion sandboxes shell brave-otter$", facts, re.MULTILINE)
        await pilot.press("escape")
        await pilot.press("f")
        pilot.app.query_one("#filter", Input).value = "provider=docker"
        await pilot.press("enter")
        await until(lambda: sandboxes.row_count == 0)


def test_sandboxes_are_told_in_few_characters() -> None:
    """What is used and what may be; what a provider does not tell is a dash."""
    soon = (datetime.now(UTC) + timedelta(minutes=9.6)).isoformat()
    assert (left(soon), left(None)) == ("10m", "-")
    assert (size(None), size(310 * 2**20), size(4 * 2**30)) == ("", "310M", "4G")
    assert (percent(12.34), percent(0.2), percent(None)) == ("12%", "0%", "")
    assert (count(4.0), count(0.5), count(None)) == ("4", "0.5", "")
    assert share("310M", "4G") == "310M of 4G"
    assert (share("310M", ""), share("", "4G"), share("", "")) == ("310M", "of 4G", "-")


async def test_a_key_in_the_line_can_be_clicked(
    deployment: tuple[Office, SqlRunStore, Run],
) -> None:
    office, _, _ = deployment
    async with Board(office).run_test(size=(100, 30)) as pilot:
        await until(lambda: rows_of(pilot) == 5)
        place = str(pilot.app.query_one(Keys).render()).index("f Filter")
        await pilot.click(Keys, offset=(place, 0))
        await until(lambda: pilot.app.query_one("#filter", Input).has_focus)
