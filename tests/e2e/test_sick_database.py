"""A sick database: Slack is told 500 in time and delivers again; afterwards each question is one run and one answer."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.playground.slack.types import FakeSlackConfig
from app.runs.testing import RunState
from app.slack.actions import STOP_ACTION
from sandbox_runtime.task_group import open_task_group
from tests.e2e.conftest import OpenOrion
from tests.e2e.disks import filled, read_only, small_disk
from tests.e2e.fault_table import fault
from tests.e2e.harness import Stage, open_orion, open_world, text_of
from tests.e2e.orion_process import new_state_dir

pytestmark = [pytest.mark.e2e, pytest.mark.bubblewrap, pytest.mark.timeout(240)]

REFUSED_WITHIN_MS = 2_500
"""Orion gives up after two seconds; Slack waits three."""
LOCKED_S = 11.0
"""Longer than a call of the store may take."""
DISK_MIB = 256
"""Holds the agent's environment (80 MiB) and a few runs."""
PATIENT = FakeSlackConfig(rate_limits="off", retry_delays_s=(0.0, *[2.0] * 30))
"""Delivers again until the database is well."""


@pytest.mark.alone
async def test_a_locked_database_refuses_in_time_and_loses_nothing(
    start_orion: OpenOrion, record_property: Callable[[str, object], None]
) -> None:
    """Messages and buttons; a run that is going meanwhile ends once, and the service lives on."""
    async with open_world(PATIENT) as world, start_orion(world) as stage:
        going = await stage.client.say("@Orion !slow 30")
        message = await stage.thinking(going)
        with _locked(stage.orion.state_dir / "orion.db"):
            ts = await stage.client.say("@Orion locked out")
            async with open_task_group() as group:
                presses = [
                    group.create_task(stage.client.press(message, STOP_ACTION)) for _ in range(3)
                ]
            assert [press.result()["status"] for press in presses] == [500] * 3
            await asyncio.sleep(LOCKED_S)
        await _assert_refused_then_answered(stage, ts, record_property)
        fault("Database: locked by another process").assert_holds(await stage.record(ts))
        await stage.client.say("stop", thread_ts=going)
        await stage.answer(going)
        assert (await stage.record(going)).state in {RunState.STOPPED, RunState.FAILED}
        assert len(await stage.bot_messages(going)) == 1


@pytest.mark.long
@pytest.mark.mounts
async def test_a_full_and_a_read_only_disk_refuse_and_lose_nothing(
    tmp_path: Path, prepared: Path, record_property: Callable[[str, object], None]
) -> None:
    """A file system of its own: neither a quota nor a limit on the process gives SQLite a true ENOSPC, or EROFS."""
    with small_disk(tmp_path / "disk", mib=DISK_MIB) as disk:
        state_dir = new_state_dir(tmp_path)  # a link: the log beside it stays off the sick disk
        (disk / "state").mkdir(mode=0o700)
        state_dir.symlink_to(disk / "state")
        async with open_world(PATIENT) as world, open_orion(world, state_dir, prepared) as stage:
            assert "well" in await stage.ask("@Orion still well")
            with filled(disk):
                ts = await stage.client.say("@Orion no room")
                await asyncio.sleep(3)
                assert (await world.http.get(f"{stage.orion.url}/healthz")).is_success
                ready = await world.http.get(f"{stage.orion.url}/readyz")
                assert ready.status_code == 503
                assert "No space left" in ready.json()["database"]["detail"]
            await _assert_refused_then_answered(stage, ts, record_property)
            fault("Database: full disk").assert_holds(await stage.record(ts))

            assert await stage.orion.terminate() == 0
            with read_only(disk):
                asked = await stage.client.say("@Orion written in stone")
                with pytest.raises(AssertionError, match=r"orion cannot start: .*[Rr]ead-only"):
                    await stage.orion.start()
                assert stage.orion.exit_code == 1
            await stage.orion.start()
            await _assert_answered_once(stage, asked)
            row = fault("Database: read-only disk at the start")
            row.assert_holds(await stage.record(asked))


async def _assert_refused_then_answered(
    stage: Stage, ts: str, record_property: Callable[[str, object], None]
) -> None:
    """Every attempt that was not taken was told so in time; both events of the mention are one answer."""
    await _assert_answered_once(stage, ts)
    refused = [entry for entry in await stage.deliveries(ts) if entry["status"] != 200]
    assert refused
    assert {entry["status"] for entry in refused} == {500}
    slowest_ms = max(entry["latency_ms"] for entry in refused)
    record_property("sick database: 500 after at most [ms]", slowest_ms)
    assert slowest_ms < REFUSED_WITHIN_MS
    async with asyncio.timeout(20):
        while len([e for e in await stage.deliveries(ts) if e["status"] == 200]) < 2:
            await asyncio.sleep(0.1)
    assert len(await stage.client.replies(ts)) == 1


async def _assert_answered_once(stage: Stage, ts: str) -> None:
    assert "You wrote" in text_of(await stage.answer(ts))
    assert len(await stage.client.replies(ts)) == 1
    assert (await stage.record(ts)).attempt == 1


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Another connection's transaction holds the write lock while inside."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=10)
    try:
        connection.execute("BEGIN EXCLUSIVE")
        yield
    finally:
        connection.close()  # rolls back
