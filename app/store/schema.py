"""Which version of the tables a database holds: made, checked and raised in one transaction each; refused in one sentence.

Blocking code.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import sqlalchemy as sa

FIRST_VERSION = 1
"""Databases made before there was a version table hold it, too."""
_CALLS_OF_VERSION_4 = (
    "CREATE TABLE IF NOT EXISTS orion_model_calls (id VARCHAR(32) NOT NULL PRIMARY KEY, run_id VARCHAR(64) NOT NULL,"
    ' agent VARCHAR(32) NOT NULL, model TEXT NOT NULL, team VARCHAR(32) NOT NULL, "user" VARCHAR(32) NOT NULL,'
    " channel VARCHAR(32) NOT NULL, at DOUBLE PRECISION NOT NULL, usage JSON NOT NULL, cost BIGINT)",
    "CREATE INDEX IF NOT EXISTS ix_orion_model_calls_run ON orion_model_calls (run_id)",
    "CREATE INDEX IF NOT EXISTS ix_orion_model_calls_at ON orion_model_calls (at)",
)
"""For databases that come from before version 4, and get a column more at once."""
MIGRATIONS: Sequence[tuple[int, Sequence[str]]] = (
    (
        2,
        (
            "ALTER TABLE orion_runs ADD COLUMN changes JSON",
            "ALTER TABLE orion_runs ADD COLUMN cost_usd DOUBLE PRECISION",
            "ALTER TABLE orion_runs ADD COLUMN resumed VARCHAR(16)",
        ),
    ),
    (
        3,
        ("ALTER TABLE orion_runs ADD COLUMN has_outside_effect BOOLEAN DEFAULT FALSE NOT NULL",),
    ),
    (4, ()),
    (
        5,
        (
            *_CALLS_OF_VERSION_4,
            "ALTER TABLE orion_model_calls ADD COLUMN is_own_key BOOLEAN DEFAULT FALSE NOT NULL",
        ),
    ),
    (
        6,
        (
            "ALTER TABLE orion_runs ADD COLUMN duration_s DOUBLE PRECISION DEFAULT 0 NOT NULL",
            "ALTER TABLE orion_runs ADD COLUMN steps INTEGER DEFAULT 0 NOT NULL",
        ),
    ),
)
"""Each version with the statements that lead to it from the one before; written so that SQLite and PostgreSQL take both.

Tables that are new in a version (2: sessions, files of runs; 4: defaults, model calls; 5: own keys) need none: they are made as a fresh database has them.
"""
LOCK_KEY = 7_091_511
"""Any number, the same in all processes: whoever holds this advisory lock of PostgreSQL's changes the tables."""

metadata = sa.MetaData()
RUNS_TABLE = "orion_runs"
_schema = sa.Table("orion_schema", metadata, sa.Column("version", sa.Integer, primary_key=True))


class UnreadableStoreError(Exception):
    """The database cannot be used as it is. One sentence: which one and why, and what to do."""

    def __init__(self, reason: str, fix: str) -> None:
        super().__init__(f"{reason}: {fix}")
        self.reason = reason
        self.fix = fix


def newest_version() -> int:
    """The version that this Orion reads and writes."""
    return MIGRATIONS[-1][0] if MIGRATIONS else FIRST_VERSION


def prepare(engine: sa.Engine, name: str) -> None:
    """Make the tables of an empty database; of another one, see that they are as this Orion needs them.

    Args:
        engine: where the tables are.
        name: what the operator calls it; a path, or a URL without its password.

    Raises:
        UnreadableStoreError
    """
    with _explained(name):
        with engine.connect() as connection:
            version = _version(connection, name)
        if version is None:
            with _exclusively(engine) as connection:
                version = _version(connection, name)  # another process may have been quicker
                if version is None:
                    version = _create(connection)
        _refuse_other_versions(version, name)
        with engine.connect() as connection:
            _refuse_missing_columns(connection, name)


def migrate(engine: sa.Engine, name: str) -> tuple[int, int]:
    """Raise the tables to the newest version, all or nothing; returns the versions before and after. Makes missing ones.

    Raises:
        UnreadableStoreError: nothing has been changed.
    """
    with _explained(name), _exclusively(engine) as connection:
        before = _version(connection, name)
        if before is None:
            before = _create(connection)
        if before > newest_version():
            _refuse_other_versions(before, name)
        for version, statements in MIGRATIONS:
            if version > before:
                for statement in statements:
                    connection.execute(sa.text(statement))
        if before < newest_version():
            metadata.create_all(connection)
        _refuse_missing_columns(connection, name)
        _schema.create(connection, checkfirst=True)
        connection.execute(sa.delete(_schema))
        connection.execute(sa.insert(_schema).values(version=newest_version()))
        return before, newest_version()


