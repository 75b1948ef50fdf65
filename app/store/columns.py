"""Column types that mean the same in SQLite and PostgreSQL."""

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from typing_extensions import override


class AnyText(sa.TypeDecorator[str]):
    """Text of agents, as long as it likes. PostgreSQL's knows no NUL character, and would refuse the whole record for one.

    Source: PostgreSQL 15 documentation, 8.3 Character Types.
    """

    impl = sa.Text
    cache_ok = True

    @override
    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:
        if value is None or dialect.name == "sqlite":
            return value
        return value.replace("\x00", "\ufffd")


class UtcTime(sa.TypeDecorator[datetime]):
    """Aware UTC times as seconds since the epoch: the same on both databases, microseconds kept."""

    impl = sa.Double
    cache_ok = True

    @override
    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> float | None:
        return None if value is None else value.timestamp()

    @override
    def process_result_value(self, value: Any | None, dialect: sa.Dialect) -> datetime | None:
        return None if value is None else datetime.fromtimestamp(value, UTC)
