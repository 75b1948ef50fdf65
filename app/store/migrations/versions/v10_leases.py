"""Runs are handed out by their records: who has each, and when it may be had. What DBOS held becomes records; its tables go."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

revision, down_revision = "10", "9"

_ENGINE_TABLES = (
    *("operation_outputs", "notifications", "workflow_events", "workflow_events_history"),
    *("streams", "workflow_schedules", "application_versions", "queues", "dbos_migrations"),
    *("workflow_input", "workflow_output", "workflow_status"),
)
_ACTIVE = ("ENQUEUED", "PENDING", "DELAYED")


def upgrade() -> None:
    op.create_table(
        "orion_processes",
        sa.Column("id", sa.Text, primary_key=True, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("owner", "name", "place")),
        sa.Column("is_working", sa.Boolean, nullable=False),
        *(sa.Column(name, sa.Double, nullable=False) for name in ("started_at", "alive_until")),
    )
    for column in (
        sa.Column("place_attempt", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("owner", sa.String(32), nullable=True),
        sa.Column("due_at", sa.Double, nullable=True),
        sa.Column("claimed_at", sa.Double, nullable=True),
        sa.Column("needs_slot", sa.Boolean, nullable=False, server_default=sa.true()),
    ):
        op.add_column("orion_runs", column)
    is_due = sa.text("due_at IS NOT NULL")
    op.create_index(
        "ix_orion_runs_due", "orion_runs", ["due_at"], sqlite_where=is_due, postgresql_where=is_due
    )
    # One that was accepted is placed again by the next process; the others go on.
    op.execute(
        "UPDATE orion_runs SET due_at = created_at"
        " WHERE state NOT IN ('accepted', 'succeeded', 'failed', 'stopped')"
    )
    connection = op.get_bind()
    if connection.dialect.name == "sqlite":  # on PostgreSQL Orion has not served before
        _take_engines_rows(connection)


def _take_engines_rows(connection: sa.Connection) -> None:
    """Accepts what had been acknowledged and waited to be placed; its record was written only then."""
    there = set(sa.inspect(connection).get_table_names())
    if "workflow_status" in there:
        for request in list(_requests(connection)):
            _accept(connection, request)
    for name in _ENGINE_TABLES:
        if name in there:
            op.drop_table(name)


def _requests(connection: sa.Connection) -> Iterator[dict[str, str]]:
    """Yields the arguments; newer versions of the engine keep them in a table of their own."""
    rows = sa.table(
        "workflow_status", *map(sa.column, ("workflow_uuid", "name", "status", "inputs"))
    )
    kept = sa.table("workflow_input", *map(sa.column, ("workflow_uuid", "inputs")))
    is_waiting = (rows.c.name == "orion.place") & rows.c.status.in_(_ACTIVE)
    inputs = sa.select(rows.c.inputs).where(is_waiting)
    if "workflow_input" in sa.inspect(connection).get_table_names():
        joined = rows.outerjoin(kept, kept.c.workflow_uuid == rows.c.workflow_uuid)
        inputs = sa.select(sa.func.coalesce(kept.c.inputs, rows.c.inputs)).select_from(joined)
        inputs = inputs.where(is_waiting)
    for text in connection.scalars(inputs):
        if text is not None:
            yield json.loads(text)["args"][0]


def _accept(connection: sa.Connection, request: dict[str, str]) -> None:
    runs = sa.Table("orion_runs", sa.MetaData(), autoload_with=connection)
    run_id = request["run_id"]
    if connection.scalar(sa.select(runs.c.id).where(runs.c.id == run_id)) is not None:
        return
    created_at = datetime.fromisoformat(request["received_at"].replace("Z", "+00:00"))
    thread = (request["team"], request["channel"], request["thread_ts"])
    known = {
        "id": run_id,
        "request": json.dumps(request),
        "state": "accepted",
        "created_at": created_at.astimezone(UTC).timestamp(),
        "thread_key": "-".join(thread),
        **{name: request[name] for name in ("team", "user", "message_ts")},
        "part_ts": "[]",
        "has_outside_effect": False,
        "needs_slot": True,
    }
    empty = {
        column.name: 0 if isinstance(column.type, sa.Integer) else ""
        for column in runs.columns
        if not column.nullable and column.name not in known
    }
    connection.execute(sa.insert(runs).values(**empty, **known))
