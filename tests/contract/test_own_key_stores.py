"""What every store of people's own keys promises; and what the database tells of them by itself."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from app.runs.testing import OwnKeyStore
from app.store.engine import sqlite_engine
from app.store.memory import MemoryOwnKeyStore
from app.store.runs import open_store
from app.store.seal import read_secrets
from app.store.settings import SqlOwnKeyStore

SECRET, OLDER, OTHER = "a" * 32, "b" * 32, "c" * 32
KEY = "sk-proj-canary-of-a-person-0123456789"


@pytest.fixture(
    params=["memory", "sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)]
)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OwnKeyStore]:
    match request.param:
        case "memory":
            yield MemoryOwnKeyStore()
        case "sqlite":
            async with _sqlite(tmp_path) as sqlite:
                yield sqlite
        case _:
            async with open_store(request.getfixturevalue("postgres_url")) as postgres:
                yield postgres.own_keys([SECRET])


@asynccontextmanager
async def _sqlite(directory: Path, secrets: str = SECRET) -> AsyncIterator[SqlOwnKeyStore]:
    async with open_store(directory / "orion.db") as store:
        yield store.own_keys(read_secrets(secrets))


async def test_keys_are_kept_until_they_are_taken_back(store: OwnKeyStore) -> None:
    """A change leaves the others alone, is safe to repeat, and is its person's only."""
    assert await store.of("T1", "U1") == {}
    await store.change("T1", "U1", {"anthropic": "sk-ant-one"})
    for _ in range(2):
        await store.change("T1", "U1", {"openai": KEY, "gemini": ""})
    await store.change("T1", "U1", {})
    assert await store.of("T1", "U1") == {"anthropic": "sk-ant-one", "openai": KEY}
    assert await store.of("T2", "U1") == await store.of("T1", "U2") == {}
    await store.change("T1", "U1", {"openai": "sk-two", "anthropic": ""})
    assert await store.of("T1", "U1") == {"openai": "sk-two"}


async def test_the_database_tells_no_key(tmp_path: Path) -> None:
    """Not in its files, and not with another secret; with a new one before it, the old one still opens."""
    async with _sqlite(tmp_path, OLDER) as store:
        await store.change("T1", "U1", {"openai": KEY})
    files = _contents(tmp_path)
    assert any(b"orion_own_keys" in data for data in files)
    assert not any(KEY.encode() in data or KEY[-12:].encode() in data for data in files)
    async with _sqlite(tmp_path, OTHER) as store:
        assert await store.of("T1", "U1") == {"openai": ""}
    async with _sqlite(tmp_path, f"{SECRET},{OLDER}") as store:
        assert await store.of("T1", "U1") == {"openai": KEY}
        await store.change("T1", "U1", {"openai": KEY})
    async with _sqlite(tmp_path, SECRET) as store:
        assert await store.of("T1", "U1") == {"openai": KEY}


def _contents(directory: Path) -> list[bytes]:
    return [path.read_bytes() for path in directory.iterdir()]


async def test_a_copied_row_does_not_open(tmp_path: Path) -> None:
    """Whoever writes into the database cannot give one person's key to another, or to another vendor's address."""
    async with _sqlite(tmp_path) as store:
        await store.change("T1", "U1", {"openai": KEY})
        engine = sqlite_engine(tmp_path / "orion.db")
        with engine.begin() as connection:
            for person, protocol in (("U2", "openai"), ("U1", "gemini")):
                connection.execute(
                    sa.text(
                        "INSERT INTO orion_own_keys SELECT team, :person, :protocol, sealed FROM orion_own_keys"
                        " WHERE person = 'U1' AND protocol = 'openai'"
                    ),
                    {"person": person, "protocol": protocol},
                )
        engine.dispose()
        assert await store.of("T1", "U2") == {"openai": ""}
        assert await store.of("T1", "U1") == {"openai": KEY, "gemini": ""}
