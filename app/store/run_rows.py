"""Run records as rows of one table."""

from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from app.errors import ErrorCode
from app.runs.model import (
    FINAL_STATES,
    STARTED_STATES,
    UNFINISHED_STATES,
    WAITING_STATES,
    Changes,
    Resumption,
    Run,
    RunId,
    RunRequest,
    RunState,
    Usage,
)
from app.store import schema
from app.store.columns import AnyText, UtcTime

runs = sa.Table(
    schema.RUNS_TABLE,
    schema.metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("thread_key", sa.String(128), nullable=False),
    sa.Column("team", sa.String(32), nullable=False),
    sa.Column("user", sa.String(32), nullable=False),
    sa.Column("message_ts", sa.String(32), nullable=False),
    sa.Column("request", sa.JSON, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Column("placed_at", UtcTime),
    sa.Column("started_at", UtcTime),
    sa.Column("deadline_at", UtcTime),
    sa.Column("ended_at", UtcTime),
    sa.Column("reply_ts", sa.String(32)),
    sa.Column("part_ts", sa.JSON, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("agent", sa.String(32), nullable=False),
    sa.Column("model", AnyText, nullable=False),
    sa.Column("provider", sa.String(32), nullable=False),
    sa.Column("sandbox_id", sa.String(128)),
    sa.Column("event_offset", sa.Integer, nullable=False),
    sa.Column("stop_requested_by", sa.String(32)),
    sa.Column("stop_requested_at", UtcTime),
    sa.Column("outcome", sa.String(16)),
    sa.Column("answer", AnyText, nullable=False),
    sa.Column("duration_s", sa.Double, nullable=False, server_default="0"),
    sa.Column("steps", sa.Integer, nullable=False, server_default="0"),
    sa.Column("error_code", sa.String(64)),
    sa.Column("error_detail", AnyText, nullable=False),
    sa.Column("delivery", AnyText, nullable=False),
    sa.Column("usage", sa.JSON, nullable=False),
    sa.Column("changes", sa.JSON(none_as_null=True)),
    sa.Column("cost_usd", sa.Double),
    sa.Column("resumed", sa.String(16)),
    sa.Column("has_outside_effect", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("trace_id", sa.String(32), nullable=False),
    sa.Index("ix_orion_runs_thread", "thread_key", "message_ts"),
    sa.Index("ix_orion_runs_user", "team", "user", "created_at"),
    sa.Index("ix_orion_runs_state", "state"),
)
UNFINISHED = runs.c.state.in_([state.value for state in UNFINISHED_STATES])
"""Named one by one, not as "not in": so the index on the state finds the few among all that are kept."""
ENDED = runs.c.state.in_([state.value for state in FINAL_STATES])


def in_states(
    column: sa.ColumnElement[str], states: Collection[RunState]
) -> sa.ColumnElement[bool]:
    """Whether it is one of these."""
    return column.in_([state.value for state in states])


def select_one(connection: sa.Connection, run_id: RunId) -> Run | None:
    """The record of that id."""
    row = connection.execute(sa.select(runs).where(runs.c.id == run_id)).mappings().first()
    return None if row is None else from_row(dict(row))


def to_row(run: Run) -> dict[str, Any]:
    """With the columns by which runs are found."""
    columns = {column.name for column in runs.columns}
    row = {name: getattr(run, name) for name in columns if hasattr(run, name)}
    request = run.request
    return row | {
        "thread_key": run.thread.key,
        "team": request.team,
        "user": request.user,
        "message_ts": request.message_ts,
        "request": request.model_dump(mode="json"),
        "part_ts": list(run.part_ts),
        "usage": asdict(run.usage),
        "changes": asdict(run.changes) if run.changes else None,
    }


def from_row(row: Mapping[str, Any]) -> Run:
    """All columns of a row as a record."""
    fields = dict(row)
    for name in ("thread_key", "team", "user", "message_ts"):
        del fields[name]
    return Run(
        **fields
        | {
            "id": RunId(row["id"]),
            "request": RunRequest.model_validate(row["request"]),
            "state": RunState(row["state"]),
            "outcome": RunState(row["outcome"]) if row["outcome"] else None,
            "error_code": ErrorCode(row["error_code"]) if row["error_code"] else None,
            "part_ts": tuple(row["part_ts"]),
            "usage": Usage(**row["usage"]),
            "resumed": Resumption(row["resumed"]) if row["resumed"] else None,
            "changes": Changes(**row["changes"]) if row["changes"] else None,
        }
    )


def count_elsewhere(run_id: RunId) -> sa.ScalarSelect[int]:
    """Runs that go or come before this one when people take turns: `queries.position_among` in SQL."""
    is_waiting = in_states(runs.c.state, WAITING_STATES)
    ranked = (
        sa.select(
            runs.c.id,
            runs.c.state,
            runs.c.created_at,
            sa.func.row_number()
            .over(
                partition_by=(runs.c.team, runs.c.user),
                order_by=(sa.case((is_waiting, 1), else_=0), runs.c.created_at, runs.c.id),
            )
            .label("round"),
        )
        .where(UNFINISHED)
        .cte("ranked")
    )
    own = ranked.alias("own")
    comes_before = (ranked.c.round < own.c.round) | (
        (ranked.c.round == own.c.round) & (ranked.c.created_at < own.c.created_at)
    )
    return (
        sa.select(sa.func.count())
        .where(own.c.id == run_id, ranked.c.id != run_id)
        .where(
            in_states(ranked.c.state, STARTED_STATES)
            | (in_states(ranked.c.state, WAITING_STATES) & comes_before)
        )
        .scalar_subquery()
    )
