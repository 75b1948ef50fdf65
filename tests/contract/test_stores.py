"""What every run store promises."""

import asyncio
import random
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import fields, replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import anyio
import pytest
import sqlalchemy as sa

from app.errors import ErrorCode
from app.runs.testing import (
    WAITING_STATES,
    Changes,
    Checkpoint,
    EffectiveSetting,
    Outcome,
    QueuePosition,
    Resumption,
    Run,
    RunState,
    RunStore,
    Usage,
)
from app.store.memory import MemoryRunStore
from app.store.runs import SqlRunStore, open_store
from tests.building import T0, make_request, make_run, saying
from tests.contract.building import POSTGRESQL

OpenDatabase = Callable[[], AbstractAsyncContextManager[SqlRunStore]]

CHECKPOINT = Checkpoint(
    choice='{"agent": "claude"}',
    began_at=T0,
    started_at=T0 + timedelta(microseconds=7),
    directory="/work/.orion/1",
    traced_seq=12,
    is_last_start=False,
    session_id="s-1",
    resumed=Resumption.ATTACHED,
    told_usd=(0.5, None),
    notes=("a note",),
)
EFFECTIVE = (EffectiveSetting(name="agent", value="caf\u00e9", source="you"),)
OUTCOME = Outcome(
    state=RunState.FAILED,
    answer="# ü",
    duration_s=12.25,
    steps=3,
    error_code=ErrorCode.AGENT_IDLE,
    detail="d",
    is_told=False,
    stopped_by="U1",
    usage=Usage(input_tokens=1, output_tokens=2, cache_read_tokens=3, model_calls=4),
    changes=Changes(files=1, added=2, removed=3),
    cost_usd=0.0123,
    resumed=Resumption.ATTACHED,
)


def failed(code: ErrorCode) -> Outcome:
    return Outcome(state=RunState.FAILED, error_code=code)


@pytest.fixture(params=["sqlite", POSTGRESQL])
def open_database(request: pytest.FixtureRequest, tmp_path: Path) -> OpenDatabase:
    """Opens one and the same database, as often as it is called."""
    if request.param == "sqlite":
        return partial(open_store, tmp_path / "orion.db")
    return partial(open_store, request.getfixturevalue("postgres_url"))


async def test_add_is_once(store: RunStore) -> None:
    """A second record of the same id changes nothing and is told apart."""
    run = make_run()
    assert await store.add(run)
    other = make_run(make_request(text="another text"), age_s=5)
    assert not await store.add(other)
    assert await store.get(run.id) == run


async def test_unknown_run_is_none(store: RunStore) -> None:
    """An id nobody stored gives None, and cannot be updated."""
    assert await store.get(make_run().id) is None
    with pytest.raises(KeyError):
        await store.update(make_run().id, state=RunState.RUNNING)


async def test_every_field_survives(store: RunStore) -> None:
    """What is written is read back, field by field."""
    run = make_run(make_request(text="a\u200bb\x00\u202e «ü»", file_names=("a.txt",)))
    await store.add(run)
    await store.update(
        run.id,
        state=RunState.ANSWERING,
        placed_at=T0,
        started_at=T0 + timedelta(microseconds=250_001),
        deadline_at=T0,
        reply_ts="1.000002",
        part_ts=("1.000003", "1.000004"),
        place_attempt=1,
        attempt=2,
        agent="anthropic",
        model="m",
        provider="local",
        effective=EFFECTIVE,
        sandbox_id="s",
        event_offset=7,
        outcome=OUTCOME,
        delivery="failed(x)",
        trace_id="0" * 32,
        has_outside_effect=True,
        checkpoint=CHECKPOINT,
    )
    assert await store.request_stop(run.id, user="U9", at=T0) is False
    written = await store.get(run.id)
    assert written is not None
    unset = {f.name for f in fields(Run) if getattr(written, f.name) in (None, "", 0, ())}
    assert unset == {"ended_at", "stop_requested_by", "revision", "drained"}
    assert written.started_at == T0 + timedelta(microseconds=250_001)
    assert written.checkpoint == CHECKPOINT
    assert written.part_ts == ("1.000003", "1.000004")
    assert written.request == run.request
    assert written.outcome == OUTCOME
    assert written.effective == EFFECTIVE


