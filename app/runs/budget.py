"""What model calls cost, and what they may: the operator's price table, budgets, and the ledger of what was spent.

Money is whole micro-dollars, rounded up for each call. A day is one of UTC. What runs spend is known from the broker's count
and the price table, not from agents; it is counted in memory as each call ends, and written behind, so that the next process
goes on from there. Processes on one database add to the same sums of a day, and look at them every two seconds. What people pay themselves, with keys of their own, is told but not limited.
"""

import asyncio
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_CEILING, Decimal
from typing import Protocol

from tenacity import AsyncRetrying, wait_fixed

from app.permissions.rules import Permissions
from app.runs.model import Clock, ModelCall, Run, Usage
from app.runs.request import RunId, RunRequest

MICRO = 1_000_000
"""Micro-dollars in a dollar; so a price in dollars for a million tokens is one in micro-dollars for a token."""
ANY_ENDING = "*"
JUDGEMENTS = RunId("follow-ups")
"""In place of a run and an agent: of calls that judge for whom a reply is."""
MAX_RUN_USD = 1_000_000
"""What an agent says beyond this is no cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Prices of one model, in dollars for a million tokens; 0 = free."""

    input: Decimal
    output: Decimal
    cache_read: Decimal
    cache_write: Decimal
    cache_write_1h: Decimal | None = None
    """Of what is kept for an hour; None = twice the input. Source: Claude documentation, Prompt caching, pricing, read 2026-11."""

    def of(self, usage: Usage) -> int:
        """Returns micro-dollars."""
        kept_1h = min(usage.cache_creation_1h_tokens, usage.cache_creation_tokens)
        write_1h = 2 * self.input if self.cache_write_1h is None else self.cache_write_1h
        exact = (
            self.input * usage.input_tokens
            + self.output * usage.output_tokens
            + self.cache_read * usage.cache_read_tokens
            + self.cache_write * (usage.cache_creation_tokens - kept_1h)
            + write_1h * kept_1h
        )
        return int(exact.to_integral_value(rounding=ROUND_CEILING))


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices by model; a name that ends in `*` stands for all that begin so, the longest one first."""

    table: Mapping[str, Price] = field(default_factory=dict)

    def find(self, model: str) -> Price | None:
        """Returns the price of a model; None = nobody knows."""
        if model in self.table:
            return self.table[model]
        beginnings = [
            name
            for name in self.table
            if name.endswith(ANY_ENDING) and model.startswith(name.removesuffix(ANY_ENDING))
        ]
        return self.table[max(beginnings, key=len)] if beginnings else None

    def cost(self, model: str, usage: Usage) -> int | None:
        """Returns micro-dollars; None = nobody knows. No tokens cost nothing, whatever the model."""
        if usage == Usage(model_calls=usage.model_calls):
            return 0
        price = self.find(model)
        return price.of(usage) if price else None


def check_cost(dollars: float | None) -> float | None:
    """Returns what an agent or an old record says, if it is an amount of money; None = nobody knows."""
    if dollars is None or isinstance(dollars, bool):
        return None
    return dollars if 0 <= dollars < MAX_RUN_USD else None


def to_micro(dollars: Decimal | float | str) -> int:
    """Returns micro-dollars, rounded to the nearest; nothing for what is infinite or no number, so that no sum and no answer fails for it."""
    exact = Decimal(dollars)
    return int((exact * MICRO).to_integral_value()) if exact.is_finite() else 0


def to_dollars(micro: int) -> float:
    """Returns dollars for a record or a trace, which are not added up."""
    return micro / MICRO


def render_money(micro: int) -> str:
    """Renders micro-dollars, such as `$0.0042`, `$1.25`, `$12`: two digits that say something, whole cents from a dollar on."""
    dollars = Decimal(micro) / MICRO
    if micro >= MICRO:
        text = f"{dollars:.2f}"
        return f"${text.removesuffix('.00')}"
    if micro == 0:
        return "$0"
    digits = max(2, 1 - dollars.adjusted())
    return f"${dollars:.{digits}f}"


WRITE_RETRY_S = 1.0
MAX_UNWRITTEN = 10_000
"""Calls that a sick database may make wait; then the oldest are given up, and with them their part of the next process's sums."""

