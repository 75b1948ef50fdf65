"""People take turns for slots, whatever comes, goes and is cancelled."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hypothesis import given
from hypothesis import strategies as st

from app.dispatch.fair_queue import FairQueue, FairScheduler, Ticket
from app.runs.testing import RunId, SlotRequest
from sandbox_runtime.task_group import TaskGroup, open_task_group

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.integers(0, 3), st.integers(1, 5)),
        st.tuples(st.just("remove"), st.integers(0, 20), st.just(0)),
        st.tuples(st.just("end"), st.integers(0, 20), st.just(0)),
    ),
    max_size=60,
)


def request(user: str = "U1", order: int = 1) -> SlotRequest:
    return SlotRequest(user=user, order=order)


def grant_all(queue: FairQueue) -> list[Ticket]:
    granted = []
    while (ticket := queue.grant_next()) is not None:
        granted.append(ticket)
    return granted


def test_a_backlog_does_not_delay_another_person() -> None:
    """With one slot, the second person's only message goes before the rest of the first one's."""
    queue = FairQueue(1)
    for order in range(1, 5):
        queue.join(request("U1", order))
    (first,) = grant_all(queue)
    queue.join(request("U2", 9))
    users = [first.user]
    for _ in range(4):
        queue.release(first)
        (first,) = grant_all(queue)
        users.append(first.user)
    assert users == ["U1", "U2", "U1", "U1", "U1"]


def test_fewest_places_go_first() -> None:
    """Whoever has fewer slots is granted before whoever has more, even when served later."""
    queue = FairQueue(3)
    queue.join(request("U1", 1))
    queue.join(request("U1", 2))
    queue.join(request("U2", 3))
    granted = grant_all(queue)
    assert [ticket.user for ticket in granted] == ["U1", "U2", "U1"]
    queue.join(request("U1", 4))
    queue.join(request("U2", 5))
    queue.release(granted[1])
    assert [ticket.user for ticket in grant_all(queue)] == ["U2"]  # none against two
    queue.release(granted[2])
    assert [ticket.user for ticket in grant_all(queue)] == ["U1"]  # one each, and nobody else waits


def test_who_comes_again_and_again_does_not_keep_others_waiting() -> None:
    """Three people who always ask anew share one slot evenly with one who has a backlog."""
    queue = FairQueue(1)
    for order in range(1, 9):
        queue.join(request("backlog", order))
    for user in ("a", "b", "c"):
        queue.join(request(user, 10))
    users = []
    for order in range(11, 23):
        (ticket,) = grant_all(queue)
        users.append(ticket.user)
        queue.release(ticket)
        if ticket.user != "backlog":
            queue.join(request(ticket.user, order))
    assert {user: users.count(user) for user in users} == {"backlog": 3, "a": 3, "b": 3, "c": 3}


@given(capacity=st.integers(1, 4), steps=STEPS)
def test_line_holds_its_promises(capacity: int, steps: list[tuple[str, int, int]]) -> None:
    """Never more than the capacity, never an empty slot while somebody waits, FIFO per person, and the rule for the next."""
    queue = FairQueue(capacity)
    waiting: list[Ticket] = []
    holding: list[Ticket] = []
    for kind, number, order in steps:
        if kind == "join":
            waiting.append(queue.join(request(f"U{number}", order)))
        elif kind == "remove" and waiting:
            queue.remove(waiting.pop(number % len(waiting)))
        elif kind == "end" and holding:
            queue.release(holding.pop(number % len(holding)))
        while (granted := queue.grant_next()) is not None:
            assert granted == min(ticket for ticket in waiting if ticket.user == granted.user)
            slots = {
                ticket.user: sum(held.user == ticket.user for held in holding) for ticket in waiting
            }
            assert slots[granted.user] == min(slots.values())
            waiting.remove(granted)
            holding.append(granted)
        assert queue.taken == len(holding) <= capacity
        assert queue.waiting == len(waiting)
        assert not waiting or len(holding) == capacity


@given(
    capacity=st.integers(1, 3),
    backlog=st.lists(st.integers(0, 4), max_size=30),
    asks=st.integers(0, 4),
)
def test_nobody_starves(capacity: int, backlog: list[int], asks: int) -> None:
    """Whoever has no slot gets one before anybody else has been given two more, however the others keep asking."""
    queue = FairQueue(capacity)
    for order, user in enumerate(backlog, start=1):
        queue.join(request(f"U{user}", order))
    holding = grant_all(queue)
    queue.join(request("patient", 1000))
    given: list[str] = []
    for order in range(1001, 1100):
        if not holding:
            break
        ended = holding.pop(0)
        queue.release(ended)
        queue.join(request(f"U{asks}", order))
        granted = grant_all(queue)
        given += [ticket.user for ticket in granted]
        holding += granted
        if "patient" in given:
            break
    assert capacity > len(backlog) or "patient" in given
    assert max((given.count(user) for user in given), default=0) <= 1


def test_nothing_is_remembered_of_people_who_are_gone() -> None:
    """With nobody waiting and no slot taken the queue is as new."""
    queue = FairQueue(2)
    for number in range(100):
        queue.join(request(f"U{number}", number))
    while granted := grant_all(queue):
        for ticket in granted:
            queue.release(ticket)
    assert (queue.waiting, queue.taken, queue._served) == (0, 0, {})


class Crowd:
    """Tasks that go through a scheduler and stay inside until told to go."""

    def __init__(self, scheduler: FairScheduler, group: TaskGroup) -> None:
        self.scheduler = scheduler
        self._group = group
        self.inside: list[str] = []
        self.most = 0
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._leave: dict[str, asyncio.Event] = {}
        self.requests: dict[str, SlotRequest | None] = {}

    async def come(self, name: str, *, user: str = "U1", order: int = 1) -> None:
        self.requests.setdefault(name, request(user, order))
        self._leave[name] = asyncio.Event()
        self.tasks[name] = self._group.create_task(self._stay(name))
        await settle()

    async def go(self, name: str) -> None:
        self._leave[name].set()
        await settle()

    async def _stay(self, name: str) -> None:
        async with self.scheduler.hold_slot(RunId(name), self._ask):
            self.inside.append(name)
            self.most = max(self.most, len(self.inside))
            try:
                await self._leave[name].wait()
            finally:
                self.inside.remove(name)

    async def _ask(self, run_id: RunId) -> SlotRequest | None:
        return self.requests[run_id]


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@asynccontextmanager
async def crowd(*, capacity: int = 1, interval_s: float = 0.0) -> AsyncIterator[Crowd]:
    async with open_task_group() as group:
        crowd = Crowd(FairScheduler(capacity=capacity, interval_s=interval_s), group)
        yield crowd
        for task in crowd.tasks.values():
            task.cancel()


async def test_a_cancelled_waiter_gives_its_turn_back() -> None:
    """Cancelled while waiting, or in the very moment it is granted, it keeps nobody out."""
    async with crowd() as people:
        for order, name in enumerate("abcd"):
            await people.come(name, order=order)
        people.tasks["b"].cancel()
        await settle()
        people.tasks["a"].cancel()
        people.tasks["c"].cancel()  # `a` leaves and calls `c` before `c` has run
        await settle()
        assert people.inside == ["d"]
        await people.go("d")
        await people.come("e")
        assert people.inside == ["e"]


async def test_called_and_cancelled_before_it_runs() -> None:
    """A slot that was given to a task which is then cancelled goes to the next one."""
    async with crowd() as people:
        for order, name in enumerate("abc"):
            await people.come(name, order=order)
        people._leave["a"].set()
        await asyncio.sleep(0)  # `a` is out, `b` is granted but has not run
        people.tasks["b"].cancel()
        await settle()
        assert people.inside == ["c"]


async def test_all_cancelled_at_once_leave_an_empty_gate() -> None:
    """As at the end of the process: nobody gets in between."""
    async with crowd(capacity=2) as people:
        for order, name in enumerate("abcdef"):
            await people.come(name, order=order)
        for task in people.tasks.values():
            task.cancel()
        await settle()
        assert (people.inside, people.most) == ([], 2)
        await people.come("g")
        assert people.inside == ["g"]


async def test_who_needs_no_place_passes() -> None:
    """Without a request a run goes through beside those that have the slots, also when it loses its request while it waits."""
    async with crowd() as people:
        people.requests["over"] = None
        for name in ("a", "b", "over"):
            await people.come(name)
        assert people.inside == ["a", "over"]
        people.requests["b"] = None
        people.scheduler.wake(RunId("b"))
        await settle()
        assert people.inside == ["a", "over", "b"]
        await people.go("over")
        await people.go("b")
        await people.come("c")
        assert people.inside == ["a"]


async def test_a_closed_gate_gives_no_place() -> None:
    """Closing cancels who waits and who comes later, and leaves those inside alone."""
    async with crowd() as people:
        await people.come("a")
        await people.come("b")
        people.scheduler.close()
        await people.come("c")
        assert [people.tasks[name].cancelled() for name in "abc"] == [False, True, True]
        await people.go("a")
        assert people.inside == []


async def test_places_are_given_at_intervals() -> None:
    """Two are never given closer together than the interval."""
    loop = asyncio.get_running_loop()
    async with crowd(capacity=3, interval_s=0.03) as people:
        began = loop.time()
        for name in "abc":
            await people.come(name)
        assert people.inside == ["a"]
        async with asyncio.timeout(5):
            while len(people.inside) < 3:
                await asyncio.sleep(0.001)
        assert loop.time() - began >= 0.06
