"""Several processes on one database: what belongs to whom, and what becomes of it when one is killed, frozen or cut off."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Collection
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest
import sqlalchemy as sa

from app.audit.records import AuditQuery
from app.compose.core import sweep_if_leading, why_not_here
from app.dispatch.dispatcher import RunDispatcher
from app.dispatch.placements import PLACED_AT_ONCE
from app.errors import ErrorCode, LeaseLostError
from app.runs.testing import MAX_ATTEMPTS, Outcome, Run, RunFileKind, RunId, RunState, SystemClock
from app.store.leases import LEASE_S, SqlLeases
from app.store.runs import SqlRunStore, open_store
from sandbox_runtime.provider import SandboxProvider
from sandbox_runtime.task_group import open_task_group
from sandbox_runtime.types import Capability, SandboxId
from tests.building import make_entry, make_request, make_session
from tests.contract.building import started_on
from tests.dispatchers import Crowd, accept, accepting, new_run
from tests.relay import open_cutting_proxy
from tests.waiting import until

pytestmark = [pytest.mark.postgresql, pytest.mark.timeout(180)]

TAKEN_OVER_WITHIN_S = 20.0
OUTCOME = Outcome(state=RunState.FAILED, error_code=ErrorCode.INTERNAL)


@pytest.fixture
async def two(postgres_url: str) -> AsyncIterator[tuple[SqlRunStore, SqlRunStore]]:
    """Two processes' stores."""
    async with open_store(postgres_url) as one, open_store(postgres_url) as other:
        for store in (one, other):
            await store.leases.join()
        yield one, other


async def _change(store: SqlRunStore, statement: str) -> None:
    """Of its own process."""
    changed = sa.text(statement.replace("?", ":id")).bindparams(id=store.leases.id)
    await store._call(lambda connection: connection.execute(changed))


async def _claimed(store: SqlRunStore, run: Run) -> Run:
    await store.add(run)
    await store.leases.schedule(run.id, state=RunState.PLACED)
    (claimed,) = await store.leases.claim(slots=1, waits_s=1000)
    return claimed


async def test_only_who_has_a_run_writes_into_it(two: tuple[SqlRunStore, SqlRunStore]) -> None:
    """Whatever the other one tries, the record stays as it was; people may stop it through either."""
    mine, other = two
    run = await _claimed(mine, new_run())
    for attempt in (
        other.update(run.id, delivery="sent"),
        other.update(run.id, state=RunState.SUCCEEDED, outcome=OUTCOME),
        other.begin(run),
        other.leases.schedule(run.id, state=RunState.QUEUED),
        other.files.save(run.id, RunFileKind.LOG, "mine"),
    ):
        with pytest.raises(LeaseLostError):
            await attempt
    await other.leases.release(run.id, after_s=0)
    async with asyncio.timeout(5):
        assert await other.leases.claim(slots=9, waits_s=1000) == []
    assert await mine.get(run.id) == run
    await other.files.append(run.id, RunFileKind.STEPS, "[]")  # of a slice that was its
    assert await other.request_stop(run.id, user="U1", at=SystemClock().now())
    assert (await mine.begin(run)).stop_requested_by == "U1"


async def test_why_a_message_may_be_answered_is_kept_with_that_it_is(
    two: tuple[SqlRunStore, SqlRunStore],
) -> None:
    """In one transaction: of a run that is another process's, nothing is."""
    mine, other = two
    run = new_run()
    await mine.add(run)
    late = make_entry(id="late", run_id=run.id)
    with pytest.raises(LeaseLostError):
        await other.leases.schedule(run.id, entry=late, state=RunState.PLACED)
    entry = make_entry(run_id=run.id)
    await mine.leases.schedule(run.id, entry=entry, state=RunState.PLACED)
    assert await other.audit.find(AuditQuery(run_id=run.id)) == [entry]


