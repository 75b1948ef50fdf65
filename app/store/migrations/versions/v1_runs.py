"""The first tables: runs. Databases from before there was a version table have them."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "1", None


def upgrade() -> None:
    op.create_table(
        "orion_runs",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("thread_key", sa.String(128), nullable=False),
        sa.Column("team", sa.String(32), nullable=False),
        sa.Column("user", sa.String(32), nullable=False),
        sa.Column("message_ts", sa.String(32), nullable=False),
        sa.Column("request", sa.JSON, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("placed_at", sa.Double),
        sa.Column("started_at", sa.Double),
        sa.Column("deadline_at", sa.Double),
        sa.Column("ended_at", sa.Double),
        sa.Column("reply_ts", sa.String(32)),
        sa.Column("part_ts", sa.JSON, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("agent", sa.String(32), nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("provider", sa.String(32), nullable=False),
        sa.Column("sandbox_id", sa.String(128)),
        sa.Column("event_offset", sa.Integer, nullable=False),
        sa.Column("stop_requested_by", sa.String(32)),
        sa.Column("stop_requested_at", sa.Double),
        sa.Column("outcome", sa.String(16)),
        sa.Column("answer", sa.Text, nullable=False),
        sa.Column("error_code", sa.String(64)),
        sa.Column("error_detail", sa.Text, nullable=False),
        sa.Column("delivery", sa.Text, nullable=False),
        sa.Column("usage", sa.JSON, nullable=False),
        sa.Column("trace_id", sa.String(32), nullable=False),
    )
    op.create_index("ix_orion_runs_thread", "orion_runs", ["thread_key", "message_ts"])
    op.create_index("ix_orion_runs_user", "orion_runs", ["team", "user", "created_at"])
    op.create_index("ix_orion_runs_state", "orion_runs", ["state"])
