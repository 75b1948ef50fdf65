"""Budgets: what is spent counts for its person, its channel and its day, and nothing passes a budget that is used up."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from typing_extensions import override

from app.runs.testing import (
    KEPT_DAYS,
    Budgets,
    Ledger,
    ModelCall,
    Price,
    Prices,
    Run,
    Spending,
    Usage,
)
from app.store.memory import MemorySpendingStore
from tests.building import make_request, make_run

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
DOLLAR = Price(input=Decimal(1), output=Decimal(0), cache_read=Decimal(0), cache_write=Decimal(0))
"""A micro-dollar for a token."""


@dataclass
class HandClock:
    at: datetime = NOON

    def now(self) -> datetime:
        return self.at

    async def sleep(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)


@dataclass
class World:
    clock: HandClock = field(default_factory=HandClock)
    store: MemorySpendingStore = field(default_factory=MemorySpendingStore)

    def ledger(self, **budgets: int) -> Ledger:
        return Ledger(
            prices=Prices({"m-*": DOLLAR}),
            budgets=Budgets(**budgets, channels={"C9": 5}) if budgets else Budgets(),
            store=self.store,
            clock=self.clock,
        )

    def call(self, tokens: int, *, model: str = "m-1", is_refused: bool = False) -> ModelCall:
        return ModelCall(
            model=model,
            started_at=self.clock.at,
            first_token_at=None,
            ended_at=self.clock.at,
            status=200,
            usage=Usage(input_tokens=tokens),
            is_refused=is_refused,
        )


def run_of(user: str = "U1", channel: str = "C1", *, number: int = 1, attempt: int = 1) -> Run:
    ts = f"179530236{number}.000100"
    run = make_run(make_request(ts=ts, user=user, channel=channel))
    return replace(run, attempt=attempt, agent="claude")


async def spend(ledger: Ledger, world: World, tokens: int, run: Run) -> Spending:
    spending = await ledger.begin_spending(run)
    spending.count(world.call(tokens))
    return spending


def said_to(spending: Spending, tokens: int = 0) -> str:
    denied = spending.find_refusal("m-1", tokens)
    return denied.reason if denied else ""


@pytest.mark.parametrize(
    ("name", "other", "said"),
    [
        ("user_day", run_of("U2", "C1", number=2), "your budget for today"),
        ("channel_day", run_of("U1", "C2", number=2), "this channel's budget for today"),
        ("day", None, "Orion's budget for today"),
    ],
)
async def test_a_day_that_is_used_up_refuses_until_midnight(
    name: str, other: Run | None, said: str
) -> None:
    """With the amount and the time until it begins anew; others go on, unless the budget is everybody's."""
    world = World()
    ledger = world.ledger(**{name: 100})
    await ledger.load()
    asking = run_of(number=3)
    spending = await spend(ledger, world, 99, run_of())
    assert said_to(spending) == ""
    spending.count(world.call(1))
    assert said in said_to(spending)
    assert "$0.00010" in said_to(spending)
    assert "00:00 UTC, in 12 h" in said_to(spending)
    assert said in said_to(await ledger.begin_spending(asking))
    if other is not None:
        assert said_to(await ledger.begin_spending(other)) == ""
    world.clock.at = NOON.replace(hour=23, minute=58)
    assert "in 2 min" in said_to(await ledger.begin_spending(asking))
    world.clock.at = NOON.replace(hour=0) + timedelta(days=1)
    assert said_to(await ledger.begin_spending(asking)) == ""
    world.clock.at = NOON  # a clock that jumps back opens nothing anew
    assert said in said_to(await ledger.begin_spending(asking))


async def test_a_clock_that_jumps_ahead_and_back_finds_its_day_again() -> None:
    """What was spent before counts, what is spent then, too; and there is no end of days in memory."""
    world = World()
    ledger = world.ledger(day=100)
    await spend(ledger, world, 60, run_of())
    world.clock.at = NOON + timedelta(days=400)
    assert ledger.find_excess(run_of().request) is None
    world.clock.at = NOON
    spending = await spend(ledger, world, 39, run_of(number=2))
    assert said_to(spending) == ""
    spending.count(world.call(1))
    assert "Orion's budget for today" in said_to(spending)
    for _ in range(20):
        world.clock.at += timedelta(days=1)
        await spend(ledger, world, 100, run_of(number=3))
        assert ledger.find_excess(run_of().request) is not None
    assert len(ledger._spent) == KEPT_DAYS


async def test_a_channel_may_have_a_budget_of_its_own() -> None:
    """In place of the one of all channels."""
    world = World()
    ledger = world.ledger(channel_day=100)
    in_its_own = await spend(ledger, world, 5, run_of(channel="C9"))
    assert "this channel's budget for today ($0.0000050)" in said_to(in_its_own)
    assert said_to(await spend(ledger, world, 5, run_of(channel="C1"))) == ""


