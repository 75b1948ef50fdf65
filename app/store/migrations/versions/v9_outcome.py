"""How a run ended is one value, stored whole; its error's code keeps a column of its own, for finding it."""

import math
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from alembic import op

revision, down_revision = "9", "8"

_FINAL = ("succeeded", "failed", "stopped")
_TOLD = (
    *("BUDGET_EXCEEDED", "LIMIT_EXCEEDED", "INTERRUPTED", "MODEL_NOT_FOUND"),
    *("REPO_UNAVAILABLE", "REQUEST_INVALID"),
)
"""Codes whose detail was for the person who asked."""
_PARTS = (
    "answer",
    "duration_s",
    "steps",
    "error_detail",
    "usage",
    "resumed",
    "cost_usd",
    "changes",
)
_MAX_USD = 1_000_000
"""What a record says beyond this is no cost."""


def upgrade() -> None:
    op.add_column("orion_runs", sa.Column("ended", sa.JSON(none_as_null=True), nullable=True))
    _join(op.get_bind())
    for name in ("outcome", *_PARTS):
        op.drop_column("orion_runs", name)
    op.execute("ALTER TABLE orion_runs RENAME COLUMN ended TO outcome")


def _join(connection: sa.Connection) -> None:
    others = ("id", "state", "outcome", "error_code", "stop_requested_by", "attempt")
    runs = sa.table(
        "orion_runs",
        *map(sa.column, (*others, *(name for name in _PARTS if name not in ("usage", "changes")))),
        *(sa.column(name, sa.JSON) for name in ("usage", "changes")),
        sa.column("ended", sa.JSON),
    )
    ids = sa.select(runs.c.id).where(runs.c.outcome.is_not(None) | runs.c.state.in_(_FINAL))
    for run_id in connection.scalars(ids).all():  # one by one: answers may be long
        row = connection.execute(sa.select(runs).where(runs.c.id == run_id)).mappings().one()
        update = sa.update(runs).where(runs.c.id == run_id)
        connection.execute(update.values(ended=_outcome(row)))


def _outcome(row: sa.RowMapping) -> Mapping[str, Any]:
    state = row["outcome"] or row["state"]
    cost = row["cost_usd"]
    is_money = cost is not None and math.isfinite(cost) and 0 <= cost < _MAX_USD
    return {
        "state": state,
        "answer": row["answer"],
        "error_code": row["error_code"],
        "detail": row["error_detail"],
        "is_told": row["attempt"] == 0 or row["error_code"] in _TOLD,
        "stopped_by": row["stop_requested_by"] if state == "stopped" else None,
        "duration_s": row["duration_s"],
        "steps": row["steps"],
        "changes": row["changes"],
        "resumed": row["resumed"],
        "usage": row["usage"],
        "cost_usd": cost if is_money else None,
    }
