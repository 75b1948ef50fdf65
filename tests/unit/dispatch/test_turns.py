"""People take turns for places, whatever comes, goes and is cancelled."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hypothesis import given
from hypothesis import strategies as st

from app.dispatch.turns import Gate, Line, Ticket
from app.runs.model import RunId
from app.runs.ports import Turn
from sandbox_runtime.task_group import TaskGroup, open_task_group

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.integers(0, 3), st.integers(1, 5)),
        st.tuples(st.just("leave"), st.integers(0, 20), st.just(0)),
        st.tuples(st.just("end"), st.integers(0, 20), st.just(0)),
    ),
    max_size=60,
)


def turn(user: str = "U1", order: int = 1) -> Turn:
    return Turn(user=user, order=order)


def call_all(line: Line) -> list[Ticket]:
    called = []
    while (ticket := line.call()) is not None:
        called.append(ticket)
    return called


def test_a_backlog_does_not_delay_another_person() -> None:
    """With one place, the second person's only message goes before the rest of the first one's."""
    line = Line(1)
    for order in range(1, 5):
        line.join(turn("U1", order))
    (first,) = call_all(line)
    line.join(turn("U2", 9))
    users = [first.user]
    for _ in range(4):
        line.give_back(first)
        (first,) = call_all(line)
        users.append(first.user)
    assert users == ["U1", "U2", "U1", "U1", "U1"]


def test_fewest_places_go_first() -> None:
    """Whoever has fewer places is called before whoever has more, even when served later."""
    line = Line(3)
    line.join(turn("U1", 1))
    line.join(turn("U1", 2))
    line.join(turn("U2", 3))
    called = call_all(line)
    assert [ticket.user for ticket in called] == ["U1", "U2", "U1"]
    line.join(turn("U1", 4))
    line.join(turn("U2", 5))
    line.give_back(called[1])
    assert [ticket.user for ticket in call_all(line)] == ["U2"]  # none against two
    line.give_back(called[2])
    assert [ticket.user for ticket in call_all(line)] == ["U1"]  # one each, and nobody else waits


def test_who_comes_again_and_again_does_not_keep_others_waiting() -> None:
    """Three people who always ask anew share one place evenly with one who has a backlog."""
    line = Line(1)
    for order in range(1, 9):
        line.join(turn("backlog", order))
    for user in ("a", "b", "c"):
        line.join(turn(user, 10))
    users = []
    for order in range(11, 23):
        (ticket,) = call_all(line)
        users.append(ticket.user)
        line.give_back(ticket)
        if ticket.user != "backlog":
            line.join(turn(ticket.user, order))
    assert {user: users.count(user) for user in users} == {"backlog": 3, "a": 3, "b": 3, "c": 3}


@given(capacity=st.integers(1, 4), steps=STEPS)
def test_line_holds_its_promises(capacity: int, steps: list[tuple[str, int, int]]) -> None:
    """Never more than the capacity, never an empty place while somebody waits, FIFO per person, and the rule for the next."""
    line = Line(capacity)
    waiting: list[Ticket] = []
    holding: list[Ticket] = []
    for kind, number, order in steps:
        if kind == "join":
            waiting.append(line.join(turn(f"U{number}", order)))
        elif kind == "leave" and waiting:
            line.leave(waiting.pop(number % len(waiting)))
        elif kind == "end" and holding:
            line.give_back(holding.pop(number % len(holding)))
        while (called := line.call()) is not None:
            assert called == min(ticket for ticket in waiting if ticket.user == called.user)
            places = {
                ticket.user: sum(held.user == ticket.user for held in holding) for ticket in waiting
            }
            assert places[called.user] == min(places.values())
            waiting.remove(called)
            holding.append(called)
        assert line.taken == len(holding) <= capacity
        assert line.waiting == len(waiting)
        assert not waiting or len(holding) == capacity


@given(
    capacity=st.integers(1, 3),
    backlog=st.lists(st.integers(0, 4), max_size=30),
    asks=st.integers(0, 4),
)
def test_nobody_starves(capacity: int, backlog: list[int], asks: int) -> None:
    """Whoever has no place gets one before anybody else has been given two more, however the others keep asking."""
    line = Line(capacity)
    for order, user in enumerate(backlog, start=1):
        line.join(turn(f"U{user}", order))
    holding = call_all(line)
    line.join(turn("patient", 1000))
    given: list[str] = []
    for order in range(1001, 1100):
        if not holding:
            break
        ended = holding.pop(0)
        line.give_back(ended)
        line.join(turn(f"U{asks}", order))
        called = call_all(line)
        given += [ticket.user for ticket in called]
        holding += called
        if "patient" in given:
            break
    assert capacity > len(backlog) or "patient" in given
    assert max((given.count(user) for user in given), default=0) <= 1


def test_nothing_is_remembered_of_people_who_are_gone() -> None:
    """With nobody waiting and no place taken the line is as new."""
    line = Line(2)
    for number in range(100):
        line.join(turn(f"U{number}", number))
    while called := call_all(line):
        for ticket in called:
            line.give_back(ticket)
    assert (line.waiting, line.taken, line._served) == (0, 0, {})


class Crowd:
    """Tasks that go through a gate and stay inside until told to go."""

    def __init__(self, gate: Gate, group: TaskGroup) -> None:
        self.gate = gate
        self._group = group
        self.inside: list[str] = []
        self.most = 0
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._leave: dict[str, asyncio.Event] = {}
        self.turns: dict[str, Turn | None] = {}

    async def come(self, name: str, *, user: str = "U1", order: int = 1) -> None:
        self.turns.setdefault(name, turn(user, order))
        self._leave[name] = asyncio.Event()
        self.tasks[name] = self._group.create_task(self._stay(name))
        await settle()

    async def go(self, name: str) -> None:
        self._leave[name].set()
        await settle()

    async def _stay(self, name: str) -> None:
        async with self.gate.place(RunId(name), self._ask):
            self.inside.append(name)
            self.most = max(self.most, len(self.inside))
            try:
                await self._leave[name].wait()
            finally:
                self.inside.remove(name)

    async def _ask(self, run_id: RunId) -> Turn | None:
        return self.turns[run_id]


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@asynccontextmanager
async def crowd(*, capacity: int = 1, interval_s: float = 0.0) -> AsyncIterator[Crowd]:
    async with open_task_group() as group:
        crowd = Crowd(Gate(capacity=capacity, interval_s=interval_s), group)
        yield crowd
        for task in crowd.tasks.values():
            task.cancel()


async def test_a_cancelled_waiter_gives_its_turn_back() -> None:
    """Cancelled while waiting, or in the very moment it is called, it keeps nobody out."""
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
    """A place that was given to a task which is then cancelled goes to the next one."""
    async with crowd() as people:
        for order, name in enumerate("abc"):
            await people.come(name, order=order)
        people._leave["a"].set()
        await asyncio.sleep(0)  # `a` is out, `b` is called but has not run
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
    """Without a turn a run goes through beside those that have the places, also when it loses its turn while it waits."""
    async with crowd() as people:
        people.turns["over"] = None
        for name in ("a", "b", "over"):
            await people.come(name)
        assert people.inside == ["a", "over"]
        people.turns["b"] = None
        people.gate.wake(RunId("b"))
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
        people.gate.close()
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
