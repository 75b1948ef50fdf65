"""A database whose tables are raised, and what an Orion to come would do to them."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import sqlalchemy as sa

from app.store.engine import open_engine
from app.store.migrations import VERSIONS, migrate_store, newest_version, prepare
from app.store.runs import SqlRunStore, open_store

NEWEST = newest_version()
TOMORROW = f"""
import sqlalchemy as sa
from alembic import op

revision, down_revision = "{NEWEST + 1}", "{NEWEST}"


def upgrade() -> None:
    op.add_column("orion_runs", sa.Column("mood", sa.String(16)))
    op.create_table("orion_moods", sa.Column("id", sa.Integer))
"""


class Database:
    """One database, reached by the store and by hand."""

    def __init__(self, location: Path | str) -> None:
        self._location = location

    def open(self) -> AbstractAsyncContextManager[SqlRunStore]:
        return open_store(self._location)

    def prepare(self, *, versions: Path = VERSIONS) -> None:
        """As opening it does, for an Orion with these migrations."""
        with open_engine(self._location) as engine:
            prepare(engine, "the store", versions=versions)

    def migrate(self, *, versions: Path = VERSIONS) -> tuple[int, int]:
        return migrate_store(self._location, versions=versions)

    def execute(self, *statements: str) -> None:
        with open_engine(self._location) as engine, engine.begin() as connection:
            for statement in statements:
                connection.execute(sa.text(statement))

    def versions(self) -> Sequence[int]:
        with open_engine(self._location) as engine, engine.connect() as connection:
            return connection.scalars(sa.text("SELECT version FROM orion_schema")).all()

    def columns(self) -> Mapping[str, Mapping[str, bool]]:
        """Of each table of ours, and whether they may be null."""
        with open_engine(self._location) as engine:
            inspector = sa.inspect(engine)
            return {
                table: {one["name"]: one["nullable"] for one in inspector.get_columns(table)}
                for table in inspector.get_table_names()
                if table.startswith("orion_")
            }

    def indexes(self) -> Mapping[str, tuple[Sequence[str | None], bool, bool]]:
        """Name -> columns, whether it is unique, whether it is of some rows alone."""
        with open_engine(self._location) as engine:
            inspector = sa.inspect(engine)
            return {
                str(index["name"]): (
                    index["column_names"],
                    bool(index["unique"]),
                    f"{engine.dialect.name}_where" in index.get("dialect_options", {}),
                )
                for table in inspector.get_table_names()
                if table.startswith("orion_")
                for index in inspector.get_indexes(table)
            }


async def open_once(database: Database) -> None:
    """As a start of Orion does: tables that are not there are made, others looked through."""
    async with database.open():
        pass
