"""The run stores that tests of the contract take in turn."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.store.memory import MemoryRunStore
from app.store.runs import SqlRunStore, open_store
from tests.contract.building import POSTGRESQL


@pytest.fixture(params=["memory", "sqlite", POSTGRESQL])
async def store(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[MemoryRunStore | SqlRunStore]:
    match request.param:
        case "memory":
            yield MemoryRunStore()
        case "sqlite":
            async with open_store(tmp_path / "orion.db") as sqlite:
                yield sqlite
        case _:
            async with open_store(request.getfixturevalue("postgres_url")) as postgres:
                yield postgres
