"""Which version of the tables a database holds: made, checked and raised in one transaction each; refused in one sentence.

A migration is a module of `versions`, run by alembic, which is imported where one must run and nowhere else. The number of the newest
is in its file's name, so that a start needs no alembic to know it. Blocking code.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import sqlalchemy as sa

from app.store.engine import (
    MOUNTS,
    UnreadableStoreError,
    describe_damage,
    describe_half_made,
    lock_tables,
    map_errors,
    name_of,
    open_engine,
    refuse_network_file_system,
    refuse_old_server,
)
from app.store.tables import Now, metadata, processes, runs, schema

VERSIONS = Path(__file__).parent / "versions"
FIRST_VERSION = 1
"""Databases made before there was a version table hold it, too."""
FIRST_WITH_PROCESSES, FIRST_WITH_OLDEST = 10, 13
_ENCODINGS = ("UTF8", "SQL_ASCII")
"""That keep whatever is given to them; the latter as bytes."""
_FIRST_SCHEMA = sa.Table(
    schema.name, sa.MetaData(), sa.Column("version", sa.Integer, primary_key=True)
)
_ADDITIVE = re.compile(r"^is_additive = True$", re.MULTILINE)


def newest_version(versions: Path = VERSIONS) -> int:
    """Returns the version that an Orion with these migrations reads and writes."""
    return max(_files(versions))


def _files(versions: Path) -> Mapping[int, Path]:
    names = ((path, re.match(r"v(\d+)_", path.name)) for path in versions.glob("v*.py"))
    return {int(name[1]): path for path, name in names if name}


def prepare(engine: sa.Engine, name: str, *, versions: Path = VERSIONS) -> None:
    """Makes the tables of an empty database; of another one, sees that they are as this Orion needs them.

    Args:
        engine: where the tables are.
        name: what the operator calls it; a path, or a URL without its password.
        versions: the folder of the migrations.

    Raises:
        UnreadableStoreError
    """
    newest = newest_version(versions)
    with map_errors(name):
        with engine.connect() as connection:
            _refuse_server(connection, name)
            version = _version(connection, name)
        if version is None:
            with lock_tables(engine) as connection:
                version = _version(connection, name)  # another process may have been quicker
                if version is None:
                    version = _create(connection, newest)
        with engine.connect() as connection:
            _refuse_other_versions(connection, version, newest, name)
            _refuse_missing_columns(connection, name)


def require_version(connection: sa.Connection, name: str) -> None:
    """Sees that this Orion may go on with tables on which it has worked: a newer one may have raised them meanwhile.

    Raises:
        UnreadableStoreError: it has, by more than something that was added.
    """
    version = _version(connection, name)
    if version is None:
        raise describe_half_made(name, "its tables are gone")
    _refuse_other_versions(connection, version, newest_version(), name)


def migrate_store(
    location: Path | str, *, versions: Path = VERSIONS, mounts: Path = MOUNTS
) -> tuple[int, int]:
    """Raises the tables to the newest version, all or nothing; returns the versions before and after. Makes missing ones.

    Processes may be at work there while something is only added.

    Args:
        location: the path of an SQLite file, or a `postgresql://…` URL.
        versions: the folder of the migrations.
        mounts: as for `refuse_network_file_system`.

    Raises:
        UnreadableStoreError: nothing has been changed.
    """
    if isinstance(location, Path):
        refuse_network_file_system(location, mounts=mounts)
    name, newest = name_of(location), newest_version(versions)
    with open_engine(location) as engine, map_errors(name), lock_tables(engine) as connection:
        _refuse_server(connection, name)
        before = _version(connection, name)
        if before is None:
            before = _create(connection, newest)
        if before > newest:
            _refuse_other_versions(connection, before, newest, name)
        if before < newest:
            oldest = _oldest_after(connection, before, versions)
            if oldest > before:
                _end_processes(connection, before, name)
            _upgrade(connection, before, versions)
            connection.execute(sa.update(schema).values(oldest=oldest))
        _refuse_missing_columns(connection, name)
        return before, max(before, newest)


def _oldest_after(connection: sa.Connection, before: int, versions: Path) -> int:
    """Returns the lowest version of an Orion that may work on the tables once they are raised."""
    pending = sorted((number, path) for number, path in _files(versions).items() if number > before)
    changed = [number for number, path in pending if not _ADDITIVE.search(path.read_text())]
    return changed[-1] if changed else _oldest(connection, before)


def _oldest(connection: sa.Connection, version: int) -> int:
    if version < FIRST_WITH_OLDEST:
        return version
    return connection.scalar(sa.select(schema.c.oldest)) or version


def _end_processes(connection: sa.Connection, version: int, name: str) -> None:
    """Refuses while any lives; the others are known no more, so that one that was frozen asks for the version before it goes on."""
    if version < FIRST_WITH_PROCESSES or connection.dialect.name == "sqlite":
        return
    living = sa.select(processes.c.name).where(processes.c.alive_until >= Now())
    if names := connection.scalars(living).all():
        raise UnreadableStoreError(
            f"{name} is at work ({', '.join(sorted(names))})",
            "stop these processes first: they cannot read the tables of the new version",
        )
    connection.execute(sa.delete(processes))


def _upgrade(connection: sa.Connection, before: int, versions: Path) -> None:
    from alembic import command  # noqa: PLC0415 - 0.2 s that only a migration costs
    from alembic.config import Config  # noqa: PLC0415

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", _escaped(Path(__file__).parent))
    config.set_main_option("version_locations", _escaped(versions))
    config.set_main_option("path_separator", "newline")
    _FIRST_SCHEMA.create(connection, checkfirst=True)
    if not _rows(connection):  # from before there was a version table
        command.stamp(config, str(before))
    command.upgrade(config, "head")


def _escaped(path: Path) -> str:
    return str(path).replace("%", "%%")


def _create(connection: sa.Connection, newest: int) -> int:
    metadata.create_all(connection)
    connection.execute(sa.insert(schema).values(version=newest))
    return newest


def examine(engine: sa.Engine, name: str) -> None:
    """Sees that an SQLite file can be written, and reads the whole of it (100 MB took 0.25 s).

    A closed or damaged file shows here, not in the middle of a run.

    Raises:
        UnreadableStoreError
    """
    if engine.dialect.name != "sqlite":
        return
    with map_errors(name):
        with engine.begin() as connection:  # needs the right to write, though it finds no row
            connection.execute(sa.update(runs).where(sa.false()).values(id=runs.c.id))
        with engine.connect() as connection:
            found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
    if found != "ok":
        raise describe_damage(name, found)


def _refuse_server(connection: sa.Connection, name: str) -> None:
    if connection.dialect.name == "postgresql":
        refuse_old_server(connection.dialect.server_version_info or (0,), name)
        encoding = connection.exec_driver_sql("SHOW server_encoding").scalar_one()
        if encoding not in _ENCODINGS:
            raise UnreadableStoreError(
                f"{name} keeps text as {encoding}, which has no emoji",
                "make one with: CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0",
            )


def _version(connection: sa.Connection, name: str) -> int | None:
    """Returns None when none of the tables is there."""
    tables = set(sa.inspect(connection).get_table_names())
    if schema.name not in tables:
        return FIRST_VERSION if runs.name in tables else None
    versions = _rows(connection)
    if len(versions) != 1 or runs.name not in tables:
        raise describe_half_made(name, "a table or its version is missing")
    return versions[0]


def _rows(connection: sa.Connection) -> Sequence[int]:
    return connection.scalars(sa.select(schema.c.version)).all()


def _refuse_other_versions(connection: sa.Connection, version: int, newest: int, name: str) -> None:
    if version > newest and _oldest(connection, version) > newest:
        raise UnreadableStoreError(
            f"{name} was written by a newer Orion (its tables have version {version}, this Orion reads {newest})",
            "update Orion, or give it another database (ORION_STATE_DIR, ORION_DATABASE_URL)",
        )
    if version < newest:
        raise UnreadableStoreError(
            f"{name} was written by an older Orion (its tables have version {version}, this Orion reads {newest})",
            "stop Orion, keep a copy (of PostgreSQL by pg_dump), and run `orion migrate`",
        )


def _refuse_missing_columns(connection: sa.Connection, name: str) -> None:
    inspector = sa.inspect(connection)
    tables = set(inspector.get_table_names())
    for wanted in metadata.sorted_tables:
        if wanted.name not in tables:
            raise describe_half_made(name, f"there is no table {wanted.name}")
        found = {column["name"] for column in inspector.get_columns(wanted.name)}
        missing = [column.name for column in wanted.columns if column.name not in found]
        if missing:
            raise describe_half_made(name, f"{wanted.name} has no column {', '.join(missing)}")
