"""What the reconciler ends: runs that nobody moves, and runs that waited too long."""

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from typing_extensions import override

from app.errors import ErrorCode
from app.runs.testing import (
    MAX_PLACE_ATTEMPTS,
    EngineState,
    Reconciler,
    Run,
    RunService,
    RunState,
    StopSignals,
    SystemClock,
)
from sandbox_runtime.task_group import open_task_group
from tests.building import T0, make_request
from tests.faults.building import POLICY, core_of, ended, request_of
from tests.faults.plan_agent import ANSWER
from tests.waiting import until


async def test_who_waits_too_long_for_a_place_is_told_soon(tmp_path: Path) -> None:
    """At the time limit, not at the end of the run that has the place; the next one of its thread moves up."""
    policy = replace(POLICY, capacity=1, queue_timeout_s=1.5)
    async with core_of(tmp_path, policy) as core, open_task_group() as group:
        reconciler = Reconciler(
            store=core.store,
            dispatcher=core.dispatcher,
            service=core.service,
            policy=policy,
            signals=StopSignals(),
            clock=SystemClock(),
        )
        rounds = group.create_task(reconciler.run_forever())
        first = request_of([{"text": "a"}, {"sleep": 15}, {"final": "one"}])
        await core.intake.accept(first)
        await until(lambda: core.provider.created == 2 and core.provider.alive == 1)
        second = request_of(ANSWER, ts="1795302365.000100")
        await core.intake.accept(second)
        run = await ended(core, second.run_id)
        assert (run.result.error_code, run.attempt) == (ErrorCode.QUEUE_FULL, 0)
        assert run.ended_at is not None
        assert run.ended_at - run.created_at < timedelta(seconds=10)
        told = core.replies.finished[0][1]
        assert told.detail == "this one waited longer than 1.5 s for its turn"
        assert run.outcome == told
        async with asyncio.timeout(5):
            while (await core.dispatcher.engine_states([run.id]))[run.id] is not EngineState.ENDED:
                await asyncio.sleep(0.01)
        assert core.provider.alive == 1
        await core.intake.stop_run(first.run_id, user="U1")
        await ended(core, first.run_id)
        rounds.cancel()


async def test_who_has_a_slot_and_reads_its_thread_does_not_wait_too_long(tmp_path: Path) -> None:
    """Slack's limits hold it up beyond the time that it may wait for its turn, which has come: it is answered."""
    policy = replace(POLICY, queue_timeout_s=0.5)
    async with core_of(tmp_path, policy) as core:
        reconciler = Reconciler(
            store=core.store,
            dispatcher=core.dispatcher,
            service=core.service,
            policy=policy,
            signals=core.signals,
            clock=SystemClock(),
        )
        core.reader.hangs = True
        request = request_of(ANSWER, thread_ts="1795302300.000100")
        await core.intake.accept(request)
        await until(lambda: core.reader.reads == 1)
        await asyncio.sleep(0.6)
        assert await reconciler.reconcile() == 0
        core.reader.goes_on.set()
        run = await ended(core, request.run_id)
        assert run.result.answer == "the answer"


async def test_the_reconciler_ends_what_nobody_moves(tmp_path: Path) -> None:
    """A run whose engine knows nothing of it, and one that waited too long, are ended with their codes."""
    async with core_of(tmp_path, replace(POLICY, queue_timeout_s=5)) as core:
        reconciler = Reconciler(
            store=core.store,
            dispatcher=core.dispatcher,
            service=core.service,
            policy=replace(POLICY, queue_timeout_s=5),
            signals=StopSignals(),
            clock=SystemClock(),
        )
        orphan = make_request(ts="1795302300.000100")
        await core.store.add(Run(id=orphan.run_id, request=orphan, created_at=T0))
        await core.store.update(orphan.run_id, state=RunState.RUNNING, attempt=1, reply_ts="9.1")
        assert await reconciler.reconcile() == 1
        run = await core.store.get(orphan.run_id)
        assert run is not None
        assert run.result.error_code is ErrorCode.INTERRUPTED
        assert await reconciler.reconcile() == 0


async def test_a_message_at_which_the_process_dies_is_not_placed_for_ever(tmp_path: Path) -> None:
    """Each start that places it again counts; after three it is told that it was interrupted."""
    async with core_of(tmp_path) as core:
        request = request_of(ANSWER)
        run = Run(id=request.run_id, request=request, created_at=request.received_at)
        await core.store.add(run)
        await core.service.place(run, resumed=True)
        placed = await core.store.get(run.id)
        assert placed is not None
        assert placed.place_attempt == 1
        other = make_request(ts="1795302370.000100")
        poison = Run(
            id=other.run_id,
            request=other,
            created_at=core.ports.clock.now(),
            place_attempt=MAX_PLACE_ATTEMPTS,
        )
        await core.store.add(poison)
        await core.service.place(poison, resumed=True)
        reconciler = Reconciler(
            store=core.store,
            dispatcher=core.dispatcher,
            service=core.service,
            policy=POLICY,
            signals=core.signals,
            clock=SystemClock(),
        )
        assert await reconciler.reconcile() == 1
        told = await ended(core, poison.id)
        assert told.result.error_code is ErrorCode.INTERRUPTED


class _FarAheadClock(SystemClock):
    """After a jump."""

    @override
    def now(self) -> datetime:
        return super().now() + timedelta(hours=1)


async def test_the_reconciler_leaves_a_run_that_goes_on_through_a_jump_of_the_clock(
    tmp_path: Path,
) -> None:
    """Past its deadline by the wall clock only: whoever is at it ends it. Elsewhere the wall clock is all there is."""
    async with core_of(tmp_path, POLICY) as core:
        signals = StopSignals()
        reconciler = Reconciler(
            store=core.store,
            dispatcher=core.dispatcher,
            service=core.service,
            policy=POLICY,
            signals=signals,
            clock=_FarAheadClock(),
        )
        request = request_of([{"sleep": 60}])
        await core.intake.accept(request)
        await until(lambda: bool(core.replies.shown))
        with signals.watch(request.run_id):
            assert await reconciler.reconcile() == 0
        assert await reconciler.reconcile() == 1
        run = await core.store.get(request.run_id)
        assert run is not None
        assert run.result.error_code is ErrorCode.SANDBOX_TIMEOUT


async def test_a_run_that_cannot_be_ended_leaves_no_other_dangling(tmp_path: Path) -> None:
    """It is tried again in each round; the others are ended in the first one."""
    async with core_of(tmp_path) as core:
        for number, reply_ts in (("0", "poisoned"), ("1", "9.1")):
            orphan = make_request(ts=f"179530230{number}.000100")
            await core.store.add(Run(id=orphan.run_id, request=orphan, created_at=T0))
            changes = {"state": RunState.RUNNING, "attempt": 1, "reply_ts": reply_ts}
            await core.store.update(orphan.run_id, **changes)  # type: ignore[arg-type]  # as RunChanges says

        class Service(RunService):
            @override
            async def end(self, run: Run, code: ErrorCode) -> None:
                if run.reply_ts == "poisoned":
                    raise OverflowError("cannot convert Infinity to integer")
                await core.service.end(run, code)

        reconciler = Reconciler(
            store=core.store,
            dispatcher=core.dispatcher,
            service=Service.__new__(Service),
            policy=POLICY,
            signals=StopSignals(),
            clock=SystemClock(),
        )
        assert await reconciler.reconcile() == 1
        assert [run.reply_ts for run in await core.store.unfinished()] == ["poisoned"]
        assert await reconciler.reconcile() == 0
