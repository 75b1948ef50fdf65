"""What model calls cost, by the operator's price table. Pure; money is whole micro-dollars, rounded up for each call."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import ROUND_CEILING, Decimal

from app.runs.model import Usage

MICRO = 1_000_000
"""Micro-dollars in a dollar; so a price in dollars for a million tokens is one in micro-dollars for a token."""
ANY_ENDING = "*"
MAX_RUN_USD = 1_000_000
"""What an agent says beyond this is no cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Of one model, in dollars for a million tokens; 0 = free."""

    input: Decimal
    output: Decimal
    cache_read: Decimal
    cache_write: Decimal
    cache_write_1h: Decimal | None = None
    """Of what is kept for an hour; None = twice the input, as Anthropic has it.

    Source: Claude documentation, Prompt caching, pricing, read 2026-11.
    """

    def of(self, usage: Usage) -> int:
        """Micro-dollars."""
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
    """By model; a name that ends in `*` stands for all that begin so, the longest one first."""

    table: Mapping[str, Price] = field(default_factory=dict)

    def find(self, model: str) -> Price | None:
        """None = nobody knows."""
        if model in self.table:
            return self.table[model]
        beginnings = [
            name
            for name in self.table
            if name.endswith(ANY_ENDING) and model.startswith(name.removesuffix(ANY_ENDING))
        ]
        return self.table[max(beginnings, key=len)] if beginnings else None

    def cost(self, model: str, usage: Usage) -> int | None:
        """Micro-dollars; None = nobody knows. No tokens cost nothing, whatever the model."""
        if usage == Usage(model_calls=usage.model_calls):
            return 0
        price = self.find(model)
        return price.of(usage) if price else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """What one run has used, for sums."""

    at: datetime
    """Its beginning."""
    user: str
    channel: str
    agent: str
    model: str
    tokens: int
    cost: int | None
    """Micro-dollars; None = nobody knows."""


def known_cost(dollars: float | None) -> float | None:
    """What an agent or an old record says, if it is an amount of money; None = nobody knows."""
    if dollars is None or isinstance(dollars, bool):
        return None
    return dollars if 0 <= dollars < MAX_RUN_USD else None


def to_micro(dollars: Decimal | float | str) -> int:
    """Micro-dollars, rounded to the nearest; nothing for what is infinite or no number, so that no sum and no answer fails for it."""
    exact = Decimal(dollars)
    return int((exact * MICRO).to_integral_value()) if exact.is_finite() else 0


def to_dollars(micro: int) -> float:
    """For a record or a trace, which are not added up."""
    return micro / MICRO


def money_text(micro: int) -> str:
    """`$0.0042`, `$1.25`, `$12`: two digits that say something, whole cents from a dollar on."""
    dollars = Decimal(micro) / MICRO
    if micro >= MICRO:
        text = f"{dollars:.2f}"
        return f"${text.removesuffix('.00')}"
    if micro == 0:
        return "$0"
    digits = max(2, 1 - dollars.adjusted())
    return f"${dollars:.{digits}f}"
