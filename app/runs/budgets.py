"""Budgets: how much model calls may cost for a run, and in a day for a person, a channel and all; kept while runs go.

A day is one of UTC. What runs spend is known from the broker's count and the price table, not from agents; it is counted in
memory as each call ends, and written behind, so that the next process goes on from there. What people pay themselves, with
keys of their own, is told but not limited.
"""

import asyncio
import uuid
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from typing import Protocol

from tenacity import AsyncRetrying, wait_fixed

from app.runs.broker_ports import Denied
from app.runs.costs import Prices, money_text, to_dollars
from app.runs.model import ModelCall, Run, RunId, RunRequest, Usage
from app.runs.ports import Clock

WRITE_RETRY_S = 1.0
MAX_UNWRITTEN = 10_000
"""Calls that a sick database may make wait; then the oldest are given up, and with them their part of the next process's sums."""

KEPT_DAYS = 8
"""Days whose sums are in memory, those that the clock came to last; one is needed, others are for a clock that jumps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """In micro-dollars; None = as much as it takes."""

    run: int | None = None
    user_day: int | None = None
    channel_day: int | None = None
    day: int | None = None
    channels: Mapping[str, int] = field(default_factory=dict)
    """Days of channels that have a budget of their own, by ids."""

    @property
    def is_set(self) -> bool:
        """Whether there is any."""
        limits = (self.run, self.user_day, self.channel_day, self.day)
        return any(one is not None for one in limits) or bool(self.channels)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpentCall:
    """One model call that has ended."""

    id: str
    run_id: RunId
    agent: str
    model: str
    team: str
    user: str
    channel: str
    at: datetime
    usage: Usage
    cost: int | None
    """Micro-dollars; None = nobody knows."""
    is_own_key: bool = False
    """Paid by the person, who gave the key: no budget is used up."""


@dataclass(slots=True, kw_only=True)
class CallFigures:
    """Of one agent and model, since this process began."""

    calls: int = 0
    tokens: int = 0
    cost: int = 0
    """Micro-dollars, of the calls whose cost is known."""


class SpendingStore(Protocol):
    """Model calls, kept as long as their runs."""

    async def add(self, calls: Sequence[SpentCall]) -> None:
        """All or none; safe to repeat."""
        ...

    async def since(self, at: datetime) -> Sequence[SpentCall]:
        """Those that ended then or later."""
        ...

    async def of_run(self, run_id: RunId) -> Sequence[SpentCall]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """A budget that is used up."""

    sentence: str
    """For the person who asked: lower case, no full stop."""


class Ledger:
    """What has been spent. One for each process that runs agents."""

    def __init__(
        self, *, prices: Prices, budgets: Budgets, store: SpendingStore, clock: Clock
    ) -> None:
        self._prices = prices
        self._budgets = budgets
        self._store = store
        self._clock = clock
        self._spent: dict[date, Counter[tuple[str, ...]]] = {}
        """By days, and in them by whose budget it is."""
        self._unwritten: list[SpentCall] = []
        self._has_news = asyncio.Event()
        self.figures: dict[tuple[str, str], CallFigures] = {}
        """By agent and model."""

    async def load(self) -> None:
        """Take up what has been spent today."""
        midnight = datetime.combine(self._today(), datetime.min.time(), UTC)
        for call in await self._store.since(midnight):
            self._add(call)

    async def spending(self, run: Run) -> "Spending":
        """Of a run that begins, or goes on after a crash."""
        return await self.spent(run) if run.attempt > 1 else Spending(self, run, ())

    async def spent(self, run: Run) -> "Spending":
        """With all that it has spent, in earlier processes, too."""
        unwritten = {call.id: call for call in self._unwritten if call.run_id == run.id}
        written = {call.id: call for call in await self._store.of_run(run.id)}
        return Spending(self, run, (unwritten | written).values())

    def excess(self, request: RunRequest, *, run_cost: int = 0, held: int = 0) -> Excess | None:
        """The budget that keeps this request from asking a model now; `run_cost` is what it has spent itself, `held` what it is about to."""
        limit = self._budgets.run
        if limit is not None and run_cost + held >= limit:
            sentence = f"this request has used the {money_text(limit)} that one may cost"
            return Excess(sentence=sentence)
        spent = self._spent.get(self._today(), Counter())
        channel_limit = self._budgets.channels.get(request.channel, self._budgets.channel_day)
        channel = _channel_key(request.team, request.channel)
        for key, of_whom, limit in (
            (_user_key(request.team, request.user), "your budget", self._budgets.user_day),
            (channel, "this channel's budget", channel_limit),
            (_ALL, "Orion's budget", self._budgets.day),
        ):
            if limit is not None and spent[key] + held >= limit:
                sentence = f"{of_whom} for today ({money_text(limit)}) is used up; it begins anew at 00:00 UTC, {self._wait_text()}"
                return Excess(sentence=sentence)
        return None

    def least_cost(self, model: str, asked_tokens: int) -> int:
        """Micro-dollars for what a call reads, whatever it answers; nothing where nobody knows."""
        return self._prices.cost(model, Usage(input_tokens=asked_tokens)) or 0

    def cost(self, call: ModelCall) -> int | None:
        """Micro-dollars of one call; None = nobody knows."""
        return self._prices.cost(call.model, call.usage)

    def count(self, call: SpentCall) -> None:
        """From now on it is spent."""
        self._add(call)
        figures = self.figures.setdefault((call.agent, call.model), CallFigures())
        figures.calls += 1
        figures.tokens += call.usage.tokens
        figures.cost += call.cost or 0
        self._unwritten.append(call)
        if len(self._unwritten) > MAX_UNWRITTEN:
            del self._unwritten[: len(self._unwritten) - MAX_UNWRITTEN]
        self._has_news.set()

    async def write_forever(self) -> None:
        """Write behind. At the end of the process `write` what is left."""
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            async for attempt in AsyncRetrying(wait=wait_fixed(WRITE_RETRY_S)):
                with attempt:
                    await self.write()

    async def write(self) -> None:
        """What has not been written yet. What the database does not take now is written the next time."""
        calls = tuple(self._unwritten)
        if not calls:
            return
        await self._store.add(calls)
        written = {call.id for call in calls}
        self._unwritten = [call for call in self._unwritten if call.id not in written]

    def _today(self) -> date:
        return self._clock.now().astimezone(UTC).date()

    def _add(self, call: SpentCall) -> None:
        """To its own day, which a clock that jumps ahead and back finds again as it was."""
        if call.is_own_key or call.cost is None:
            return
        day = self._spent.setdefault(call.at.astimezone(UTC).date(), Counter())
        if len(self._spent) > KEPT_DAYS:
            del self._spent[next(iter(self._spent))]
        for key in (_user_key(call.team, call.user), _channel_key(call.team, call.channel), _ALL):
            day[key] += call.cost

    def _wait_text(self) -> str:
        now = self._clock.now().astimezone(UTC)
        midnight = datetime.combine(now.date() + timedelta(days=1), datetime.min.time(), UTC)
        minutes = max(1, round((midnight - now).total_seconds() / 60))
        return f"in {round(minutes / 60)} h" if minutes >= _MINUTES_SHOWN else f"in {minutes} min"


class Spending:
    """What one run spends; asked by the broker before each of its model calls, and told after it."""

    def __init__(self, ledger: Ledger, run: Run, earlier: Iterable[SpentCall]) -> None:
        self._ledger = ledger
        self._run = run
        self.usage = Usage()
        """Of all its calls."""
        self._cost = 0
        self._charged = 0
        """Micro-dollars of the cost that the operator pays."""
        self._is_unknown = False
        self._in_flight: deque[int] = deque()
        """Micro-dollars for what they read, of calls that have leave and are not counted."""
        self.excess: Excess | None = None
        """The budget that has ended it."""
        self.is_own_key = False
        """The person pays what it asks from now on: no budget counts."""
        for call in earlier:
            self._take(call)

    @property
    def cost(self) -> int | None:
        """Micro-dollars so far; None = nobody knows, as the price of a model is not set."""
        return None if self._is_unknown else self._cost

    @property
    def cost_usd(self) -> float | None:
        """For the record; None also when no model was asked."""
        is_known = not self._is_unknown and self.usage.model_calls
        return to_dollars(self._cost) if is_known else None

    def refusal(self, model: str, asked_tokens: int) -> Denied | None:
        """Why it may not ask that model now; see `AskLeave`.

        What its own calls in flight read counts as spent. That is dearer than the truth where the provider has it in its
        cache, so it ends nothing: the call may be made when they are counted.
        """
        if self.is_own_key:
            return None
        request = self._run.request
        self.excess = self.excess or self._ledger.excess(request, run_cost=self._charged)
        if self.excess is not None:
            return Denied(reason=self.excess.sentence)
        held = sum(self._in_flight)
        if held and (excess := self._ledger.excess(request, run_cost=self._charged, held=held)):
            reason = f"with the calls that are in flight, {excess.sentence}"
            return Denied(reason=reason, may_pass=True)
        self._in_flight.append(self._ledger.least_cost(model, asked_tokens))
        return None

    def count(self, call: ModelCall) -> ModelCall:
        """The call with its cost."""
        if call.is_refused:
            return call
        if self._in_flight:
            self._in_flight.popleft()  # one of them, mostly the oldest; their number is right
        request = self._run.request
        spent = SpentCall(
            id=uuid.uuid4().hex,
            run_id=self._run.id,
            agent=self._run.agent,
            model=call.model,
            team=request.team,
            user=request.user,
            channel=request.channel,
            at=call.ended_at,
            usage=replace(call.usage, model_calls=1),
            cost=self._ledger.cost(call),
            is_own_key=self.is_own_key,
        )
        self._take(spent)
        self._ledger.count(spent)
        return replace(call, cost=spent.cost)

    def _take(self, call: SpentCall) -> None:
        self.usage = self.usage + call.usage
        if call.cost is None:
            self._is_unknown = True
        else:
            self._cost += call.cost
            self._charged += 0 if call.is_own_key else call.cost


_ALL = ("all",)
_MINUTES_SHOWN = 90


def _user_key(team: str, user: str) -> tuple[str, ...]:
    return ("user", team, user)


def _channel_key(team: str, channel: str) -> tuple[str, ...]:
    return ("channel", team, channel)