REFRESH_S = 2.0
"""Between looks at what other processes have spent."""
KEPT_DAYS = 8
"""Days whose sums are in memory, those that the clock came to last; one is needed, others are for a clock that jumps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """Budgets in micro-dollars; None = as much as it takes."""

    run: int | None = None
    user_day: int | None = None
    channel_day: int | None = None
    day: int | None = None
    channels: Mapping[str, int] = field(default_factory=dict)
    """Days of channels that have a budget of their own, by ids."""
    judgements_day: int | None = None
    """Not money, but calls that judge for whom replies are; None = none is made."""

    @property
    def is_set(self) -> bool:
        limits = (self.run, self.user_day, self.channel_day, self.day, self.judgements_day)
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
    """Sums of one agent and model, since this process began."""

    calls: int = 0
    tokens: int = 0
    cost: int = 0
    """Micro-dollars, of the calls whose cost is known."""


BudgetKey = tuple[str, str, str]
"""Whose budget: `user` or `channel` with the team's id and its own, or `all` or `judgements` with nothing; with ` unpriced` behind it a number of calls."""
DayBudget = tuple[str, int, int | None, int]
"""Whose budget, for people; micro-dollars spent of it on one day; how many it has, None = as many as it takes; and the calls of the day whose cost nobody knows."""


def charges(call: SpentCall) -> Mapping[BudgetKey, int]:
    """Returns the budgets that a call uses up, and how many micro-dollars of each; none for an own key. Of calls that judge for whom a reply is, and of those whose cost nobody knows, the number counts."""
    counted = {_JUDGEMENTS_KEY: 1} if call.run_id == JUDGEMENTS else {}
    if call.is_own_key:
        return counted
    of, amount = (" unpriced", 1) if call.cost is None else ("", call.cost)
    return dict.fromkeys(_keys(call.team, call.user, call.channel, of), amount) | counted


def day_of(at: datetime) -> date:
    """Returns the UTC day."""
    return at.astimezone(UTC).date()


