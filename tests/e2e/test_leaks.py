"""Nothing is left of runs that were stopped and killed, in short. Of more, and over Docker: those that are long."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.leaks.plan import DOCKER, LOCAL, SMALL, Plan
from tests.leaks.play import prove

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.crash,
    pytest.mark.bubblewrap,
    pytest.mark.timeout(180),
]


@pytest.mark.long
async def test_nothing_is_left(tmp_path: Path, prepared: Path) -> None:
    """Ten runs with random ends and one death of the service: no process, folder, socket, mount or descriptor more."""
    del prepared  # made before the clock runs
    result = await prove(tmp_path, SMALL)
    assert result.faults == []
    assert result.outcomes.total() == SMALL.runs + 2 * SMALL.warm_up
    assert result.fates["the service killed"] == SMALL.service_kills


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.docker
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("plan", [LOCAL, DOCKER], ids=lambda plan: plan.provider)
async def test_nothing_is_left_of_many(tmp_path: Path, prepared: Path, plan: Plan) -> None:
    """The same with more of them, and in Docker; with hundreds by `make leak-test`."""
    del prepared
    result = await prove(tmp_path, replace(plan, runs=30, service_kills=2))
    assert result.faults == []
