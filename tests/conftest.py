"""Every test starts from a scrubbed environment and runs on asyncio."""

import logging
import os
import secrets
import signal
from collections.abc import Iterator

import pytest
import structlog

from tests.postgres import create_database, run_postgres

pytest_plugins = ["tests.promises", "tests.scheduling", "tests.times"]

_SCRUBBED_PREFIXES = (
    "SLACK_",
    "ORION_",
    "LANGFUSE_",
    "ANTHROPIC_",
    "AI_GATEWAY_",
    "OPENAI_",
    "GEMINI_",
)


# A shell's background jobs ignore it, and whatever a test starts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _scrubbed_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the developer's own credentials or settings."""
    for name in list(os.environ):
        if name.startswith(_SCRUBBED_PREFIXES):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    """What a test sends elsewhere comes back: its stream may be closed by then, and the process logs for other tests, too."""
    root, configured = logging.getLogger(), structlog.get_config()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers, root.level = handlers, level
    structlog.configure(**configured)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """One PostgreSQL for all tests that want it."""
    with run_postgres() as url:
        yield url


@pytest.fixture
def postgres_url(postgres_server: str) -> str:
    """An empty database."""
    return create_database(postgres_server, f"orion_{secrets.token_hex(4)}")
