"""In what order and how many at once accepted runs are placed."""

import asyncio
import time
from contextvars import ContextVar
from dataclasses import replace

from typing_extensions import override

from app.dispatch.placements import PAUSE_MEANWHILE_S, PLACED_AT_ONCE, Placements
from app.runs.testing import AgainIn, Run, RunId
from sandbox_runtime.task_group import open_task_group
from tests.building import make_request, make_run
from tests.waiting import until

RUNS = [make_run(make_request(ts=f"1795302364.{number:06}")) for number in range(40)]


class Handlers:
    """Placing goes on until it is allowed to end."""

    def __init__(self) -> None:
        self.begun: list[RunId] = []
        self.begun_s: list[float] = []
        self.may_end = asyncio.Event()

    async def place(self, run: Run, *, resumed: bool) -> None:
        del resumed
        self.begun.append(run.id)
        self.begun_s.append(time.monotonic())
        await self.may_end.wait()

    async def advance(self, run_id: RunId, *, until: object = None) -> AgainIn:
        raise NotImplementedError

    async def end(self, run_id: RunId, code: object) -> None:
        raise NotImplementedError

    def hand_over(self) -> None:
        raise NotImplementedError


async def test_placings_give_way_to_acceptances() -> None:
    """Meanwhile one is placed at a time, so that none waits for ever; then as many as ever, in their order."""
    handlers = Handlers()
    async with open_task_group() as group:
        placements = Placements(handlers, group=group, bind=lambda: None)
        placements.give_way(is_accepting=True)
        for run in RUNS:
            placements.add(run)
        await until(lambda: len(handlers.begun) == 1)
        await asyncio.sleep(0.05)
        assert handlers.begun == [RUNS[0].id]
        placements.give_way(is_accepting=False)
        await until(lambda: len(handlers.begun) == PLACED_AT_ONCE)
        placements.give_way(is_accepting=True)
        handlers.may_end.set()
        await until(lambda: len(handlers.begun) == len(RUNS))
        assert handlers.begun == [run.id for run in RUNS]
        await placements.close(grace_s=1)


async def test_a_flood_leaves_pauses_between_placings() -> None:
    """However quick they are, most of the time is for those that are still to be acknowledged."""
    handlers = Handlers()
    handlers.may_end.set()
    async with open_task_group() as group:
        placements = Placements(handlers, group=group, bind=lambda: None)
        placements.give_way(is_accepting=True)
        for run in RUNS[:3]:
            placements.add(run)
        await until(lambda: len(handlers.begun) == 3)
        first_s, _, third_s = handlers.begun_s
        assert third_s - first_s > 1.9 * PAUSE_MEANWHILE_S
        await placements.close(grace_s=1)


async def test_each_is_bound_where_it_is_placed() -> None:
    """So that one that goes on after its process has lost its lease may do nothing more."""
    bound: ContextVar[bool] = ContextVar("bound", default=False)
    seen: list[bool] = []

    def bind() -> None:
        bound.set(True)

    class Bound(Handlers):
        @override
        async def place(self, run: Run, *, resumed: bool) -> None:
            del run, resumed
            seen.append(bound.get())

    async with open_task_group() as group:
        placements = Placements(Bound(), group=group, bind=bind)
        for run in RUNS[:2]:
            placements.add(run)
        await until(lambda: len(seen) == 2)
        await placements.close(grace_s=1)
    assert seen == [True, True]
    assert not bound.get()


async def test_late_questions_are_placed_in_their_order() -> None:
    """One after another, also those that another process had begun to place: none passes one that waits for Slack."""
    handlers = Handlers()
    late = [replace(run, request=run.request.model_copy(update={"late_s": 60})) for run in RUNS]
    async with open_task_group() as group:
        placements = Placements(handlers, group=group, bind=lambda: None)
        placements.add(late[0], resumed=True)
        for run in late[1:5]:
            placements.add(run)
        placements.add(RUNS[9])
        await until(lambda: len(handlers.begun) == 2)
        await asyncio.sleep(0.05)
        assert handlers.begun == [late[0].id, RUNS[9].id]
        handlers.may_end.set()
        await until(lambda: len(handlers.begun) == 6)
        assert handlers.begun[2:] == [run.id for run in late[1:5]]
        await placements.close(grace_s=1)


async def test_late_questions_do_not_pause_for_acknowledgements() -> None:
    """One at a time is their order, and no flood: a pause after each would keep the last of many waiting for nothing."""
    handlers = Handlers()
    handlers.may_end.set()
    async with open_task_group() as group:
        placements = Placements(handlers, group=group, bind=lambda: None)
        for run in RUNS:
            placements.add(replace(run, request=run.request.model_copy(update={"late_s": 60})))
        await until(lambda: len(handlers.begun) == len(RUNS))
        assert handlers.begun_s[-1] - handlers.begun_s[0] < len(RUNS) * PAUSE_MEANWHILE_S / 2
        await placements.close(grace_s=1)