async def test_a_finished_run_never_changes(store: RunStore) -> None:
    """The first final state stands, whatever a late writer says."""
    run = make_run()
    await store.add(run)
    await store.update(run.id, state=RunState.STOPPED)
    late = await store.update(run.id, state=RunState.SUCCEEDED, outcome=OUTCOME)
    assert late.state is RunState.STOPPED
    assert late.outcome is None


async def test_a_closed_file_is_whole(tmp_path: Path) -> None:
    """Nothing of it stands beside it, in SQLite's log: two connections that are closed at once would now and then leave that there."""
    for number in range(20):
        async with open_store(tmp_path / f"{number}" / "orion.db") as store:
            await store.add(make_run())
        assert [one.name for one in (tmp_path / f"{number}").iterdir()] == ["orion.db"]


async def test_stop_is_recorded_once(store: RunStore) -> None:
    """The first wish counts, and a finished run takes none."""
    run = make_run()
    await store.add(run)
    assert await store.request_stop(run.id, user="U1", at=T0) is True
    assert await store.request_stop(run.id, user="U2", at=T0) is False
    assert dict(await store.stop_requested([run.id])) == {run.id: "U1"}
    other = make_run(make_request(ts="2.000001"))
    await store.add(other)
    await store.update(other.id, state=RunState.SUCCEEDED)
    assert await store.request_stop(other.id, user="U1", at=T0) is False
    assert dict(await store.stop_requested([other.id])) == {}


async def test_a_stop_that_comes_while_the_end_is_told_is_known_again(store: RunStore) -> None:
    """Its moment is kept, and nothing is stopped by it; the first one counts."""
    run = make_run()
    await store.add(run)
    await store.update(run.id, state=RunState.ANSWERING, outcome=OUTCOME)
    for at in (T0, T0 + timedelta(seconds=9)):
        assert await store.request_stop(run.id, user="U1", at=at) is False
    told = await store.get(run.id)
    assert told is not None
    assert (told.stop_requested_by, told.stop_requested_at) == (None, T0)
    assert dict(await store.stop_requested([run.id])) == {}


async def test_changes_may_depend_on_the_state(store: RunStore) -> None:
    """A change that is meant for waiting runs leaves one alone that has begun."""
    run = make_run()
    await store.add(run)
    begun = await store.update(run.id, while_in=WAITING_STATES, state=RunState.RUNNING)
    assert begun.state is RunState.RUNNING
    late = await store.update(run.id, while_in=WAITING_STATES, outcome=OUTCOME)
    assert (late.state, late.outcome) == (RunState.RUNNING, None)


async def test_a_question_may_be_amended_until_it_begins(store: RunStore) -> None:
    """The text changes while the run waits, and nothing else of it; afterwards it stands."""
    run = make_run(make_request(file_names=("a.txt",)))
    assert not await store.amend(run.id, saying("x"))
    await store.add(run)
    assert await store.amend(run.id, saying("other words"))
    amended = await store.get(run.id)
    assert amended is not None
    assert amended.request == run.request.model_copy(update={"text": "other words"})
    assert amended == replace(run, request=amended.request, revision=1)
    await store.update(run.id, state=RunState.RUNNING)
    assert not await store.amend(run.id, saying("too late"))
    assert (await store.get(run.id)) == replace(amended, state=RunState.RUNNING)