async def test_the_living_keep_what_they_have(two: tuple[SqlRunStore, SqlRunStore]) -> None:
    """Accepted, waiting, borrowed or advanced."""
    mine, other = two
    accepted, waiting, borrowed, advanced = (new_run(number) for number in range(4))
    await _claimed(mine, advanced)
    for run in (accepted, waiting, borrowed):
        await mine.add(run)
    for run in (waiting, borrowed):
        await mine.leases.schedule(run.id)
    assert await mine.leases.borrow(borrowed.id) is not None
    assert await other.leases.take_over() == []
    assert [run.id for run in await other.leases.claim(slots=9, waits_s=1000)] == [waiting.id]
    assert {process.id for process in await other.leases.living()} == {
        store.leases.id for store in two
    }


async def test_living_processes_tell_each_other_their_settings(
    two: tuple[SqlRunStore, SqlRunStore],
) -> None:
    """Not their own, nor those of one that is dead, or of an Orion that told none."""
    mine, other = two
    assert await mine.leases.settings_of_others() == {}
    for store, told in ((mine, {"A": "1"}), (other, {"A": "2"})):
        store.leases.describe(place="", is_working=True, settings=told)
        await store.leases.leave()
        await store.leases.join()
    name = other.leases.process.name
    assert await mine.leases.settings_of_others() == {name: {"A": "2"}}
    assert [process.id for process in await mine.leases.living()] == [
        store.leases.id for store in two
    ]
    await _change(other, "UPDATE orion_processes SET alive_until = 1 WHERE id = ?")
    assert await mine.leases.settings_of_others() == {}


async def test_a_take_over_that_was_cut_off_is_looked_through_again(
    two: tuple[SqlRunStore, SqlRunStore],
) -> None:
    """Its runs may be this process's by then, without its knowing; another process's are left alone."""
    mine, other = two
    accepted, theirs = new_run(1), new_run(2)
    await mine.add(accepted)
    await other.add(theirs)
    assert await mine.leases.take_over() == []
    assert [run.id for run in await mine.leases.take_over(again=True)] == [accepted.id]


async def test_what_is_given_back_is_there_at_once(two: tuple[SqlRunStore, SqlRunStore]) -> None:
    """An orderly end: what it was at waits, what it had not placed is the next one's."""
    mine, other = two
    accepted, advanced = new_run(1), new_run(2)
    await _claimed(mine, advanced)
    await mine.add(accepted)
    await mine.leases.leave()
    assert [run.id for run in await other.leases.take_over()] == [accepted.id]
    assert [run.id for run in await other.leases.claim(slots=9, waits_s=1000)] == [advanced.id]
    assert [process.id for process in await other.leases.living()] == [other.leases.id]


async def test_what_has_not_begun_to_be_placed_is_let_go_first(
    two: tuple[SqlRunStore, SqlRunStore],
) -> None:
    """By a process that is told to end, and nothing else with it."""
    mine, other = two
    unplaced, going = new_run(1), new_run(2)
    await _claimed(mine, going)
    await mine.add(unplaced)
    await mine.leases.unclaim([unplaced.id, going.id])
    assert [run.id for run in await other.leases.take_over()] == [unplaced.id]
    assert await other.leases.claim(slots=9, waits_s=1000) == []
    await mine.leases.unclaim([])


async def test_a_drain_is_no_failure_of_a_run(two: tuple[SqlRunStore, SqlRunStore]) -> None:
    """Of however many processes that are told to end; the end of an invocation is no drain."""
    mine, other = two
    run = await mine.begin(await _claimed(mine, new_run()))
    for _ in range(MAX_ATTEMPTS):
        await mine.leases.leave()
        (again,) = await other.leases.claim(slots=1, waits_s=1000)
        run = await other.begin(again)
        await mine.leases.join()
        mine, other = other, mine
    assert (run.attempt, run.failures) == (MAX_ATTEMPTS + 1, 1)
    await mine.leases.leave(is_brief=True)
    (again,) = await other.leases.claim(slots=1, waits_s=1000)
    assert (await other.begin(again)).failures == 2


