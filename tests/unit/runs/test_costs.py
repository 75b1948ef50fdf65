"""What calls cost, to the micro-dollar."""

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.runs.testing import (
    MICRO,
    Price,
    Prices,
    Usage,
    check_cost,
    render_money,
    to_dollars,
    to_micro,
)

SONNET = Price(
    input=Decimal(3), output=Decimal(15), cache_read=Decimal("0.3"), cache_write=Decimal("3.75")
)
CHEAP = Price(
    input=Decimal("0.1"), output=Decimal(0), cache_read=Decimal(0), cache_write=Decimal(0)
)
USAGES = st.builds(
    Usage,
    input_tokens=st.integers(0, 10**7),
    output_tokens=st.integers(0, 10**6),
    cache_read_tokens=st.integers(0, 10**7),
    cache_creation_tokens=st.integers(0, 10**6),
)


def test_each_kind_of_token_has_its_price() -> None:
    """Dollars for a million are micro-dollars for one."""
    usage = Usage(
        input_tokens=1000, output_tokens=100, cache_read_tokens=10_000, cache_creation_tokens=200
    )
    assert SONNET.of(usage) == 3000 + 1500 + 3000 + 750


def test_what_is_kept_for_an_hour_has_a_price_of_its_own() -> None:
    """Twice the input, where the operator says no other."""
    usage = Usage(input_tokens=10, cache_creation_tokens=1000, cache_creation_1h_tokens=600)
    assert SONNET.of(usage) == 30 + 400 * 3.75 + 600 * 6
    assert replace(SONNET, cache_write_1h=Decimal(7)).of(usage) == 30 + 400 * 3.75 + 600 * 7
    assert (usage + usage).cache_creation_1h_tokens == 1200
    assert usage.tokens == 1010


def test_a_call_is_rounded_up() -> None:
    """What costs a tenth of a micro-dollar costs one: many small calls are not free."""
    assert CHEAP.of(Usage(input_tokens=1)) == 1
    assert CHEAP.of(Usage(input_tokens=10)) == 1
    assert CHEAP.of(Usage(input_tokens=11)) == 2


@given(first=USAGES, second=USAGES)
def test_a_sum_of_calls_is_at_most_a_micro_dollar_each_above_the_call_of_the_sum(
    first: Usage, second: Usage
) -> None:
    """Nothing is lost, whatever the parts."""
    apart, together = SONNET.of(first) + SONNET.of(second), SONNET.of(first + second)
    assert together <= apart <= together + 1
    assert (first + second).tokens == first.tokens + second.tokens


def test_the_longest_beginning_names_the_price() -> None:
    """An exact name before all; what nothing names has no price, and then no cost that anybody knows."""
    prices = Prices({"claude-*": SONNET, "claude-haiku-*": CHEAP, "claude-haiku-1": SONNET})
    assert prices.find("claude-opus-5") is SONNET
    assert prices.find("claude-haiku-4") is CHEAP
    assert prices.find("claude-haiku-1") is SONNET
    assert prices.find("gpt-6") is None
    assert prices.cost("gpt-6", Usage(input_tokens=1)) is None
    assert prices.cost("gpt-6", Usage(model_calls=1)) == 0
    assert Prices({"*": CHEAP}).find("gpt-6") is CHEAP


@pytest.mark.parametrize(
    ("micro", "text"),
    [
        (0, "$0"),
        (1, "$0.0000010"),
        (420, "$0.00042"),
        (4_200, "$0.0042"),
        (123_456, "$0.12"),
        (MICRO, "$1"),
        (1_254_000, "$1.25"),
        (12 * MICRO, "$12"),
    ],
)
def test_money_is_told_shortly(micro: int, text: str) -> None:
    """As much of it as says something."""
    assert render_money(micro) == text


@given(st.integers(0, 10**13))
def test_money_survives_a_record(micro: int) -> None:
    """A record keeps dollars."""
    assert to_micro(to_dollars(micro)) == micro


@pytest.mark.parametrize("said", [float("inf"), -float("inf"), float("nan"), -3.0, True, 1e300])
def test_what_is_no_amount_of_money_is_unknown(said: float) -> None:
    """Whatever an agent says, and whatever an old record holds; and no sum fails for it."""
    assert check_cost(said) is None
    assert render_money(to_micro(said))


def test_an_amount_of_money_is_as_it_was() -> None:
    """Nothing at all, too; None is unknown."""
    assert (check_cost(0), check_cost(0.25), check_cost(None)) == (0, 0.25, None)
