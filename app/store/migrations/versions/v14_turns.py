"""Who comes before a run that waits is counted from an index alone."""

from alembic import op

revision, down_revision = "14", "13"
is_additive = True


def upgrade() -> None:
    op.drop_index("ix_orion_runs_state", "orion_runs")
    op.create_index("ix_orion_runs_state", "orion_runs", ["state", "team", "user", "created_at"])
