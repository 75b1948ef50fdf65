"""Nothing is left of runs that were stopped and killed, in short. In full, and over Docker: `make leak-test`."""

from pathlib import Path

import pytest

from tests.leaks.plan import SMALL
from tests.leaks.play import prove

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.crash,
    pytest.mark.bubblewrap,
    pytest.mark.timeout(180),
]


async def test_nothing_is_left(tmp_path: Path, prepared: Path) -> None:
    """Ten runs with random ends and one death of the service: no process, folder, socket, mount or descriptor more."""
    del prepared  # made before the clock runs
    result = await prove(tmp_path, SMALL)
    assert result.faults == []
    assert result.outcomes.total() == SMALL.runs + 2 * SMALL.warm_up
    assert result.fates["the service killed"] == SMALL.service_kills
