"""Codes by which people are linking accounts."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "24", "23"
is_additive = True


def upgrade() -> None:
    op.create_table(
        "orion_account_codes",
        sa.Column("team", sa.String(32), primary_key=True),
        sa.Column("person", sa.String(32), primary_key=True),
        sa.Column("service", sa.String(16), primary_key=True),
        sa.Column("verification_url", sa.Text, nullable=False),
        sa.Column("sealed", sa.Text, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
        sa.Column("interval_s", sa.Double, nullable=False),
    )
