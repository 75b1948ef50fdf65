"""Nothing is left of runs that were stopped and killed, in short. In full, and over Docker: those that are long."""

import time
from pathlib import Path

import pytest

from tests.leaks.plan import DOCKER, LOCAL, SMALL
from tests.leaks.play import prove
from tests.leaks.report import render

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
@pytest.mark.timeout(3600)
async def test_nothing_is_left_of_many(tmp_path: Path, prepared: Path, papers: Path) -> None:
    """The same, with hundreds, and in Docker."""
    del prepared
    started = time.monotonic()
    results = [await prove(tmp_path, plan) for plan in (LOCAL, DOCKER)]
    (papers / "leak-test.md").write_text(render(results, took_s=time.monotonic() - started))
    assert [fault for result in results for fault in result.faults] == []