async def test_a_run_begins_as_it_was_checked(store: RunStore) -> None:
    """Its attempt is counted once, however often that is repeated; edited since it was read, it does not begin."""
    checked = make_run(make_request(text="a\x00b"))
    await store.add(checked)
    assert await store.amend(checked.id, saying("other words"))
    edited = await store.begin(checked, agent="codex")
    assert (edited.state, edited.attempt, edited.agent) == (RunState.ACCEPTED, 0, "")
    begun = replace(edited, state=RunState.RUNNING, attempt=1, agent="claude", started_at=T0)
    for _ in range(2):
        assert await store.begin(edited, agent="claude", started_at=T0) == begun
    assert await store.get(checked.id) == begun
    again = await store.begin(begun)
    assert (again.state, again.attempt) == (RunState.RUNNING, 2)


@pytest.mark.parametrize("state", [RunState.ANSWERING, RunState.STOPPED])
async def test_a_run_whose_end_is_decided_does_not_begin(store: RunStore, state: RunState) -> None:
    """Whatever its message says."""
    run = make_run()
    await store.add(run)
    ended = await store.update(run.id, state=state)
    assert await store.begin(run, agent="claude") == ended
    with pytest.raises(KeyError):
        await store.begin(make_run(make_request(ts="2.000001")))


async def test_a_thread_is_in_message_order(store: RunStore) -> None:
    """Runs of a thread come in the order of their messages, other threads apart."""
    second = make_run(make_request(ts="10.000002", thread_ts="10.000001"))
    first = make_run(make_request(ts="10.000001"), age_s=-5)
    stranger = make_run(make_request(ts="10.000001", channel="C2"))
    for run in (second, first, stranger):
        await store.add(run)
    assert [run.id for run in await store.of_thread(first.thread)] == [first.id, second.id]


async def test_unfinished_and_recent(store: RunStore) -> None:
    """Unfinished ones oldest first; recent ones newest first and bounded; counts by state."""
    runs = [make_run(make_request(ts=f"{n}.000001"), age_s=100 - n) for n in range(1, 5)]
    for run in reversed(runs):
        await store.add(run)
    await store.update(runs[1].id, state=RunState.FAILED)
    assert [run.id for run in await store.unfinished()] == [runs[0].id, runs[2].id, runs[3].id]
    assert [run.id for run in await store.recent(limit=2)] == [runs[3].id, runs[2].id]
    assert dict(await store.counts()) == {RunState.ACCEPTED: 3, RunState.FAILED: 1}


async def test_a_person_s_own_runs_are_found(store: RunStore) -> None:
    """In whatever channel, the newest first and bounded; nobody else's, no other workspace's."""
    runs = [
        make_run(make_request(ts=f"{n}.000001", channel=f"C{n}", user=user), age_s=100 - n)
        for n, user in enumerate(("U1", "U2", "U1", "U1"), start=1)
    ]
    for run in runs:
        await store.add(run)
    assert [run.id for run in await store.recent_of("T1", "U1", limit=2)] == [
        runs[3].id,
        runs[2].id,
    ]
    assert [run.id for run in await store.recent_of("T1", "U2", limit=9)] == [runs[1].id]
    assert await store.recent_of("T2", "U1", limit=9) == []


async def test_deliveries_are_counted_by_their_words(store: RunStore) -> None:
    """Only runs whose thread was to be told count."""
    for number, delivery in enumerate(["sent", "", "failed(is_archived)", "sent"], start=1):
        run = make_run(make_request(ts=f"{number}.000001"))
        await store.add(run)
        await store.update(run.id, state=RunState.FAILED, delivery=delivery)
    assert dict(await store.deliveries()) == {"sent": 2, "failed(is_archived)": 1}


async def test_position_counts_thread_and_capacity(store: RunStore) -> None:
    """A run waits for earlier messages of its thread, or for a free place."""
    first = make_run(make_request(ts="1.000001"), age_s=30)
    second = make_run(make_request(ts="1.000002", thread_ts="1.000001"), age_s=20)
    elsewhere = make_run(make_request(ts="1.000003"), age_s=10)
    for run in (first, second, elsewhere):
        await store.add(run)
    await store.update(first.id, state=RunState.RUNNING)

    async def position(run: Run, capacity: int) -> QueuePosition:
        return (await store.queue_stats(run, since=T0, capacity=capacity)).position

    assert (await position(second, 32)).ahead_in_thread == 1
    assert not (await position(elsewhere, 32)).is_waiting
    assert (await position(elsewhere, 1)).ahead_elsewhere == 2


