"""What is old and over goes, what is young or unfinished stays, and no message that Slack sends again runs twice."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from app.playground.slack.types import FakeSlackConfig
from sandbox_runtime.task_group import open_task_group
from tests.e2e.conftest import OpenOrion
from tests.e2e.harness import Stage, open_world, text_of

pytestmark = [pytest.mark.e2e, pytest.mark.bubblewrap, pytest.mark.timeout(240)]

REMOVED_WITHIN_S = 60.0


@pytest.mark.long
async def test_old_runs_go_and_nothing_runs_twice(start_orion: OpenOrion) -> None:
    """With records three days old and two days to keep: what has ended goes; what goes on does not, and redeliveries change nothing."""
    config = FakeSlackConfig(rate_limits="off")
    async with open_world(config) as world, start_orion(world, ORION_RETENTION_DAYS="2") as stage:
        async with open_task_group() as group:
            asked = [group.create_task(_asked(stage, text)) for text in ("old", "young")]
        old, young = [task.result() for task in asked]
        going = await stage.client.say("@Orion !slow 90")
        await stage.client.wait_for_reply(
            going, lambda reply: "model and I write" in text_of(reply)
        )
        assert await stage.orion.terminate() == 0
        for ts in (old, going):
            _make_older(stage.orion.state_dir / "orion.db", stage.run_id(ts))
        await stage.orion.start()
        async with asyncio.timeout(REMOVED_WITHIN_S):
            while not (removed := stage.orion.log_lines("retention.removed")):
                await asyncio.sleep(0.2)
        assert [line["runs"] for line in removed] == [1]
        assert await stage.orion.run(stage.run_id(old)) is None
        assert (await stage.record(young)).state == "succeeded"
        again = (young, going)
        for ts in again:
            await _redeliver(stage, ts)
        await _asked(stage, "after all of them")
        assert [len(await stage.bot_messages(ts)) for ts in again] == [1] * len(again)
        await stage.client.say("stop", thread_ts=going)
        await stage.answer(going)
        record = await stage.record(going)
        assert (record.state, record.attempt) == ("stopped", 2)


async def _asked(stage: Stage, text: str) -> str:
    ts = await stage.client.say(f"@Orion {text}")
    await stage.answer(ts)
    return ts


async def _redeliver(stage: Stage, ts: str) -> None:
    """Every event of that message once more; returns when each is acknowledged."""
    first = await stage.deliveries(ts, at_least=2)
    event_ids = {entry["event_id"] for entry in first}
    for event_id in event_ids:
        await stage.client.redeliver(event_id)
    count = len(first) + len(event_ids)
    entries = await stage.deliveries(ts, at_least=count)
    assert [entry["status"] for entry in entries] == [200] * count


def _make_older(database: Path, run_id: str) -> None:
    """By three days."""
    older = "UPDATE orion_runs SET created_at = created_at - 3 * 86400, ended_at = ended_at - 3 * 86400 WHERE id = ?"
    with closing(sqlite3.connect(database, timeout=10)) as connection, connection:
        assert connection.execute(older, (run_id,)).rowcount == 1
