"""Whose run is claimed next: people take turns, whatever comes, goes and ends."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from app.runs.testing import Run, RunId, RunState, SystemClock
from app.store.memory import MemoryRunStore
from app.store.runs import SqlRunStore
from tests.building import make_request

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.integers(0, 3), st.integers(1, 5)),
        st.tuples(st.just("remove"), st.integers(0, 20), st.just(0)),
        st.tuples(st.just("end"), st.integers(0, 20), st.just(0)),
    ),
    max_size=60,
)


class Crowd:
    """Runs of people in threads of their own, with so many slots for them."""

    def __init__(self, store: MemoryRunStore | SqlRunStore, capacity: int) -> None:
        self.store = store
        self.capacity = capacity
        self.holding: list[Run] = []
        self._joined = 0

    async def join(self, user: str, order: int = 1) -> Run:
        """`order`: of its message; of the same order the first to join is older."""
        self._joined += 1
        request = make_request(ts=f"17953{order:05}.{self._joined:06}", user=user)
        run = Run(id=request.run_id, request=request, created_at=SystemClock().now())
        await self.store.add(run)
        await self.store.leases.schedule(run.id, state=RunState.PLACED)
        return run

    async def grant(self) -> list[str]:
        """Gives free slots away; returns whose got them."""
        await asyncio.sleep(0.002)  # times are told apart by the millisecond
        slots = self.capacity - len(self.holding)
        granted = await self.store.leases.claim(slots=slots, waits_s=1000)
        self.holding += granted
        return [run.request.user for run in granted]

    async def end(self, run: Run) -> None:
        self.holding.remove(run)
        await self.store.update(run.id, state=RunState.SUCCEEDED)


async def test_what_was_claimed_and_not_heard_of_is_found(
    store: MemoryRunStore | SqlRunStore,
) -> None:
    """What is known, what waits and what is over is not among it."""
    crowd = Crowd(store, 3)
    lost, known, over = [await crowd.join(f"U{n}") for n in range(3)]
    await crowd.grant()
    await crowd.join("U4")
    await crowd.end(next(run for run in crowd.holding if run.id == over.id))
    found = await store.leases.find_lost([known.id])
    assert [run.id for run in found] == [lost.id]
    assert await store.leases.find_lost([known.id, lost.id]) == []


async def test_a_backlog_does_not_delay_another_person(store: MemoryRunStore | SqlRunStore) -> None:
    """With one slot, the second person's only message goes before the rest of the first one's."""
    crowd = Crowd(store, 1)
    for order in range(1, 5):
        await crowd.join("U1", order)
    users = await crowd.grant()
    await crowd.join("U2", 9)
    for _ in range(4):
        await crowd.end(crowd.holding[0])
        users += await crowd.grant()
    assert users == ["U1", "U2", "U1", "U1", "U1"]


async def test_fewest_slots_go_first(store: MemoryRunStore | SqlRunStore) -> None:
    """Whoever has fewer slots is granted before whoever has more, even when served later."""
    crowd = Crowd(store, 3)
    await crowd.join("U1", 1)
    await crowd.join("U1", 2)
    await crowd.join("U2", 3)
    assert await crowd.grant() == ["U1", "U2", "U1"]
    granted = list(crowd.holding)
    await crowd.join("U1", 4)
    await crowd.join("U2", 5)
    await crowd.end(granted[1])
    assert await crowd.grant() == ["U2"]  # none against two
    await crowd.end(granted[2])
    assert await crowd.grant() == ["U1"]  # one each, and nobody else waits


async def test_who_comes_again_and_again_does_not_keep_others_waiting(
    store: MemoryRunStore | SqlRunStore,
) -> None:
    """Three people who always ask anew share one slot evenly with one who has a backlog."""
    crowd = Crowd(store, 1)
    for order in range(1, 9):
        await crowd.join("backlog", order)
    for user in ("a", "b", "c"):
        await crowd.join(user, 10)
    users = []
    for order in range(11, 23):
        users += await crowd.grant()
        await crowd.end(crowd.holding[0])
        if users[-1] != "backlog":
            await crowd.join(users[-1], order)
    assert {user: users.count(user) for user in users} == {"backlog": 3, "a": 3, "b": 3, "c": 3}


async def test_what_has_begun_goes_before_what_has_not(store: MemoryRunStore | SqlRunStore) -> None:
    """It holds a sandbox, and has had its turn."""
    crowd = Crowd(store, 1)
    await crowd.join("U1", 1)
    await crowd.grant()
    (begun,) = crowd.holding
    await store.begin(begun)
    await crowd.join("U2", 2)
    await store.leases.release(begun.id, after_s=0)
    crowd.holding.clear()
    assert await crowd.grant() == ["U1"]


async def test_what_is_to_come_again_later_is_not_claimed_before(
    store: MemoryRunStore | SqlRunStore,
) -> None:
    """Nor is what another one has."""
    crowd = Crowd(store, 1)
    await crowd.join("U1", 1)
    await crowd.grant()
    await store.leases.release(crowd.holding.pop().id, after_s=0.5)
    assert await crowd.grant() == []
    await asyncio.sleep(0.6)
    assert await crowd.grant() == ["U1"]
    assert await store.leases.claim(slots=5, waits_s=1000) == []


@given(capacity=st.integers(1, 4), steps=STEPS)
async def test_claims_hold_their_promises(capacity: int, steps: list[tuple[str, int, int]]) -> None:
    """Never more than the capacity, never an empty slot while somebody waits, FIFO per person, and the rule for the next."""
    crowd = Crowd(MemoryRunStore(), capacity)
    waiting: dict[RunId, Run] = {}
    for kind, number, order in steps:
        if kind == "join":
            run = await crowd.join(f"U{number}", order)
            waiting[run.id] = run
        elif kind == "remove" and waiting:
            run = waiting.pop(list(waiting)[number % len(waiting)])
            await crowd.store.update(run.id, state=RunState.STOPPED)
        elif kind == "end" and crowd.holding:
            await crowd.end(crowd.holding[number % len(crowd.holding)])
        held = list(crowd.holding)
        await crowd.grant()
        for granted in crowd.holding[len(held) :]:
            own = [run for run in waiting.values() if run.request.user == granted.request.user]
            assert granted.id == min(own, key=lambda run: run.request.message_ts).id
            slots = {
                run.request.user: sum(one.request.user == run.request.user for one in held)
                for run in waiting.values()
            }
            assert slots[granted.request.user] == min(slots.values())
            del waiting[granted.id]
            held.append(granted)
        assert len(crowd.holding) <= capacity
        assert not waiting or len(crowd.holding) == capacity


@given(
    capacity=st.integers(1, 3),
    backlog=st.lists(st.integers(0, 4), max_size=30),
    asks=st.integers(0, 4),
)
async def test_nobody_starves(capacity: int, backlog: list[int], asks: int) -> None:
    """Whoever has no slot gets one before anybody else has been given two more, however the others keep asking."""
    crowd = Crowd(MemoryRunStore(), capacity)
    for order, user in enumerate(backlog, start=1):
        await crowd.join(f"U{user}", order)
    await crowd.grant()
    await crowd.join("patient", 1000)
    given: list[str] = []
    for order in range(1001, 1100):
        if not crowd.holding or "patient" in given:
            break
        await crowd.end(crowd.holding[0])
        await crowd.join(f"U{asks}", order)
        given += await crowd.grant()
    assert capacity > len(backlog) or "patient" in given
    assert max((given.count(user) for user in given), default=0) <= 1