class SpendingStore(Protocol):
    """Model calls, kept as long as their runs, and what they have cost by days."""

    async def add(self, calls: Sequence[SpentCall]) -> None:
        """Stores all or none, and adds them to the sums of their days; safe to repeat."""
        ...

    async def sums(self, day: date) -> Mapping[BudgetKey, int]:
        """Returns the micro-dollars of all calls that ended on that day, of every process on the database."""
        ...

    async def of_run(self, run_id: RunId) -> Sequence[SpentCall]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """A budget that is used up."""

    sentence: str
    """For the person who asked: lower case, no full stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetRefusal:
    """Why a model call must not be made now."""

    reason: str
    may_pass: bool = False
    """It may be asked again, when those in flight have ended."""


AskLeave = Callable[[str, int], BudgetRefusal | None]
"""Told the model and about how many tokens it would read; None = the call may be made, and is in flight until it has been counted."""


class Ledger:
    """Counts what is spent. One for each process that runs agents."""

    def __init__(
        self,
        *,
        prices: Prices,
        budgets: Budgets,
        store: SpendingStore,
        clock: Clock,
        is_shared: bool = False,
        permissions: Permissions | None = None,
    ) -> None:
        """`is_shared`: other processes spend from the same budgets. `permissions`: what people have of their own in place of `Budgets.user_day`."""
        self._permissions = permissions or Permissions()
        self._prices = prices
        self.budgets = budgets
        self._store = store
        self._clock = clock
        self._is_shared = is_shared
        self._writing = asyncio.Lock()
        """Held while the store is read or written, so that no call is counted as both written and not."""
        self._spent: dict[date, Counter[BudgetKey]] = {}
        """By days, and in them by whose budget it is."""
        self._unwritten: list[SpentCall] = []
        self._has_news = asyncio.Event()
        self.figures: dict[tuple[str, str], CallFigures] = {}
        """By agent and model."""

    async def load(self) -> None:
        """Takes up what has been spent today, by this process and all others."""
        today = self._today()
        async with self._writing:
            sums = Counter(await self._store.sums(today))
            for call in self._unwritten:
                if day_of(call.at) == today:
                    sums.update(charges(call))
            self._keep(today, sums)

    async def load_forever(self) -> None:
        """Looks again and again at what others have spent, until cancelled; returns at once where there are none, or no budgets."""
        while self._is_shared and (self.budgets.is_set or self._permissions.has_budgets):
            await self._clock.sleep(REFRESH_S)
            async for attempt in AsyncRetrying(wait=wait_fixed(WRITE_RETRY_S)):
                with attempt:
                    await self.load()

    async def begin_spending(self, run: Run) -> "Spending":
        """Opens the account of a run that begins, or goes on after a crash."""
        return await self.load_spending(run) if run.attempt > 1 else Spending(self, run, ())

    async def load_spending(self, run: Run) -> "Spending":
        """Opens the account of a run with all that it has spent, in earlier processes, too."""
        return Spending(self, run, await self.booked(run.id))

    async def booked(self, run_id: RunId) -> Sequence[SpentCall]:
        """Returns the calls of a run that any process has counted; of the others those that are written."""
        unwritten = {call.id: call for call in self._unwritten if call.run_id == run_id}
        written = {call.id: call for call in await self._store.of_run(run_id)}
        return tuple((unwritten | written).values())

    def find_excess(
        self, request: RunRequest, *, run_cost: int = 0, held: int = 0
    ) -> Excess | None:
        """Returns the budget that keeps this request from asking a model now; `run_cost` is what it has spent itself, `held` what it is about to."""
        limit = self.budgets.run
        if limit is not None and run_cost + held >= limit:
            sentence = f"this request has used the {render_money(limit)} that one may cost"
            return Excess(sentence=sentence)
        days = self._of_day(request.team, request.user, request.channel, counts=True)
        for of_whom, spent, limit, _ in days:
            if limit is not None and spent + held >= limit:
                sentence = f"{of_whom} for today ({render_money(limit)}) is used up; it begins anew at 00:00 UTC, {self._wait_text()}"
                return Excess(sentence=sentence)
        return None

    async def of_day(self, team: str, user: str, channel: str) -> Sequence[DayBudget]:
        """Returns what all processes have spent today of the person's, the channel's and Orion's budget, in this order."""
        await self.load()
        return self._of_day(team, user, channel, counts=False)

    def _of_day(self, team: str, user: str, channel: str, *, counts: bool) -> Sequence[DayBudget]:
        sums = self._spent.get(self._today(), Counter())
        spent = (sums[key] for key in _keys(team, user, channel))
        unpriced = (sums[key] for key in _keys(team, user, channel, " unpriced"))
        own = self._permissions.find_budget(user=user, channel=channel, counts=counts)
        of_user = own.budget_day if own else self.budgets.user_day
        of_channel = self.budgets.channels.get(channel, self.budgets.channel_day)
        whose = ("your budget", "this channel's budget", "Orion's budget")
        limits = (of_user, of_channel, self.budgets.day)
        return tuple(zip(whose, spent, limits, unpriced, strict=True))

    @property
    def are_judgements_used_up(self) -> bool:
        """Whether no more replies may be judged today."""
        spent = self._spent.get(self._today(), Counter())
        return spent[_JUDGEMENTS_KEY] >= (self.budgets.judgements_day or 0)

    def estimate_cost(self, model: str, asked_tokens: int) -> int:
        """Returns micro-dollars for what a call reads, whatever it answers; nothing where nobody knows."""
        return self._prices.cost(model, Usage(input_tokens=asked_tokens)) or 0

    def cost(self, call: ModelCall) -> int | None:
        """Returns micro-dollars of one call; None = nobody knows."""
        return self._prices.cost(call.model, call.usage)

    def count(self, call: SpentCall) -> None:
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
        """Writes behind, until cancelled. At the end of the process `write` what is left."""
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            async for attempt in AsyncRetrying(wait=wait_fixed(WRITE_RETRY_S)):
                with attempt:
                    await self.write()

    async def write(self) -> None:
        """Writes what has not been written yet. What the database does not take now is written the next time."""
        async with self._writing:
            calls = tuple(self._unwritten)
            if not calls:
                return
            await self._store.add(calls)
            written = {call.id for call in calls}
            self._unwritten = [call for call in self._unwritten if call.id not in written]

    def _today(self) -> date:
        return day_of(self._clock.now())

    def _add(self, call: SpentCall) -> None:
        """Adds a call to its own day, which a clock that jumps ahead and back finds again as it was."""
        day = day_of(call.at)
        sums = self._spent.get(day, Counter())
        sums.update(charges(call))
        self._keep(day, sums)

    def _keep(self, day: date, sums: Counter[BudgetKey]) -> None:
        self._spent[day] = sums
        if len(self._spent) > KEPT_DAYS:
            del self._spent[next(iter(self._spent))]

    def _wait_text(self) -> str:
        now = self._clock.now().astimezone(UTC)
        midnight = datetime.combine(now.date() + timedelta(days=1), datetime.min.time(), UTC)
        minutes = max(1, round((midnight - now).total_seconds() / 60))
        return f"in {round(minutes / 60)} h" if minutes >= _MINUTES_SHOWN else f"in {minutes} min"


