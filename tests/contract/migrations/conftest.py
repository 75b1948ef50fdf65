"""The databases that tests of migrations take in turn."""

import shutil
from pathlib import Path

import pytest

from app.store.migrations import VERSIONS
from tests.contract.building import POSTGRESQL
from tests.contract.migrations.database import NEWEST, TOMORROW, Database


@pytest.fixture(params=["sqlite", POSTGRESQL])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "sqlite":
        return Database(tmp_path / "orion.db")
    return Database(str(request.getfixturevalue("postgres_url")))


@pytest.fixture
def tomorrow(tmp_path: Path) -> Path:
    """The migrations of an Orion whose tables have one more column, and one more table."""
    folder = tmp_path / "tomorrow"
    shutil.copytree(VERSIONS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / f"v{NEWEST + 1}_moods.py").write_text(TOMORROW)
    return folder
