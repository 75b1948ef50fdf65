"""Whose run gets the next slot: people take turns, so that nobody's many threads make the others wait."""

import asyncio
from bisect import insort
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from app.runs.model import RunId
from app.runs.ports import SlotRequest


@dataclass(frozen=True, slots=True, order=True)
class Ticket:
    """One wait for a slot; a person's tickets sort as they are granted."""

    order: int
    number: int
    """Unique; tells apart what has the same order."""
    user: str


class FairQueue:
    """Who waits and who has a slot; pure.

    The next slot goes to the person with the fewest slots; of those to whoever was given one longest ago, or never;
    of those to the oldest message.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._waiting: dict[str, list[Ticket]] = {}
        self._slots: Counter[str] = Counter()
        self._served: dict[str, int] = {}
        """When each person was given a slot last, by the count of all. Kept while somebody waits or the person has one."""
        self._joined = 0
        self._granted = 0

    @property
    def waiting(self) -> int:
        return sum(len(tickets) for tickets in self._waiting.values())

    @property
    def taken(self) -> int:
        return self._slots.total()

    def join(self, request: SlotRequest) -> Ticket:
        self._joined += 1
        ticket = Ticket(request.order, self._joined, request.user)
        insort(self._waiting.setdefault(request.user, []), ticket)
        return ticket

    def remove(self, ticket: Ticket) -> None:
        tickets = self._waiting[ticket.user]
        tickets.remove(ticket)
        if not tickets:
            del self._waiting[ticket.user]
        self._forget()

    def grant_next(self) -> Ticket | None:
        """Gives the next slot away; None when all are taken or nobody waits."""
        if not self._waiting or self.taken >= self._capacity:
            return None
        user = min(self._waiting, key=self._rank)
        ticket = self._waiting[user][0]
        self._granted += 1
        self._served[user] = self._granted
        self._slots[user] += 1
        self.remove(ticket)
        return ticket

    def release(self, ticket: Ticket) -> None:
        self._slots[ticket.user] -= 1
        if not self._slots[ticket.user]:
            del self._slots[ticket.user]
        self._forget()

    def _rank(self, user: str) -> tuple[int, int, Ticket]:
        return self._slots[user], self._served.get(user, 0), self._waiting[user][0]

    def _forget(self) -> None:
        if not self._waiting:
            self._served = {
                user: granted for user, granted in self._served.items() if user in self._slots
            }


@dataclass(slots=True, kw_only=True, eq=False)
class _Waiter:
    run_id: RunId
    task: asyncio.Task[object]
    answer: asyncio.Future[bool]
    """True: it has a slot. False: it shall ask again."""


class FairScheduler:
    """Hands out `capacity` slots in the order of a FairQueue, two at least `interval_s` apart."""

    def __init__(self, *, capacity: int, interval_s: float = 0.0) -> None:
        self._queue = FairQueue(capacity)
        self._interval_s = interval_s
        self._next_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._waiters: dict[Ticket, _Waiter] = {}
        self._is_open = True

    @asynccontextmanager
    async def hold_slot(
        self, run_id: RunId, ask: Callable[[RunId], Awaitable[SlotRequest | None]]
    ) -> AsyncIterator[None]:
        """Waits for a slot and holds it while inside; at once and without one when `ask` says that none is needed."""
        while (request := await ask(run_id)) is not None:
            ticket = self._queue.join(request)
            if await self._wait(run_id, ticket):
                try:
                    yield
                finally:
                    self._queue.release(ticket)
                    self._hand_out()
                return
        yield

    def wake(self, run_id: RunId) -> None:
        """Lets a waiting run ask again."""
        for ticket, waiter in list(self._waiters.items()):
            if waiter.run_id == run_id:
                self._queue.remove(ticket)
                self._answer(ticket, is_granted=False)

    def close(self) -> None:
        """Gives no more slots, and cancels whoever waits for one."""
        self._is_open = False
        if self._timer is not None:
            self._timer.cancel()
        for waiter in self._waiters.values():
            waiter.task.cancel()

    async def _wait(self, run_id: RunId, ticket: Ticket) -> bool:
        """Whether the ticket was granted; the caller then gives the slot back."""
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
                self._queue.remove(ticket)
            elif not answer.cancelled() and answer.result():  # granted just before its cancellation
                self._queue.release(ticket)
            self._hand_out()
            raise

    def _hand_out(self) -> None:
        loop = asyncio.get_running_loop()
        while self._is_open and self._timer is None:
            if (wait_s := self._next_at - loop.time()) > 0:
                self._timer = loop.call_later(wait_s, self._tick)
                return
            ticket = self._queue.grant_next()
            if ticket is None:
                return
            if self._answer(ticket, is_granted=True):
                self._next_at = loop.time() + self._interval_s
            else:
                self._queue.release(ticket)

    def _tick(self) -> None:
        self._timer = None
        self._hand_out()

    def _answer(self, ticket: Ticket, *, is_granted: bool) -> bool:
        """Returns False when its task is cancelled, but has not run since."""
        answer = self._waiters.pop(ticket).answer
        if answer.cancelled():
            return False
        answer.set_result(is_granted)
        return True
