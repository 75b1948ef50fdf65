"""One PostgreSQL for all tests that want it, with an empty database for each."""

import secrets
from collections.abc import Iterator

import pytest

from tests.postgres import create_database, run_postgres


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    with run_postgres() as url:
        yield url


@pytest.fixture
def postgres_url(postgres_server: str) -> str:
    return create_database(postgres_server, f"orion_{secrets.token_hex(4)}")