class Spending:
    """The account of one run; asked by the broker before each of its model calls, and told after it."""

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
        self._taken: set[str] = set()
        """Ids of calls."""
        for call in earlier:
            self._take(call)

    async def load(self) -> None:
        """Takes up what other processes have booked for the run meanwhile."""
        for call in await self._ledger.booked(self._run.id):
            if call.id not in self._taken:
                self._take(call)

    @property
    def cost(self) -> int | None:
        """Returns the micro-dollars so far; None = nobody knows, as the price of a model is not set."""
        return None if self._is_unknown else self._cost

    @property
    def cost_usd(self) -> float | None:
        """Returns what the record keeps as cost; None also when no model was asked."""
        is_known = not self._is_unknown and self.usage.model_calls
        return to_dollars(self._cost) if is_known else None

    def find_refusal(self, model: str, asked_tokens: int) -> BudgetRefusal | None:
        """Returns why a run may not ask that model now; see `AskLeave`.

        What its own calls in flight read counts as spent. That is dearer than the truth where the provider has it in its
        cache, so it ends nothing: the call may be made when they are counted.
        """
        if self.is_own_key:
            return None
        request = self._run.request
        self.excess = self.excess or self._ledger.find_excess(request, run_cost=self._charged)
        if self.excess is not None:
            return BudgetRefusal(reason=self.excess.sentence)
        held = sum(self._in_flight)
        if held and (
            excess := self._ledger.find_excess(request, run_cost=self._charged, held=held)
        ):
            reason = f"with the calls that are in flight, {excess.sentence}"
            return BudgetRefusal(reason=reason, may_pass=True)
        self._in_flight.append(self._ledger.estimate_cost(model, asked_tokens))
        return None

    def count(self, call: ModelCall) -> ModelCall:
        """Returns the call with its cost."""
        if call.is_refused:
            return call
        self.release()
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

    def release(self) -> None:
        """Forgets a call in flight, which somebody else counts."""
        if self._in_flight:
            self._in_flight.popleft()  # one of them, mostly the oldest; their number is right

    def _take(self, call: SpentCall) -> None:
        self._taken.add(call.id)
        self.usage = self.usage + call.usage
        if call.cost is None:
            self._is_unknown = True
        else:
            self._cost += call.cost
            self._charged += 0 if call.is_own_key else call.cost


_JUDGEMENTS_KEY: BudgetKey = ("judgements", "", "")
_MINUTES_SHOWN = 90


def _keys(team: str, user: str, channel: str, of: str = "") -> Sequence[BudgetKey]:
    return (f"user{of}", team, user), (f"channel{of}", team, channel), (f"all{of}", "", "")


@dataclass(slots=True, kw_only=True)
class AttemptCost:
    """Counts the cost of one attempt: by the broker's count, by the agent's own word, and at whose expense."""

    spending: Spending | None = None
    """What its run may cost, and has cost in earlier attempts, too; None = nobody counts."""
    own_key_protocol: str = ""
    """Of the person's key that its agent's models are asked with; empty = with the operator's key."""
    usage: Usage = field(default_factory=Usage)
    told_usd: list[float | None] = field(default_factory=list)
    """By the agent, of each of its starts."""
    is_cut_short: bool = False
    """One of them could not tell all."""

    def __post_init__(self) -> None:
        if self.spending is not None:
            self.usage = self.spending.usage

    def restart(self, spending: Spending) -> None:
        """Takes up what the run has spent by now, by the count of all processes that served it."""
        spending.excess = spending.excess or self.excess
        self.spending, self.usage = spending, spending.usage

    def use_own_key(self, protocol: str) -> None:
        """Asks models with the person's own key for that protocol; empty = with the operator's."""
        self.own_key_protocol = protocol
        if self.spending is not None:
            self.spending.is_own_key = bool(protocol)

    @property
    def excess(self) -> Excess | None:
        return self.spending.excess if self.spending is not None else None

    @property
    def refusal(self) -> AskLeave | None:
        return self.spending.find_refusal if self.spending is not None else None

    def total_usd(self, *, is_repeated: bool) -> float | None:
        """Returns what the whole run costs: by the agent's own word where that covers all starts and attempts, else by the price table.

        Where that does not know it, by what the agent has told; None = nobody has told anything. Before the agent's first start
        nothing has been spent. `is_repeated`: there were attempts before this one.
        """
        if not is_repeated and not self.told_usd and not self.usage.model_calls:
            return 0.0
        told = [dollars for dollars in self.told_usd if dollars is not None]
        spent = self.spending.cost_usd if self.spending is not None else None
        is_told = len(told) == len(self.told_usd) > 0 and not self.is_cut_short
        if spent is not None and (not is_told or is_repeated):
            return spent
        return sum(told) if told else None

    def begin_start(self) -> None:
        """Notes a start of the agent's process; until `report` nobody has told what it costs."""
        self.told_usd.append(None)

    def report(self, dollars: float | None, *, is_cut_short: bool) -> None:
        """Takes the agent's word on the start that was begun last; None = it has none."""
        self.told_usd[-1] = check_cost(dollars)
        self.is_cut_short |= is_cut_short

    def count(self, call: ModelCall) -> ModelCall:
        """Takes the broker's word on a model call, which decides, not the agent's; returns it with its price."""
        if self.spending is not None:
            call = self.spending.count(call)
            self.usage = self.spending.usage
        else:
            self.usage = self.usage + replace(call.usage, model_calls=not call.is_refused)
        return call
