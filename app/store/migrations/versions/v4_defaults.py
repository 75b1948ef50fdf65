"""Defaults of persons and channels."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "4", "3"


def upgrade() -> None:
    op.create_table(
        "orion_defaults",
        sa.Column("team", sa.String(32), primary_key=True),
        sa.Column("owner", sa.String(32), primary_key=True),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("model_agent", sa.Text, nullable=False),
        sa.Column("sandbox", sa.Text, nullable=False),
        sa.Column("repo", sa.Text, nullable=False),
        sa.Column("branch", sa.Text, nullable=False),
    )
