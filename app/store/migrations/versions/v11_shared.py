"""What processes on one database share: sums of days, grants and their calls, and what this Orion is called."""

from collections import Counter
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa
from alembic import op

revision, down_revision = "11", "10"

_SUMMED = timedelta(days=2)
"""Budgets are of one day; and one more, for clocks."""


def upgrade() -> None:
    days = op.create_table(
        "orion_spent_days",
        sa.Column("day", sa.String(10), primary_key=True),
        sa.Column("kind", sa.String(16), primary_key=True),
        sa.Column("team", sa.String(32), primary_key=True),
        sa.Column("name", sa.String(32), primary_key=True),
        sa.Column("cost", sa.BigInteger, nullable=False),
    )
    _add_up(op.get_bind(), days)
    op.create_table(
        "orion_grants",
        sa.Column("run_id", sa.String(64), primary_key=True),
        sa.Column("process", sa.String(64), nullable=False),
        sa.Column("content", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
        sa.Column("has_effect", sa.Boolean, nullable=False),
    )
    op.create_table(
        "orion_grant_calls",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("run_id", sa.String(64), nullable=False),
        sa.Column("call", sa.JSON(none_as_null=True), nullable=False),
    )
    op.create_index("ix_orion_grant_calls_run", "orion_grant_calls", ["run_id"])
    op.create_table(
        "orion_installation",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("namespace", sa.String(32), nullable=False),
        sa.Column("signing_key", sa.String(64), nullable=False),
        sa.Column("own_keys_check", sa.String(64), nullable=False),
    )


def _add_up(connection: sa.Connection, days: sa.Table) -> None:
    names = ("team", "user", "channel", "at", "cost", "is_own_key")
    calls = sa.table("orion_model_calls", *map(sa.column, names))
    since = (datetime.now(UTC) - _SUMMED).timestamp()
    sums: Counter[tuple[str, str, str, str]] = Counter()
    for call in connection.execute(sa.select(calls).where(calls.c.at >= since)).mappings():
        if call["cost"] is None or call["is_own_key"]:
            continue
        day = datetime.fromtimestamp(call["at"], UTC).date().isoformat()
        for key in (
            ("user", call["team"], call["user"]),
            ("channel", call["team"], call["channel"]),
            ("all", "", ""),
        ):
            sums[day, *key] += call["cost"]
    if sums:
        rows = [
            dict(zip(("day", "kind", "team", "name", "cost"), (*key, cost), strict=True))
            for key, cost in sums.items()
        ]
        connection.execute(sa.insert(days), rows)