async def test_what_has_not_begun_or_too_often_is_no_drain(
    two: tuple[SqlRunStore, SqlRunStore],
) -> None:
    """An attempt that another process began and lost; one of a message that was edited; the eleventh."""
    mine, other = two
    lost, edited, often = new_run(1), new_run(2), new_run(3)
    for run in (lost, edited, often):
        await accept(other, run)
    claimed = await mine.leases.claim(slots=3, waits_s=1000)
    assert len(claimed) == 3
    await mine.begin(replace(edited, revision=7))
    await mine.begin(often)
    full = sa.text("UPDATE orion_runs SET drained = 10, attempt = 11 WHERE id = :id")
    await mine._call(lambda it: it.execute(full, {"id": often.id}))
    begun = sa.text("UPDATE orion_runs SET attempt = 1 WHERE id = :id")
    await mine._call(lambda it: it.execute(begun, {"id": lost.id}))
    await mine.leases.leave()
    drained = [(await other.get(run.id) or run).drained for run in (lost, edited, often)]
    assert drained == [0, 0, 10]


async def test_who_ends_lets_go_of_what_it_has_not_placed_at_once(postgres_url: str) -> None:
    """Before what goes on has its time to end; and takes none of it back meanwhile."""
    async with open_store(postgres_url) as other, open_task_group() as group:
        await other.leases.join()
        async with started_on(postgres_url, grace_s=20) as handlers:
            handlers.may_place.clear()
            for number in range(PLACED_AT_ONCE + 3):
                await handlers.submit(make_request(ts=f"1795302364.{number:06}"))
            await until(lambda: len(handlers.placed) == PLACED_AT_ONCE)
            dispatcher = cast("RunDispatcher", handlers.dispatcher)
            ending = group.create_task(dispatcher.stop(grace_s=20))
            await asyncio.sleep(0.5)
            await dispatcher.take_over()
            assert len(await other.leases.take_over()) == 3
            assert not ending.done()
            handlers.may_place.set()
            await ending


class Swept:
    """A provider whose sweeps are written down."""

    def __init__(self, *capabilities: Capability) -> None:
        self.capabilities = frozenset(capabilities)
        self.sweeps: list[tuple[Collection[SandboxId], Collection[str] | None]] = []

    async def sweep(
        self, keep: Collection[SandboxId] = (), *, living: Collection[str] | None = None
    ) -> int:
        self.sweeps.append((keep, living))
        return 0


async def test_one_sweeps_for_all(two: tuple[SqlRunStore, SqlRunStore]) -> None:
    """The oldest that works, while nobody is late; what the living own and where a person is stays. Clouds see to themselves."""
    mine, other = two
    here, cloud = Swept(), Swept(Capability.REMOTE)

    async def sweep(store: SqlRunStore, provider: Swept) -> None:
        await sweep_if_leading(store, cast("SandboxProvider", provider), lambda _session: True)

    await mine.sessions.add(replace(make_session(), sandbox_id="visited"))
    await sweep(other, here)
    await sweep(mine, cloud)
    assert here.sweeps == cloud.sweeps == []
    await sweep(mine, here)
    owners = {store.leases.process.owner for store in two}
    assert here.sweeps == [([SandboxId("visited")], owners)]
    await _change(other, "UPDATE orion_processes SET alive_until = alive_until - 20 WHERE id = ?")
    await sweep(mine, here)
    assert len(here.sweeps) == 1


async def test_threads_files_of_a_host_are_for_where_all_work_on_it(
    two: tuple[SqlRunStore, SqlRunStore],
) -> None:
    """Who hears alone may be elsewhere, and one of an older Orion does not say where it is; clouds are everywhere."""
    mine, other = two
    for store in two:
        store.leases.describe(place="", is_working=True, host="here")
        await store.leases.leave()
        await store.leases.join()
    assert await why_not_here(mine, "local") == ""
    for host, is_working, is_named in (
        ("there", True, True),
        ("there", False, False),
        (None, True, False),
    ):
        other.leases.describe(place="", is_working=is_working, host=host)
        await other.leases.leave()
        await other.leases.join()
        for provider in ("local", "docker"):
            told = await why_not_here(mine, provider)
            assert (other.leases.process.name in told) is is_named
        assert await why_not_here(mine, "vercel") == ""


