"""Two processes of one Orion of which something is wrong with one, or with their database: each question ends once, and nothing is left behind."""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
import pytest

from app.runs.testing import RunState
from app.store.migrations import VERSIONS, migrate_store, newest_version
from tests.e2e.conftest import OpenOrion
from tests.e2e.fault_table import fault
from tests.e2e.harness import Stage, World, beside, text_of
from tests.e2e.orion_process import OrionProcess
from tests.relay import CuttingProxy, open_cutting_proxy
from tests.waiting import until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.bubblewrap,
    pytest.mark.postgresql,
    pytest.mark.timeout(420),
]

FRONT, WORKER = ("app.cli", "serve", "--no-work"), ("app.cli", "worker")
SLOW_WORDS = "offline model and I write"
AWAY_S = 20.0
SKEW_S = 600
GIVEN_UP_WITHIN_S = 150.0
"""After the agent's end: its record is tried to be written for a minute, and what its thread keeps for another one."""


@asynccontextmanager
async def _worker(stage: Stage, name: str = "worker") -> AsyncIterator[OrionProcess]:
    worker = beside(stage.orion, name, command=WORKER)
    try:
        yield worker
    finally:
        await worker.reap()
    assert worker.tracebacks() == []


async def _ask_slowly(stage: Stage, seconds: int) -> str:
    """Returns once the agent writes."""
    ts = await stage.client.say(f"@Orion !slow {seconds}")
    await stage.client.wait_for_reply(ts, lambda reply: SLOW_WORDS in text_of(reply))
    return ts


async def _answered_once(stage: Stage, ts: str) -> None:
    await stage.answer(ts)
    assert len(await stage.bot_messages(ts)) == 1


@pytest.mark.long
async def test_a_database_that_is_away_for_20_s(
    world: World, start_orion: OpenOrion, postgres_url: str
) -> None:
    """In the middle of a run: the agent works on, the run goes on where it was, and what is asked meanwhile is answered afterwards."""
    async with (
        open_cutting_proxy(postgres_url) as proxy,
        start_orion(world, ORION_DATABASE_URL=proxy.url, command=FRONT) as stage,
        _worker(stage) as worker,
    ):
        await worker.start()
        ts = await _ask_slowly(stage, 30)
        proxy.cut()
        await asyncio.sleep(AWAY_S)
        proxy.mend()
        late = await stage.client.say("@Orion hello")
        for asked in (ts, late):
            await _answered_once(stage, asked)
        record = await stage.record(ts)
        assert record.attempt == 1
        fault("PostgreSQL: away for 20 s in the middle of a run").assert_holds(record)


@pytest.mark.long
async def test_a_database_that_does_not_come_back(
    world: World, start_orion: OpenOrion, postgres_url: str
) -> None:
    """The agent's end cannot be written down: its sandbox goes all the same, Slack is told 500, and the processes end in order. Brought back later, it is told."""
    async with (
        open_cutting_proxy(postgres_url) as proxy,
        start_orion(world, ORION_DATABASE_URL=proxy.url, command=FRONT) as stage,
        _worker(stage) as worker,
    ):
        await worker.start()
        # It ends while the lease is sure: later its process would wait for five minutes whether the run is still its own.
        ts = await _ask_slowly(stage, 5)
        proxy.cut()
        unheard = await stage.client.say("@Orion hello")
        refused = await stage.deliveries(unheard, at_least=1)
        assert {one["status"] for one in refused} == {500}
        await until(lambda: not worker.sandbox_processes(), timeout_s=GIVEN_UP_WITHIN_S)
        await until(lambda: not worker.sandbox_directories(), timeout_s=GIVEN_UP_WITHIN_S)
        assert await worker.terminate() == 0
        assert await stage.orion.terminate() == 0
        await _back(proxy, stage.orion, worker)
        await _answered_once(stage, ts)
        fault("PostgreSQL: gone until no sandbox is left, and brought back").assert_holds(
            await stage.record(ts)
        )


async def _back(proxy: CuttingProxy, *processes: OrionProcess) -> None:
    proxy.mend()
    for process in processes:
        await process.start()


@pytest.mark.long
@pytest.mark.parametrize("skew_s", [SKEW_S, -SKEW_S])
async def test_the_clock_of_one_process_is_wrong(
    world: World, start_orion: OpenOrion, postgres_url: str, tmp_path: Path, skew_s: int
) -> None:
    """It does its work, is not taken for dead, and takes nobody else for dead; when it is killed another goes on."""
    skew = tmp_path / "skew"
    skew.write_text(str(skew_s))
    async with (
        start_orion(world, ORION_DATABASE_URL=postgres_url, command=FRONT) as stage,
        _worker(stage, "skewed") as skewed,
        _worker(stage) as right,
    ):
        # Not forked (so it begins with -u): what imports a clock must do so after it has been replaced.
        skewed.program = ("-u", "-m", "tests.e2e.skewed_server", str(skew), "worker")
        await skewed.start()
        ts = await _ask_slowly(stage, 20)
        await right.start()
        await _answered_once(stage, ts)
        record = await stage.record(ts)
        assert (record.state, record.attempt) == (RunState.SUCCEEDED, 1)
        fault("Processes: the clock of one is off by 10 min").assert_holds(record)
        assert skewed.log_lines("lease.lost") == right.log_lines("lease.lost") == []
        await right.terminate()
        ts = await _ask_slowly(stage, 20)
        await right.start()
        os.kill(skewed.pid, signal.SIGKILL)
        await _answered_once(stage, ts)
        assert (await stage.record(ts)).attempt == 2


@pytest.mark.long
async def test_who_was_away_while_a_newer_orion_changed_the_tables_ends(
    world: World, start_orion: OpenOrion, postgres_url: str, tmp_path: Path
) -> None:
    """It comes back and finds tables that it cannot read: it ends with the sentence with which it would not start, in the middle of a run."""
    tomorrow = tmp_path / "tomorrow"
    shutil.copytree(VERSIONS, tomorrow, ignore=shutil.ignore_patterns("__pycache__"))
    newest = newest_version()
    (tomorrow / f"v{newest + 1}_nothing.py").write_text(
        f'revision, down_revision = "{newest + 1}", "{newest}"\n\n\ndef upgrade() -> None:\n    pass\n'
    )
    async with (
        start_orion(world, ORION_DATABASE_URL=postgres_url) as stage,
        await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as connection,
    ):
        await _ask_slowly(stage, 20)
        await connection.execute("UPDATE orion_processes SET alive_until = 1")
        await asyncio.to_thread(migrate_store, postgres_url, versions=tomorrow)
        assert await stage.orion.died(timeout_s=40)
        assert stage.orion.exit_code == 1
        said = stage.orion.log.splitlines()[-1]
        assert f"was written by a newer Orion (its tables have version {newest + 1}" in said
        assert "update Orion" in said
        await until(lambda: not stage.orion.sandbox_processes(), timeout_s=5)