async def test_people_take_turns_in_the_position(store: RunStore) -> None:
    """Before a person's first message come the first ones of others that are older, not their second ones."""
    backlog = [make_run(make_request(ts=f"1.00000{n}", user="U1"), age_s=40 - n) for n in range(5)]
    early = make_run(make_request(ts="2.000001", user="U2"), age_s=20)
    late = make_run(make_request(ts="2.000002", user="U3"), age_s=10)
    for run in (*backlog, early, late):
        await store.add(run)
    await store.update(backlog[0].id, state=RunState.RUNNING)

    async def number(run: Run, capacity: int = 1) -> int:
        queue_stats = await store.queue_stats(run, since=T0, capacity=capacity)
        return queue_stats.position.ahead_elsewhere

    assert [await number(run) for run in (early, late)] == [1, 2]
    assert [await number(run) for run in backlog[1:]] == [3, 4, 5, 6]
    assert [await number(run, 3) for run in (early, late)] == [0, 0]
    await store.update(early.id, state=RunState.ANSWERING)
    assert [await number(run) for run in (late, backlog[1])] == [2, 3]


async def test_hourly_count_leaves_refusals_out(store: RunStore) -> None:
    """Runs since a time, per person, without those that were refused before they began."""
    old = make_run(make_request(ts="1.000001"), age_s=7200)
    fresh = make_run(make_request(ts="2.000001"))
    refused = make_run(make_request(ts="3.000001"))
    foreign = make_run(make_request(ts="4.000001", user="U2"))
    for run in (old, fresh, refused, foreign):
        await store.add(run)
    await store.update(refused.id, outcome=failed(ErrorCode.NOT_ALLOWED))
    queue_stats = await store.queue_stats(fresh, since=T0 - timedelta(hours=1), capacity=32)
    assert queue_stats.runs_of_user == 1
    assert queue_stats.unfinished == 4
    tried = make_run(make_request(ts="5.000001"))
    await store.add(tried)
    await store.update(tried.id, attempt=1, outcome=failed(ErrorCode.REQUEST_INVALID))
    queue_stats = await store.queue_stats(fresh, since=T0 - timedelta(hours=1), capacity=32)
    assert queue_stats.runs_of_user == 2  # it had a sandbox
    await store.update(tried.id, state=RunState.FAILED)
    await store.update(refused.id, state=RunState.FAILED)
    assert (await store.queue_stats(fresh, since=T0, capacity=32)).unfinished == 3


async def test_concurrent_adds_agree(store: RunStore) -> None:
    """Of many writers of one id exactly one inserts."""
    run = make_run()
    fresh: list[bool] = []

    async def add() -> None:
        fresh.append(await store.add(run))

    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(add)
    assert sum(fresh) == 1


async def test_records_survive_reopening(open_database: OpenDatabase) -> None:
    """A second opening finds the records of the first."""
    run = make_run()
    async with open_database() as store:
        await store.add(run)
    async with open_database() as store:
        assert await store.get(run.id) == run
        assert [found.id for found in await store.starting_with(run.id[:8])] == [run.id]
        assert list(await store.starting_with("run_%")) == []


async def test_several_processes_agree(open_database: OpenDatabase) -> None:
    """Of many openings that make the tables, add a run and ask it to stop at once, each succeeds, and one is the first."""
    run = make_run()
    added: list[bool] = []
    asked: list[bool] = []

    async def work(number: int) -> None:
        async with open_database() as store:
            added.append(await store.add(run))
            asked.append(await store.request_stop(run.id, user=f"U{number}", at=T0))

    async with anyio.create_task_group() as group:
        for number in range(5):
            group.start_soon(work, number)
    assert (sum(added), len(added)) == (1, 5)
    assert (sum(asked), len(asked)) == (1, 5)