async def test_a_place_in_the_queue_counts_the_slots_of_all(
    two: tuple[SqlRunStore, SqlRunStore],
) -> None:
    """Of those that work."""
    mine, other = two
    runs = [new_run(number) for number in range(11)]
    for run in runs:
        await mine.add(run)
    since = runs[0].created_at - timedelta(hours=1)
    counted = [await store.queue_stats(runs[-1], since=since, capacity=8) for store in two]
    assert [one.position.ahead_elsewhere for one in counted] == [0, 0]
    await other.leases.leave()
    alone = await mine.queue_stats(runs[-1], since=since, capacity=8)
    assert alone.position.ahead_elsewhere == 3


async def test_who_is_late_for_a_moment_may_live(two: tuple[SqlRunStore, SqlRunStore]) -> None:
    """For an invocation, which has no time to wait after an outage of the database."""
    mine, other = two
    await mine.add(new_run())
    await _change(mine, "UPDATE orion_processes SET alive_until = alive_until - 20 WHERE id = ?")
    assert await other.leases.take_over(late_s=12) == []
    assert await mine.leases.renew() == 2
    await _change(mine, "UPDATE orion_processes SET alive_until = alive_until - 30 WHERE id = ?")
    assert len(await other.leases.take_over(late_s=12)) == 1
    assert await mine.leases.renew() == 0


async def test_clocks_are_compared_with_the_databases(
    two: tuple[SqlRunStore, SqlRunStore],
) -> None:
    """What all processes go by is its own, however far this machine's is off."""
    mine, _ = two
    assert mine.leases.skew_s() == 0
    for off_s in (600, -600):

        def off() -> float:
            return time.time() + off_s  # noqa: B023 - asked in this round alone

        leases = SqlLeases(mine._database, is_shared=True, now_s=off)
        await leases.join()
        assert abs(leases.skew_s() + off_s) < 5
        assert await leases.renew() == 3
        told = SystemClock(leases.skew_s).now() - SystemClock().now()
        assert abs(told.total_seconds() + off_s) < 5
        await leases.leave()


async def test_two_never_claim_the_same(two: tuple[SqlRunStore, SqlRunStore]) -> None:
    """However often both ask at once, each run is one's, and a thread's are claimed one after the other."""
    threads = [f"17953023{n}.000100" for n in range(8)]
    for thread_ts in threads:
        for reply in range(3):
            ts = f"{thread_ts[:-1]}{reply}"
            request = make_request(ts=ts, thread_ts=thread_ts)
            run = Run(id=request.run_id, request=request, created_at=SystemClock().now())
            await two[0].add(run)
            await two[0].leases.schedule(run.id)
    ended: list[RunId] = []

    async def work(store: SqlRunStore) -> None:
        while len(ended) < 3 * len(threads):
            for run in await store.leases.claim(slots=2, waits_s=1000):
                assert run.id not in ended
                await store.update(run.id, state=RunState.SUCCEEDED)
                ended.append(run.id)

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:  # noqa: TID251 - two that work
        for store in two:
            group.create_task(work(store))
    assert len(set(ended)) == len(ended) == 3 * len(threads)


@pytest.fixture
async def crowd(postgres_url: str, tmp_path: Path) -> AsyncIterator[Crowd]:
    async with open_store(postgres_url):
        pass  # makes the tables
    crowd = Crowd(postgres_url, tmp_path)
    yield crowd
    await crowd.kill_all()


