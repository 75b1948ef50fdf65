"""Where the engine keeps its rows: an SQLite file or PostgreSQL, and everything in which the two differ."""

import logging
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from dbos import DBOS, DBOSConfig, error

SUBMIT_TIMEOUT_S = 2.0
"""DBOS waits for a lost database without limit, but Slack's acknowledgement is due after 3 s."""
EXECUTOR_ID = "orion"
"""Constant on SQLite: one process owns the database, and at start it recovers what its predecessor left."""
POSTGRES_CONNECTIONS = 8
"""Of the engine in one process; runs need it at their begin and end only, and a server has 100 for all processes by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDatabase:
    name: str
    """What the operator calls it; a path, or a URL without its password."""
    config: DBOSConfig
    """The engine's settings that depend on the database."""
    open_accepting: Callable[[], sa.Engine]
    """One connection for acceptances alone."""
    executor_id: str
    is_shared: bool
    """Other processes work on it too, so what this one leaves behind is for them."""


def engine_database(location: Path | str) -> EngineDatabase:
    """`location`: the path of an SQLite file, whose directory is made, or a `postgresql://…` URL."""
    if isinstance(location, Path):
        location.parent.mkdir(parents=True, exist_ok=True)
        return _sqlite(location)
    return _postgres(location)


@contextmanager
def launching(database: EngineDatabase) -> Iterator[None]:
    """Around the start of the engine, which raises whatever its database does.

    Raises:
        OSError: its tables cannot be used; which, why, and what to do. The engine is gone again.
    """
    logger = logging.getLogger("dbos")
    logger.addFilter(_without_stack)  # it logs the stack of what it raises
    try:
        yield
    except (sa.exc.SQLAlchemyError, error.DBOSException) as exc:
        DBOS.destroy()
        reason = str(getattr(exc, "orig", exc)).partition("\n")[0]
        raise OSError(
            f"the engine's tables in {database.name} cannot be used ({reason}): "
            "put a copy of the database back, or move it away to begin anew"
        ) from exc
    finally:
        logger.removeFilter(_without_stack)


def _without_stack(record: logging.LogRecord) -> bool:
    return not record.exc_info


def _sqlite(path: Path) -> EngineDatabase:
    url = f"sqlite:///{path}"
    return EngineDatabase(
        name=str(path),
        config={
            "name": "orion",
            "system_database_url": url,
            # More connections would only fight for SQLite's one write lock, asleep in its busy handler.
            "sys_db_pool_size": 1,
            "db_engine_kwargs": {"connect_args": {"factory": WalConnection}},
        },
        open_accepting=lambda: sa.create_engine(
            url,
            connect_args={"factory": _AcceptingConnection, "check_same_thread": False},
            poolclass=sa.pool.StaticPool,
        ),
        executor_id=EXECUTOR_ID,
        is_shared=False,
    )


def _postgres(url: str) -> EngineDatabase:
    timeout_ms = int(SUBMIT_TIMEOUT_S * 1000)
    return EngineDatabase(
        name=sa.make_url(url).render_as_string(hide_password=True),
        config={
            "name": "orion",
            "system_database_url": url,
            "sys_db_pool_size": POSTGRES_CONNECTIONS,
        },
        open_accepting=lambda: sa.create_engine(
            sa.make_url(url).set(drivername="postgresql+psycopg"),
            pool_size=1,
            max_overflow=0,
            pool_pre_ping=True,
            connect_args={
                "connect_timeout": int(SUBMIT_TIMEOUT_S),
                "tcp_user_timeout": timeout_ms,
                "options": f"-c statement_timeout={timeout_ms}",
            },
        ),
        # Unique: a process that shared its id with another would take over that one's running workflows at its start.
        executor_id=f"{EXECUTOR_ID}-{uuid.uuid4().hex}",
        is_shared=True,
    )


class WalConnection(sqlite3.Connection):
    """SQLite's default journal is two to three times slower.

    With this sync a commit survives kill -9; through a power loss it is kept from the next acceptance or checkpoint on.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - sqlite3's own signature
        super().__init__(*args, **kwargs)
        self.execute("PRAGMA journal_mode=WAL")
        self.execute("PRAGMA synchronous=NORMAL")


class _AcceptingConnection(WalConnection):
    """Keeps what was acknowledged through a power loss, and waits for nobody.

    Without a busy timeout SQLite says at once that the write lock is taken; with one it would sleep up to 0.1 s between
    looks, and be overtaken meanwhile. Checkpoints, which may take a slow disk half a second, are left to the others.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - sqlite3's own signature
        super().__init__(*args, **kwargs)
        self.execute("PRAGMA synchronous=FULL")
        self.execute("PRAGMA busy_timeout=0")
        self.execute("PRAGMA wal_autocheckpoint=0")
