"""What was said while Orion was down, as the whole service answers it: late, once, in order, over both ways in."""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic

import pytest

from app.playground.slack.types import COLLEAGUE, YOU, FakeSlackConfig
from app.runs.testing import Run, RunState
from app.store.runs import open_store
from tests.e2e.conftest import OpenOrion
from tests.e2e.harness import (
    Stage,
    World,
    has_stop_button,
    open_orion,
    open_world,
    part_of,
    run_of,
    text_of,
)
from tests.waiting import POLL_S

pytestmark = [pytest.mark.e2e, pytest.mark.bubblewrap, pytest.mark.timeout(400)]

FIRST_WITHIN_S = 30.0
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
HTTP, SOCKET = "http", "socket"
PLACES = (("general", YOU), ("random", YOU), ("D0YOU", YOU), ("D0SAM", COLLEAGUE))


def _settings(world: World, way: str) -> dict[str, str]:
    return {"SLACK_APP_TOKEN": world.config.app_token} if way == SOCKET else {}


async def _leave(stage: Stage, away: timedelta) -> None:
    """As if it had been killed so long ago, once it had noted that it hears."""
    assert isinstance(stage.orion.database, Path)
    async with asyncio.timeout(FIRST_WITHIN_S):
        while not stage.orion.has_heard():
            await asyncio.sleep(POLL_S)
    stage.orion.kill_group()
    assert await stage.orion.died(timeout_s=10)
    with closing(sqlite3.connect(stage.orion.database)) as database, database:
        database.execute("UPDATE orion_heard SET until = until - ?", [away.total_seconds()])


def _say(stage: Stage, text: str, ago: timedelta, place: int, thread_ts: str | None = None) -> str:
    """Slack never tells of it."""
    channel, user = PLACES[place]
    workspace = stage.world.fake_slack.workspace
    ts = f"{(datetime.now(UTC) - ago).timestamp():.6f}"
    said = workspace.say(user=user, channel_ref=channel, typed=text, thread_ts=thread_ts, ts=ts)
    return said.ts


async def _first_answer(stage: Stage, *, since_s: float) -> float:
    """Seconds until Orion's first finished answer stands anywhere."""
    messages = stage.world.fake_slack.workspace.messages
    async with asyncio.timeout(FIRST_WITHIN_S * 3):
        while True:
            for channel in messages.values():
                for message in list(channel.values()):
                    shown = {"blocks": message.blocks}
                    if message.is_bot and message.blocks and not has_stop_button(shown):
                        return monotonic() - since_s
            await asyncio.sleep(POLL_S)


async def _records(stage: Stage) -> Sequence[Run]:
    async with open_store(stage.orion.database) as store:
        return await store.recent(limit=1_000)


async def _all_ended(stage: Stage, count: int, *, timeout_s: float) -> Sequence[Run]:
    async with asyncio.timeout(timeout_s):
        while True:
            runs = await _records(stage)
            if len(runs) >= count and all(run.state.is_final for run in runs):
                return sorted(runs, key=lambda run: run.request.message_ts)
            await asyncio.sleep(0.5)


@pytest.mark.long
@pytest.mark.parametrize("way", [HTTP, pytest.param(SOCKET, marks=pytest.mark.long)])
async def test_what_was_said_meanwhile_is_answered(
    world: World, start_orion: OpenOrion, way: str
) -> None:
    """A mention, one in the thread below it, and a private question; each says that it comes late. What was taken back is not."""
    async with start_orion(world, **_settings(world, way)) as stage:
        before = await stage.client.say("@Orion before")
        await stage.answer(before)
        await _leave(stage, HOUR)
        await stage.client.switches(outage=True)
        first = _say(stage, "@Orion first", 50.5 * MINUTE, 0)
        second = _say(stage, "@Orion second", 40.5 * MINUTE, 0, first)
        private = _say(stage, "a private one", 30.5 * MINUTE, 2)
        _say(stage, "@Orion never mind", 20 * MINUTE, 1)
        withdrawn = _say(stage, "@Orion do something dangerous", 20 * MINUTE, 0)
        _say(stage, "stop", 19 * MINUTE, 0, withdrawn)
        late = list(world.fake_slack.workspace.messages[stage.channel_id("random")])[-1]
        await stage.client.delete(late, channel="random")
        await stage.client.switches(outage=False)
        started_s = monotonic()
        await stage.orion.start()
        answer = await stage.answer(first)
        assert monotonic() - started_s < FIRST_WITHIN_S
        assert "asked 50 min ago, while I was away" in text_of(answer)
        assert "first" in text_of(answer)
        assert "asked 40 min ago" in text_of(await stage.answer(second, thread_ts=first))
        assert "asked 30 min ago" in text_of(await stage.answer(private, channel="D0YOU"))
        runs = await _records(stage)
        assert len(runs) == 4
        assert "while I was away" not in text_of(await stage.answer(before))
        now = await stage.client.say("@Orion and now")
        assert "while I was away" not in text_of(await stage.answer(now))


async def test_a_clock_that_is_wrong(
    world: World, state_dir: Path, prepared: Path, tmp_path: Path
) -> None:
    """This machine's is three hours ahead; Slack's counts, so nothing is taken for heard."""
    skew = tmp_path / "skew"
    skew.write_text(str(3 * 3600))
    command = ("tests.e2e.skewed_server", str(skew))
    token = world.config.app_token
    async with open_orion(
        world, state_dir, prepared, command=command, SLACK_APP_TOKEN=token
    ) as stage:
        await stage.answer(await stage.client.say("@Orion before"))
        await _leave(stage, 5 * MINUTE)
        await stage.client.switches(outage=True)
        asked = _say(stage, "@Orion meanwhile", 3.5 * MINUTE, 0)
        await stage.client.switches(outage=False)
        await stage.orion.start()
        assert "asked 3 min ago" in text_of(await stage.answer(asked))