async def test_the_killed_ones_runs_go_on_elsewhere(crowd: Crowd) -> None:
    """kill -9 in the middle of two runs: another process begins them within 20 s, and each comes to its end once."""
    victim = await crowd.start(hold_s=60.0)
    runs = [new_run(number) for number in range(2)]
    async with accepting(crowd.url) as store:
        await accept(store, *runs)
        await until(lambda: len(crowd.notes("start")) == 2)
        other = await crowd.start(hold_s=0.2)
        os.kill(victim, signal.SIGKILL)
        killed_at = time.time()
        await until(lambda: len(crowd.effects()) == 2, timeout_s=TAKEN_OVER_WITHIN_S + 10)
        again = [note.at for note in crowd.notes("start") if note.pid == other]
        assert max(again) - killed_at <= TAKEN_OVER_WITHIN_S
        assert sorted(crowd.effects()) == sorted(run.id for run in runs)
        assert [run.attempt for run in await store.recent(limit=9)] == [2, 2]


@pytest.mark.long
async def test_who_was_frozen_does_nothing_for_what_is_not_its_own_any_more(crowd: Crowd) -> None:
    """Stopped for longer than a lease, and let go on: no second effect, no second write; it works on under another id."""
    frozen = await crowd.start(hold_s=1.0)
    runs = [new_run(number) for number in range(3)]
    async with accepting(crowd.url) as store:
        await accept(store, *runs)
        await until(lambda: len(crowd.notes("start")) == 3)
        earlier = {process.id for process in await store.leases.living()}
        os.kill(frozen, signal.SIGSTOP)
        try:
            other = await crowd.start(hold_s=0.1)
            await until(lambda: len(crowd.effects()) == 3, timeout_s=LEASE_S + 16)
            assert await crowd.end(other) == 0
        finally:
            os.kill(frozen, signal.SIGCONT)
        late = new_run(9)
        async with accepting(
            crowd.url
        ) as young:  # of the other one nobody has heard for longer than a lease
            await accept(young, late)
        await until(lambda: late.id in crowd.effects(), timeout_s=30)
        assert sorted(crowd.effects()) == sorted([*(run.id for run in runs), late.id])
        assert {note.pid for note in crowd.notes("effect") if note.run_id == late.id} == {frozen}
        (living,) = await store.leases.living()
        assert living.name.endswith(f":{frozen}")
        assert living.id not in earlier


async def test_what_waits_at_who_ends_goes_on_elsewhere_at_once(crowd: Crowd) -> None:
    """SIGTERM: what it was at and what waited is begun by another process within 2 s."""
    ending = await crowd.start(capacity=1, hold_s=60.0)
    runs = [new_run(number, user=f"U{number}") for number in range(3)]
    async with accepting(crowd.url) as store:
        await accept(store, *runs)
        await until(lambda: len(crowd.notes("start")) == 1)
        other = await crowd.start(capacity=2, hold_s=0.0)
        await until(lambda: len(crowd.effects()) == 2)
        assert await crowd.end(ending) == 0
        ended_at = time.time()
        await until(lambda: len(crowd.effects()) == 3)
        assert crowd.notes("effect")[-1].at - ended_at <= 2.0
        assert crowd.notes("effect")[-1].pid == other


@pytest.mark.long
async def test_a_database_that_is_away_for_20_s_ends_nothing(crowd: Crowd) -> None:
    """Both processes cut off from it in the middle of their runs: nobody is taken over, and each run has its effect once."""
    async with open_cutting_proxy(crowd.url) as proxy:
        pids = [await crowd.start(capacity=1, hold_s=12.0, url=proxy.url) for _ in range(2)]
        runs = [new_run(number, user=f"U{number}") for number in range(2)]
        async with accepting(crowd.url) as store:
            await accept(store, *runs)
            await until(lambda: len(crowd.notes("start")) == 2)
            proxy.cut()
            await asyncio.sleep(20.0)
            assert crowd.effects() == []
            proxy.mend()
            await until(lambda: len(crowd.effects()) == 2, timeout_s=30)
            assert sorted(map(len, crowd.started_by().values())) == [1, 1]
            assert {note.pid for note in crowd.notes("effect")} == set(pids)
