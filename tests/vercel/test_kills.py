"""Instances of functions that are killed: at each so many-th point that they pass; all of them by `make crash-test`."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.crash.function_rig import watched_place
from tests.crash.matrix import run_matrix
from tests.crash.place import Place
from tests.crash.rig import FUNCTIONS
from tests.vercel import deployed
from tests.vercel.deployment import Deployment
from tests.vercel.platform import LEFT_BY_CLIENT

pytestmark = [
    pytest.mark.long,
    pytest.mark.alone,
    pytest.mark.machines,
    pytest.mark.postgresql,
    pytest.mark.bubblewrap,
    pytest.mark.filterwarnings(LEFT_BY_CLIENT),
    pytest.mark.timeout(900),
]


async def test_killed_at_each_tenth_point(
    deployment: Deployment, bundles: Mapping[str, Path], postgres_server: str, tmp_path: Path
) -> None:
    """Whichever function, before it has sent the next message or after: another instance goes on, and each question is answered once."""
    built = deployed.Place(deployment=deployment, bundles=bundles, url="", directory=tmp_path)
    functions = watched_place(built, tmp_path / "watched")
    place = Place(
        directory=tmp_path, prepared=tmp_path, server_url=postgres_server, functions=functions
    )
    rows = await run_matrix(place, FUNCTIONS, only=(), each=10)
    assert len(rows) >= 12
    assert [row for row in rows if not row.is_good] == []
