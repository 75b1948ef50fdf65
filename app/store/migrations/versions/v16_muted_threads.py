"""Threads in which replies without a mention are not answered."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "16", "15"
is_additive = True


def upgrade() -> None:
    op.create_table(
        "orion_muted_threads",
        sa.Column("thread_key", sa.String(128), primary_key=True),
        sa.Column("is_muted", sa.Boolean, nullable=False),
        sa.Column("user", sa.String(32), nullable=False),
        sa.Column("message_ts", sa.String(32), nullable=False),
    )
