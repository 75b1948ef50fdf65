"""Sessions, files of runs, and what a run's record says of changes, cost and crashes."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "2", "1"


def upgrade() -> None:
    op.add_column("orion_runs", sa.Column("changes", sa.JSON))
    op.add_column("orion_runs", sa.Column("cost_usd", sa.Double))
    op.add_column("orion_runs", sa.Column("resumed", sa.String(16)))
    op.create_table(
        "orion_sessions",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("team", sa.String(32), nullable=False),
        sa.Column("channel", sa.String(32), nullable=False),
        sa.Column("thread_ts", sa.String(32), nullable=False),
        sa.Column("provider", sa.String(32), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("exit_code", sa.Integer),
        sa.Column("agent", sa.String(32), nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("prompt", sa.Text, nullable=False),
        sa.Column("branch", sa.Text, nullable=False),
        sa.Column("repo", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("used_at", sa.Double, nullable=False),
        sa.Column("region", sa.String(32), nullable=False),
        sa.Column("mount_dir", sa.Text, nullable=False),
        sa.Column("sandbox_id", sa.String(128), nullable=False),
        sa.Column("container_name", sa.String(128), nullable=False),
        sa.Column("volume_slug", sa.String(128), nullable=False),
        sa.Column("snapshot_slug", sa.String(128), nullable=False),
        sa.Column("agent_session_id", sa.Text, nullable=False),
        sa.Column("extra", sa.JSON, nullable=False),
        if_not_exists=True,  # some of version 1 have it
    )
    for name, column in (("provider", "provider"), ("status", "status"), ("used", "used_at")):
        op.create_index(f"ix_orion_sessions_{name}", "orion_sessions", [column], if_not_exists=True)
    op.create_index(
        "ix_orion_sessions_name", "orion_sessions", ["name"], unique=True, if_not_exists=True
    )
    op.create_table(
        "orion_run_files",
        sa.Column("run_id", sa.String(64), primary_key=True),
        sa.Column("kind", sa.String(16), primary_key=True),
        sa.Column("content", sa.Text, nullable=False),
        if_not_exists=True,
    )