def _create(connection: sa.Connection) -> int:
    metadata.create_all(connection)
    connection.execute(sa.insert(_schema).values(version=newest_version()))
    return newest_version()


def examine(engine: sa.Engine, name: str) -> None:
    """See that an SQLite file can be written, and read the whole of it (100 MB took 0.25 s).

    A closed or damaged file shows here, not in the middle of a run.

    Raises:
        UnreadableStoreError
    """
    if engine.dialect.name != "sqlite":
        return
    with _explained(name):
        with engine.begin() as connection:  # needs the right to write, though it finds no row
            connection.execute(sa.text(f"UPDATE {RUNS_TABLE} SET id = id WHERE 0"))  # noqa: S608 - our own name
        with engine.connect() as connection:
            found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
    if found != "ok":
        raise _damaged(name, str(found))


def _version(connection: sa.Connection, name: str) -> int | None:
    """None: none of the tables is there."""
    tables = set(sa.inspect(connection).get_table_names())
    if _schema.name not in tables:
        return FIRST_VERSION if RUNS_TABLE in tables else None
    versions: Sequence[int] = connection.scalars(sa.select(_schema.c.version)).all()
    if len(versions) != 1 or RUNS_TABLE not in tables:
        raise _half_made(name, "a table or its version is missing")
    return versions[0]


def _refuse_other_versions(version: int, name: str) -> None:
    newest = newest_version()
    if version > newest:
        raise UnreadableStoreError(
            f"{name} was written by a newer Orion (its tables have version {version}, this Orion reads {newest})",
            "update Orion, or give it another ORION_STATE_DIR",
        )
    if version < newest:
        raise UnreadableStoreError(
            f"{name} was written by an older Orion (its tables have version {version}, this Orion reads {newest})",
            "stop Orion, keep a copy, and run `orion migrate`",
        )


def _refuse_missing_columns(connection: sa.Connection, name: str) -> None:
    inspector = sa.inspect(connection)
    tables = set(inspector.get_table_names())
    for wanted in metadata.sorted_tables:
        if wanted.name not in tables:
            raise _half_made(name, f"there is no table {wanted.name}")
        found = {column["name"] for column in inspector.get_columns(wanted.name)}
        missing = [column.name for column in wanted.columns if column.name not in found]
        if missing:
            raise _half_made(name, f"{wanted.name} has no column {', '.join(missing)}")


def _half_made(name: str, reason: str) -> UnreadableStoreError:
    return UnreadableStoreError(
        f"{name} is half made ({reason})", "put a copy of it back, or move it away to begin anew"
    )


def _damaged(name: str, reason: str) -> UnreadableStoreError:
    return UnreadableStoreError(
        f"{name} is damaged ({_first_line(reason)})",
        "put a copy of it back, or move it away to begin anew",
    )


@contextmanager
def _exclusively(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A transaction that nobody else changes tables beside; left by an error, it has changed nothing."""
    with engine.begin() as connection:
        if connection.dialect.name == "sqlite":
            # Python's sqlite3 begins none before CREATE and ALTER. Source: Python docs, sqlite3, transaction control.
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(LOCK_KEY)))
        yield connection


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Errors of the database as sentences for its operator."""
    try:
        yield
    except sa.exc.DBAPIError as exc:
        raise _explain(exc, name) from exc


def _explain(error: sa.exc.DBAPIError, name: str) -> UnreadableStoreError:
    """Source of the codes: SQLite, Result and Error Codes, read 2026-11; the low byte is the primary one."""
    reason = _first_line(error.orig)
    if isinstance(error, sa.exc.ProgrammingError):  # PostgreSQL: a table or column is not there
        return _half_made(name, reason)
    match getattr(error.orig, "sqlite_errorcode", 0) & 0xFF:
        case sqlite3.SQLITE_ERROR:  # the same
            return _half_made(name, reason)
        case sqlite3.SQLITE_NOTADB:
            return UnreadableStoreError(
                f"{name} is not an SQLite database",
                "move it away, or give Orion another ORION_STATE_DIR",
            )
        case sqlite3.SQLITE_CORRUPT:
            return _damaged(name, reason)
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return UnreadableStoreError(
                f"{name} is locked by another program", "end that program, then try again"
            )
        case _:
            return UnreadableStoreError(
                f"{name} cannot be used ({reason})",
                "check that it can be reached, its owner, and the free space",
            )


def _first_line(reason: object) -> str:
    return (str(reason).strip() or "no reason given").splitlines()[0]
