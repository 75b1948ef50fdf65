"""Who changed which channel's defaults, and when."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "8", "7"


def upgrade() -> None:
    op.create_table(
        "orion_channel_changes",
        sa.Column("run_id", sa.String(64), primary_key=True),
        sa.Column("team", sa.Text, nullable=False),
        sa.Column("channel", sa.Text, nullable=False),
        sa.Column("user", sa.Text, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("said", sa.Text, nullable=False),
    )
    op.create_index(
        "ix_orion_channel_changes_channel", "orion_channel_changes", ["team", "channel"]
    )
