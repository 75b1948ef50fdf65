"""Money on the command line: what nobody knows is called unknown, not nothing."""

from dataclasses import replace

import pytest

from app.cli.commands.runs import lines_of
from app.operators.records import By, add_up, as_row
from app.runs.testing import Outcome, RunCost, RunState
from tests.building import T0, make_run


def cost_of(cost: int | None) -> RunCost:
    return RunCost(
        at=T0, user="U1", channel="C1", agent="codex", model="gpt", tokens=1500, cost=cost
    )


@pytest.mark.parametrize(
    ("costs", "cost", "end"),
    [
        ([None, None], None, "3,000 tokens     unknown"),
        ([None, 20_000], 20_000, "3,000 tokens      $0.020  and 1 of unknown cost"),
        ([0, 0], 0, "3,000 tokens          $0"),
    ],
)
def test_a_sum_of_nothing_known_is_unknown(
    costs: list[int | None], cost: int | None, end: str
) -> None:
    """Beside known ones the unknown are counted; a run that is known to be free costs $0."""
    (found,) = add_up([cost_of(one) for one in costs], by=By.AGENT)
    assert found.line.endswith(end)
    assert found.row["cost_micro_usd"] == cost
    assert found.row["runs_of_unknown_cost"] == costs.count(None)


@pytest.mark.parametrize(
    ("attempt", "cost_usd", "shown"), [(1, None, "unknown"), (1, 0.25, "0.25"), (0, None, "")]
)
def test_a_run_shows_that_its_cost_is_unknown(
    attempt: int, cost_usd: float | None, shown: str
) -> None:
    """Of one that never began there is nothing to know."""
    outcome = Outcome(state=RunState.FAILED, cost_usd=cost_usd)
    row = as_row(replace(make_run(), attempt=attempt, outcome=outcome))
    assert f"cost_usd       {shown}" in list(lines_of(row))
