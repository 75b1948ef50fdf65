"""What is known of threads, and how a run that was never to be is removed: the same in every store."""

from datetime import timedelta
from pathlib import Path

import pytest

from app.errors import LeaseLostError
from app.runs.testing import (
    JUDGEMENTS,
    Addressing,
    QueuePosition,
    RunRequest,
    RunState,
    SpentCall,
    Thread,
    Usage,
)
from app.store.memory import MemoryRunStore
from app.store.runs import SqlRunStore, open_store
from tests.building import T0, make_request, make_run, saying
from tests.dispatchers import new_run

Store = MemoryRunStore | SqlRunStore
FIRST, SECOND, THIRD = (f"1795302364.00010{number}" for number in range(3))


def candidate(ts: str = SECOND) -> RunRequest:
    request = make_request(ts=ts, thread_ts=FIRST)
    return request.model_copy(update={"addressing": Addressing.NONE})


async def test_a_thread_has_a_run_as_long_as_its_record_is_kept(store: Store) -> None:
    """Of that channel and that team alone."""
    run = make_run(make_request(ts=FIRST))
    assert not await store.threads.has_run(run.thread)
    await store.add(run)
    assert await store.threads.has_run(run.thread)
    assert not await store.threads.has_run(Thread(team="T1", channel="C2", thread_ts=FIRST))
    await store.update(run.id, state=RunState.SUCCEEDED, ended_at=T0)
    await store.remove_ended(before=T0 + timedelta(1), limit=1)
    assert not await store.threads.has_run(run.thread)


async def test_the_last_word_on_a_thread_counts(store: Store) -> None:
    """By the time of its message, however late and often that is told."""
    thread, other = make_request(ts=FIRST).thread, make_request(ts=SECOND).thread
    words = ((SECOND, True), (SECOND, True), (THIRD, False), (SECOND, True))
    heard = [
        (
            await store.threads.mute(thread, user="U1", ts=ts, is_muted=is_muted),
            await store.threads.is_muted(thread),
        )
        for ts, is_muted in words
    ]
    assert heard == [(True, True), (False, True), (True, False), (False, False)]
    assert not await store.threads.is_muted(other)


async def test_a_run_that_is_discarded_was_never_there(store: Store) -> None:
    """It may be accepted anew, as by another event of its message; discarded twice is discarded."""
    run = make_run(candidate())
    for _ in range(2):
        assert await store.add(run)
        assert await store.leases.holds(run.id)
        assert await store.leases.discard(run)
        assert await store.leases.discard(run)
        assert await store.get(run.id) is None
        assert dict(await store.counts()) == {}


async def test_what_was_changed_is_not_discarded(store: Store) -> None:
    """Its message was edited, or its own message stands, since somebody decided."""
    run, placed = make_run(candidate()), make_run(candidate(THIRD))
    await store.add(run)
    await store.amend(run.id, saying("Orion, please"))
    assert not await store.leases.discard(run)
    known = await store.get(run.id)
    assert known is not None
    assert known.request.text == "Orion, please"
    assert await store.leases.discard(known)
    await store.add(placed)
    await store.leases.schedule(placed.id, state=RunState.PLACED)
    assert not await store.leases.discard(placed)


async def test_an_open_candidate_is_before_nobody(store: Store) -> None:
    """Until it is for Orion: then whoever asked later is told to wait."""
    run, behind = make_run(candidate()), make_run(make_request(ts=THIRD, thread_ts=FIRST))
    for one in (run, behind):
        await store.add(one)
    stats = await store.queue_stats(behind, since=T0, capacity=9)
    assert stats.position == QueuePosition()
    await store.amend(
        run.id, lambda request: request.model_copy(update={"addressing": Addressing.CLEAR})
    )
    stats = await store.queue_stats(behind, since=T0, capacity=9)
    assert stats.position == QueuePosition(ahead_in_thread=1)


@pytest.mark.postgresql
async def test_only_who_has_a_run_discards_it(postgres_url: str) -> None:
    """Another process finds it where it was."""
    async with open_store(postgres_url) as mine, open_store(postgres_url) as other:
        for store in (mine, other):
            await store.leases.join()
        run = new_run()
        await mine.add(run)
        with pytest.raises(LeaseLostError):
            await other.leases.discard(run)
        assert await mine.leases.discard(run)


async def test_what_is_said_of_old_threads_is_forgotten_with_them(tmp_path: Path) -> None:
    """Once no run of theirs is kept; so are the calls that judged replies."""
    async with open_store(tmp_path / "orion.db") as store:
        kept, gone = (make_run(make_request(ts=ts)) for ts in (FIRST, SECOND))
        await store.add(kept)
        for run in (kept, gone):
            await store.threads.mute(run.thread, user="U1", ts=FIRST, is_muted=True)
        call = SpentCall(
            id="1",
            run_id=JUDGEMENTS,
            agent=JUDGEMENTS,
            model="m",
            team="T1",
            user="U1",
            channel="C1",
            at=T0,
            usage=Usage(),
            cost=None,
        )
        await store.spending.add([call])
        sums = dict(await store.spending.sums(T0.date()))
        assert sums["judgements", "", ""] == sums["all unpriced", "", ""] == 1
        await store.remove_ended(before=T0 + timedelta(30), limit=1)
        assert await store.threads.is_muted(kept.thread)
        assert not await store.threads.is_muted(gone.thread)
        assert await store.spending.of_run(JUDGEMENTS) == []
