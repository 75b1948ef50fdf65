"""How the store reaches its database: SQLite's file on one connection, PostgreSQL through a small pool."""

import functools
import sqlite3
from pathlib import Path

import sqlalchemy as sa
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_random

CALL_TIMEOUT_S = 10.0
"""For one store call; SQLite's own wait for the write lock is half of it."""
POSTGRES_CONNECTIONS = 4
"""And threads: a call is a round trip of about a millisecond, so a few serve hundreds a second, and 20 processes fit a server's 100."""


def sqlite_connect(path: Path, *, busy_timeout_s: float = CALL_TIMEOUT_S / 2) -> sqlite3.Connection:
    """A connection in WAL mode: a commit survives kill -9, and a power loss from the next acceptance of a message on."""
    connection = sqlite3.connect(path, timeout=busy_timeout_s, check_same_thread=False)
    # Two that make the file a WAL one at once are told "locked" without SQLite's own wait.
    for attempt in Retrying(
        retry=retry_if_exception_type(sqlite3.OperationalError),
        stop=stop_after_delay(busy_timeout_s),
        wait=wait_random(0.01, 0.05),
        reraise=True,
    ):
        with attempt:
            connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    return connection


def sqlite_engine(path: Path) -> sa.Engine:
    """For one thread: one connection, as more would only fight for SQLite's one write lock."""
    return sa.create_engine(
        "sqlite://", creator=functools.partial(sqlite_connect, path), poolclass=sa.pool.StaticPool
    )


def postgres_engine(url: str) -> sa.Engine:
    """For `POSTGRES_CONNECTIONS` threads. A connection that the server has dropped meanwhile is replaced unseen."""
    timeout_ms = int(CALL_TIMEOUT_S * 1000)
    return sa.create_engine(
        sa.make_url(url).set(drivername="postgresql+psycopg"),
        pool_size=POSTGRES_CONNECTIONS,
        max_overflow=0,
        pool_pre_ping=True,
        connect_args={
            "connect_timeout": int(CALL_TIMEOUT_S / 2),
            "tcp_user_timeout": timeout_ms,
            "options": f"-c statement_timeout={timeout_ms}",
        },
    )
