"""`orion runs cost`: what runs have used and cost, summed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from app.commands.runs import open_records
from app.config import Settings
from app.runs.costs import RunCost, money_text


class By(StrEnum):
    """What the sums are for."""

    DAY = "day"
    USER = "user"
    CHANNEL = "channel"
    AGENT = "agent"
    MODEL = "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """Of the runs that have something in common."""

    name: str
    runs: int
    tokens: int
    cost: int | None
    """Micro-dollars, of the runs whose cost is known; None = there is none."""
    unknown: int
    """Runs whose cost is not."""

    @property
    def row(self) -> Mapping[str, object]:
        """As JSON has it."""
        return {
            "name": self.name,
            "runs": self.runs,
            "tokens": self.tokens,
            "cost_micro_usd": self.cost,
            "runs_of_unknown_cost": self.unknown,
        }

    @property
    def line(self) -> str:
        """As a person reads it."""
        money = "unknown" if self.cost is None else money_text(self.cost)
        is_mixed = self.unknown and self.cost is not None
        unknown = f"  and {self.unknown} of unknown cost" if is_mixed else ""
        return f"{self.name:26} {self.runs:7} runs {self.tokens:14,} tokens  {money:>10}{unknown}"


async def sum_costs(settings: Settings, *, days: int, by: By) -> Sequence[Sum]:
    """The dearest first; those of the last so many days, the last one being what has passed of today (UTC).

    Raises:
        OSError: no Orion has run here.
    """
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    async with open_records(settings) as store:
        return add_up(await store.spending.of_runs(today - timedelta(days=days - 1)), by=by)


def add_up(costs: Iterable[RunCost], *, by: By) -> Sequence[Sum]:
    """Sums by that name; the dearest first."""
    groups: dict[str, list[RunCost]] = {}
    for one in costs:
        name = f"{one.at:%Y-%m-%d}" if by is By.DAY else getattr(one, by)
        groups.setdefault(name, []).append(one)
    sums = [_sum_of(name, group) for name, group in groups.items()]
    return sorted(sums, key=lambda one: (-(one.cost or 0), -one.tokens, one.name))


def _sum_of(name: str, group: Sequence[RunCost]) -> Sum:
    known = [one.cost for one in group if one.cost is not None]
    return Sum(
        name=name or "unknown",
        runs=len(group),
        tokens=sum(one.tokens for one in group),
        cost=sum(known) if known else None,
        unknown=len(group) - len(known),
    )