async def test_text_of_any_kind_and_length_is_kept(store: RunStore) -> None:
    """An answer with control characters does not lose the record, nor does a long refusal of Slack's."""
    run = make_run()
    await store.add(run)
    written = await store.update(
        run.id,
        outcome=replace(OUTCOME, answer="a\x00b\u202e" + "x" * 100_000),
        delivery=f"failed({'x' * 300})",
    )
    assert written.result.answer in {f"a{nul}b\u202e" + "x" * 100_000 for nul in ("\x00", "\ufffd")}
    assert len(written.delivery) == 308


async def test_what_nobody_waits_for_any_more_changes_nothing(tmp_path: Path) -> None:
    """A claim that is committed after its asker has given up would be nobody's, for ever."""
    began, may_end = threading.Event(), threading.Event()

    def late(connection: sa.Connection) -> None:
        connection.execute(sa.text("DELETE FROM orion_runs"))
        began.set()
        may_end.wait(10)

    async with open_store(tmp_path / "orion.db") as sql:
        await sql.add(make_run())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await sql._database.call(late)
        assert began.is_set()
        may_end.set()
        assert await sql.get(make_run().id) is not None


async def test_old_ends_are_removed_oldest_first(store: RunStore) -> None:
    """Runs that ended before a time go, as many as were asked for; unfinished ones stay, however old."""
    hour = timedelta(hours=1)
    old, older, oldest, young, unfinished = (
        make_run(make_request(ts=f"{n}.000001"), age_s=100 * 3600) for n in range(1, 6)
    )
    for run in (old, older, oldest, young, unfinished):
        await store.add(run)
    for run, hours in ((old, 50), (older, 51), (young, 47)):
        await store.update(run.id, state=RunState.SUCCEEDED, ended_at=T0 - hours * hour)
    await store.update(
        oldest.id, state=RunState.FAILED
    )  # without a time of its end: its beginning counts
    before = T0 - 48 * hour
    assert await store.remove_ended(before=before, limit=2) == 2
    assert await store.get(old.id) is not None
    assert await store.remove_ended(before=before, limit=2) == 1
    assert await store.remove_ended(before=before, limit=2) == 0
    assert {run.id for run in await store.recent(limit=9)} == {young.id, unfinished.id}


async def test_many_old_ends_are_removed(store: RunStore) -> None:
    """More than fit one transaction."""
    for n in range(250):
        run = make_run(make_request(ts=f"{n}.000001"))
        await store.add(run)
        await store.update(run.id, state=RunState.SUCCEEDED, ended_at=T0)
    assert await store.remove_ended(before=T0 + timedelta(seconds=1), limit=10_000) == 250
    assert dict(await store.counts()) == {}


async def test_stores_agree_on_positions(tmp_path: Path) -> None:
    """The database counts what the memory store counts, whoever waits."""
    dice = random.Random(7)  # noqa: S311 - the same states in every run
    memory = MemoryRunStore()
    async with open_store(tmp_path / "orion.db") as sqlite:
        runs = [
            make_run(
                make_request(
                    ts=f"{n}.000001",
                    thread_ts=f"{dice.randint(0, n)}.000001",
                    user=f"U{dice.randint(0, 4)}",
                ),
                age_s=dice.randint(0, 30),
            )
            for n in range(60)
        ]
        for run in runs:
            for store in (memory, sqlite):
                await store.add(run)
        for run in runs:
            state = dice.choice(list(RunState))
            for store in (memory, sqlite):
                await store.update(run.id, state=state)
        for run in await memory.unfinished():
            capacity = dice.randint(1, 12)
            assert await memory.queue_stats(run, since=T0, capacity=capacity) == (
                await sqlite.queue_stats(run, since=T0, capacity=capacity)
            )
