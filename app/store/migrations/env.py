"""What alembic runs to raise a database: on the connection, and in the transaction, of whoever asked for it."""

from typing import Any

import sqlalchemy as sa
from alembic import context
from alembic.ddl.postgresql import PostgresqlImpl
from alembic.ddl.sqlite import SQLiteImpl
from typing_extensions import override


class _Revision(sa.TypeDecorator[str]):
    """The text that alembic has for a version, as the number in the table."""

    impl = sa.Integer
    cache_ok = True

    @override
    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> int | None:
        return None if value is None else int(value)

    @override
    def process_result_value(self, value: Any | None, dialect: sa.Dialect) -> str | None:
        return None if value is None else str(value)


def _version_table(name: str) -> sa.Table:
    # The one that Orion had before it had alembic, so that an older Orion still finds out that it is one.
    column = sa.Column("version", _Revision, key="version_num", primary_key=True)
    return sa.Table(name, sa.MetaData(), column)


class _Sqlite(SQLiteImpl):
    __dialect__ = "sqlite"

    @override
    def version_table_impl(self, *, version_table: str, **_kwargs: Any) -> sa.Table:
        return _version_table(version_table)


class _Postgresql(PostgresqlImpl):
    __dialect__ = "postgresql"

    @override
    def version_table_impl(self, *, version_table: str, **_kwargs: Any) -> sa.Table:
        return _version_table(version_table)


context.configure(connection=context.config.attributes["connection"], version_table="orion_schema")
context.run_migrations()
