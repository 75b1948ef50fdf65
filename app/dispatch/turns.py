"""Whose run gets the next place: people take turns, so that nobody's many threads make the others wait."""

import asyncio
from bisect import insort
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from app.runs.model import RunId
from app.runs.ports import Turn


@dataclass(frozen=True, slots=True, order=True)
class Ticket:
    """One wait for a place; a person's tickets sort as they are called."""

    order: int
    number: int
    """Unique; tells apart what has the same order."""
    user: str


class Line:
    """Who waits and who has a place; pure.

    The next place goes to the person with the fewest places; of those to whoever was given one longest ago, or never;
    of those to the oldest message.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._waiting: dict[str, list[Ticket]] = {}
        self._places: Counter[str] = Counter()
        self._served: dict[str, int] = {}
        """When each person was given a place last, by the count of all. Kept while somebody waits or the person has one."""
        self._joined = 0
        self._called = 0

    @property
    def waiting(self) -> int:
        return sum(len(tickets) for tickets in self._waiting.values())

    @property
    def taken(self) -> int:
        return self._places.total()

    def join(self, turn: Turn) -> Ticket:
        self._joined += 1
        ticket = Ticket(turn.order, self._joined, turn.user)
        insort(self._waiting.setdefault(turn.user, []), ticket)
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Give up waiting."""
        tickets = self._waiting[ticket.user]
        tickets.remove(ticket)
        if not tickets:
            del self._waiting[ticket.user]
        self._forget()

    def call(self) -> Ticket | None:
        """Give the next place away; None when all are taken or nobody waits."""
        if not self._waiting or self.taken >= self._capacity:
            return None
        user = min(self._waiting, key=self._rank)
        ticket = self._waiting[user][0]
        self._called += 1
        self._served[user] = self._called
        self._places[user] += 1
        self.leave(ticket)
        return ticket

    def give_back(self, ticket: Ticket) -> None:
        """The place of a called ticket is free again."""
        self._places[ticket.user] -= 1
        if not self._places[ticket.user]:
            del self._places[ticket.user]
        self._forget()

    def _rank(self, user: str) -> tuple[int, int, Ticket]:
        return self._places[user], self._served.get(user, 0), self._waiting[user][0]

    def _forget(self) -> None:
        if not self._waiting:
            self._served = {
                user: called for user, called in self._served.items() if user in self._places
            }


@dataclass(slots=True, kw_only=True, eq=False)
class _Waiter:
    run_id: RunId
    task: asyncio.Task[object]
    answer: asyncio.Future[bool]
    """True: it has a place. False: it shall ask for its turn again."""


class Gate:
    """Hands out `capacity` places in the order of a Line, two at least `interval_s` apart."""

    def __init__(self, *, capacity: int, interval_s: float = 0.0) -> None:
        self._line = Line(capacity)
        self._interval_s = interval_s
        self._next_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._waiters: dict[Ticket, _Waiter] = {}
        self._is_open = True

    @asynccontextmanager
    async def place(
        self, run_id: RunId, ask: Callable[[RunId], Awaitable[Turn | None]]
    ) -> AsyncIterator[None]:
        """Wait for a place and hold it while inside; at once and without one when `ask` says that none is needed."""
        while (turn := await ask(run_id)) is not None:
            ticket = self._line.join(turn)
            if await self._wait(run_id, ticket):
                try:
                    yield
                finally:
                    self._line.give_back(ticket)
                    self._hand_out()
                return
        yield

    def wake(self, run_id: RunId) -> None:
        """Let a waiting run ask for its turn again."""
        for ticket, waiter in list(self._waiters.items()):
            if waiter.run_id == run_id:
                self._line.leave(ticket)
                self._answer(ticket, is_called=False)

    def close(self) -> None:
        """Give no more places, and cancel whoever waits for one."""
        self._is_open = False
        if self._timer is not None:
            self._timer.cancel()
        for waiter in self._waiters.values():
            waiter.task.cancel()

    async def _wait(self, run_id: RunId, ticket: Ticket) -> bool:
        """Whether the ticket was called; the caller then gives the place back."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - inside a coroutine there is one
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiters[ticket] = _Waiter(run_id=run_id, task=task, answer=answer)
        if self._is_open:
            self._hand_out()
        else:
            task.cancel()
        try:
            return await answer
        except asyncio.CancelledError:
            if self._waiters.pop(ticket, None) is not None:
                self._line.leave(ticket)
            elif not answer.cancelled() and answer.result():  # called just before its cancellation
                self._line.give_back(ticket)
            self._hand_out()
            raise

    def _hand_out(self) -> None:
        loop = asyncio.get_running_loop()
        while self._is_open and self._timer is None:
            if (wait_s := self._next_at - loop.time()) > 0:
                self._timer = loop.call_later(wait_s, self._tick)
                return
            ticket = self._line.call()
            if ticket is None:
                return
            if self._answer(ticket, is_called=True):
                self._next_at = loop.time() + self._interval_s
            else:
                self._line.give_back(ticket)

    def _tick(self) -> None:
        self._timer = None
        self._hand_out()

    def _answer(self, ticket: Ticket, *, is_called: bool) -> bool:
        """False: its task is cancelled, but has not run since."""
        answer = self._waiters.pop(ticket).answer
        if answer.cancelled():
            return False
        answer.set_result(is_called)
        return True