OpenInstant = Callable[[World, str], AbstractAsyncContextManager[Stage]]


@pytest.fixture
def open_instant(state_dir: Path, prepared: Path, tmp_path: Path) -> OpenInstant:
    """Opens an Orion whose agent answers at once, without a sandbox."""
    command = ("tests.crash.server", str(tmp_path), "--agent", "instant")

    def opened(world: World, way: str) -> AbstractAsyncContextManager[Stage]:
        settings = _settings(world, way)
        return open_orion(world, state_dir, prepared, command=command, **settings)

    return opened


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", [HTTP, SOCKET])
@pytest.mark.parametrize("away", [10 * MINUTE, HOUR, 24 * HOUR], ids=["10 min", "1 h", "24 h"])
async def test_a_hundred_messages_and_kill_9(
    world: World,
    open_instant: OpenInstant,
    record_property: Callable[[str, object], None],
    away: timedelta,
    way: str,
) -> None:
    """It is killed while it catches up, and started again: a hundred answers to a hundred messages, begun in order."""
    async with open_instant(world, way) as stage:
        await _leave(stage, away)
        await stage.client.switches(outage=True)
        roots: dict[int, str] = {}
        step = (away - 2 * MINUTE) / 100
        for number in range(100):
            place = number % len(PLACES)
            is_reply = number % 5 == 4 and place in roots
            ago = away - MINUTE - number * step
            root = roots.get(place) if is_reply else None
            ts = _say(stage, f"@Orion {number}", ago, place, root)
            roots.setdefault(place, ts)
        await stage.client.switches(outage=False)
        started_s = monotonic()
        await stage.orion.launch()
        killed_at = await _kill_once_accepted(stage)
        await stage.orion.launch()
        first_s = await _first_answer(stage, since_s=started_s)
        runs = await _all_ended(stage, 100, timeout_s=500)
        last_s = monotonic() - started_s
        for what, figure in (
            ("accepted at the kill", killed_at),
            ("to the first late answer [s]", round(first_s, 1)),
            ("to the last [s]", round(last_s, 1)),
        ):
            record_property(f"catch-up, 100 messages, {away}, {way}: {what}", figure)
        assert first_s < FIRST_WITHIN_S
        assert [run.request.text for run in runs] == [str(number) for number in range(100)]
        assert {(run.state, run.delivery) for run in runs} == {(RunState.SUCCEEDED, "sent")}
        assert all(run.request.late_s for run in runs)
        _assert_once(stage)
        _assert_in_order(runs)
        _assert_none_was_passed(stage, runs)


async def _kill_once_accepted(stage: Stage) -> int:
    """Kills it as soon as the first message is accepted; returns how many are."""
    count = 0
    async with asyncio.timeout(60):
        while not count:
            assert isinstance(stage.orion.database, Path)
            with closing(sqlite3.connect(stage.orion.database)) as database:
                (count,) = database.execute("SELECT count(*) FROM orion_runs").fetchone()
            await asyncio.sleep(0.005)
    stage.orion.kill_group()
    assert await stage.orion.died(timeout_s=10)
    return count


def _assert_once(stage: Stage) -> None:
    workspace = stage.world.fake_slack.workspace
    shown = [
        workspace.render(message, with_metadata=True)
        for channel in workspace.messages.values()
        for message in channel.values()
        if message.is_bot
    ]
    answers = Counter(run_of(message) for message in shown if part_of(message) == 0)
    assert len(answers) == 100
    assert set(answers.values()) == {1}
    assert not any(has_stop_button(message) for message in shown)


def _assert_none_was_passed(stage: Stage, runs: Sequence[Run]) -> None:
    """People take turns; those of a person's that wait for none before them in their thread are taken up as they were asked."""
    assert isinstance(stage.orion.database, Path)
    with closing(sqlite3.connect(stage.orion.database)) as database:
        claimed = dict(database.execute("SELECT id, claimed_at FROM orion_runs"))
    for person in (YOU, COLLEAGUE):
        own = [run for run in runs if run.request.user == person and run.request.is_root]
        taken_up = [claimed[run.id] for run in own]
        assert taken_up == sorted(taken_up)


def _assert_in_order(runs: Sequence[Run]) -> None:
    threads: dict[str, list[Run]] = {}
    for run in runs:
        threads.setdefault(run.thread.key, []).append(run)
    for thread in threads.values():
        begun = [run.started_at for run in thread]
        assert begun == sorted(begun, key=lambda at: at or datetime.now(UTC))


async def test_doctor_names_the_scopes_that_are_missing(start_orion: OpenOrion) -> None:
    """An app with a manifest of before works, finds less, and says so."""
    scopes = FakeSlackConfig().scopes - {"im:read", "mpim:read"}
    async with (
        open_world(FakeSlackConfig(rate_limits="off", scopes=scopes)) as world,
        start_orion(world) as stage,
    ):
        _, told = await stage.cli("doctor")
    for kind, scope in (("direct messages", "im:read"), ("group messages", "mpim:read")):
        assert f"catching up in {kind} (lacks {scope})" in " ".join(told.split())