async def test_the_budget_of_a_run_is_its_own_and_survives_a_crash() -> None:
    """The next attempt goes on with what the first one spent; the day's sums do, too, in the next process."""
    world = World()
    ledger = world.ledger(run=100, day=150)
    first = await spend(ledger, world, 60, run_of())
    assert first.count(world.call(0, is_refused=True)).cost is None
    assert (first.cost, first.usage.model_calls) == (60, 1)
    await ledger.write()
    await ledger.write()

    later = world.ledger(run=100, day=150)
    await later.load()
    again = await later.begin_spending(run_of(attempt=2))
    assert (again.cost, again.usage) == (60, first.usage)
    assert said_to(again) == ""
    again.count(world.call(40))
    assert "this request has used the $0.00010 that one may cost" in said_to(again)
    other = await later.begin_spending(run_of("U2", "C2", number=2))
    assert said_to(other) == ""
    other.count(world.call(50))
    assert "Orion's budget" in said_to(other)
    assert "Orion's budget" in said_to(await later.begin_spending(run_of(number=4)))


async def test_what_was_spent_yesterday_does_not_count_today() -> None:
    """Nor after a restart."""
    world = World()
    ledger = world.ledger(day=100)
    world.clock.at = NOON - timedelta(days=1)
    await spend(ledger, world, 500, run_of())
    await ledger.write()
    world.clock.at = NOON
    later = world.ledger(day=100)
    await later.load()
    assert said_to(await later.begin_spending(run_of())) == ""


async def test_a_model_without_a_price_makes_the_cost_unknown() -> None:
    """Not zero; its tokens are counted."""
    world = World()
    ledger = world.ledger()
    spending = await ledger.begin_spending(run_of())
    assert spending.count(world.call(7)).cost == 7
    assert spending.cost == 7
    assert spending.count(world.call(9, model="other")).cost is None
    assert spending.cost is None
    assert spending.usage.tokens == 16
    assert {key: one.tokens for key, one in ledger.figures.items()} == {
        ("claude", "m-1"): 7,
        ("claude", "other"): 9,
    }


async def test_what_the_database_does_not_take_is_written_later() -> None:
    """In order, once."""

    class Sick(MemorySpendingStore):
        is_sick = True

        @override
        async def add(self, calls: object) -> None:
            if self.is_sick:
                raise OSError("locked")
            await super().add(calls)  # type: ignore[arg-type]

    world = World(store=Sick())
    ledger = world.ledger()
    spending = await spend(ledger, world, 1, run_of())
    with pytest.raises(OSError, match="locked"):
        await ledger.write()
    spending.count(world.call(2))
    assert isinstance(world.store, Sick)
    world.store.is_sick = False
    await ledger.write()
    kept = await world.store.of_run(run_of().id)
    assert [call.usage.tokens for call in kept] == [1, 2]


async def test_what_people_pay_themselves_uses_no_budget_up() -> None:
    """Not the run's, not the day's, also in the next process; its cost is known all the same."""
    world = World()
    ledger = world.ledger(run=100, day=150)
    spending = await ledger.begin_spending(run_of())
    spending.is_own_key = True
    assert spending.count(world.call(500)).cost == 500
    assert (said_to(spending), spending.cost) == ("", 500)
    await ledger.write()
    later = world.ledger(run=100, day=150)
    await later.load()
    assert later.find_excess(run_of(number=2).request) is None
    again = await later.begin_spending(run_of(attempt=2))
    assert (said_to(again), again.cost) == ("", 500)


@pytest.mark.parametrize("name", ["run", "day"])
async def test_calls_in_flight_count_for_what_they_read(name: str) -> None:
    """The next one may be asked again when they are counted: what they really cost decides, and nothing ends before it is spent."""
    world = World()
    ledger = world.ledger(**{name: 100})
    spending = await spend(ledger, world, 10, run_of())
    passed = [spending.find_refusal("m-1", 30) for _ in range(360)]
    assert passed.count(None) == 3
    assert passed[3] == passed[-1]
    assert passed[3] is not None
    assert (passed[3].may_pass, spending.excess) == (True, None)
    assert passed[3].reason.startswith("with the calls that are in flight, ")
    spending.count(world.call(0, is_refused=True))
    assert spending.find_refusal("m-1", 30) is not None
    for _ in range(3):
        spending.count(world.call(5))
    assert spending.find_refusal("m-1", 30) is None
    spending.count(world.call(75))
    denied = spending.find_refusal("m-1", 0)
    assert denied is not None
    assert (denied.may_pass, spending.excess is not None) == (False, True)
    spending.is_own_key = True
    assert spending.find_refusal("m-1", 1000) is None


async def test_a_day_s_budgets_are_told_of_all_processes() -> None:
    """Of the person, the channel and everybody, in this order; what another process has written counts."""
    world = World()
    ledger, other = world.ledger(user_day=20), world.ledger(user_day=20)
    await spend(ledger, world, 7, run_of())
    await spend(other, world, 4, run_of("U2", number=2))
    unpriced = await other.begin_spending(run_of("U2", number=3))
    unpriced.count(world.call(9, model="without-a-price"))
    await other.write()
    own, channel, whole = await ledger.of_day("T1", "U1", "C1")
    assert own == ("your budget", 7, 20, 0)
    assert channel == ("this channel's budget", 11, None, 1)
    assert whole == ("Orion's budget", 11, None, 1)
    assert (await ledger.of_day("T1", "U1", "C9"))[1] == ("this channel's budget", 0, 5, 0)
