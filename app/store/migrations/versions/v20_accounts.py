"""Accounts that people have linked."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "20", "19"
is_additive = True


def upgrade() -> None:
    op.create_table(
        "orion_accounts",
        sa.Column("team", sa.String(32), primary_key=True),
        sa.Column("person", sa.String(32), primary_key=True),
        sa.Column("service", sa.String(16), primary_key=True),
        sa.Column("account_id", sa.Text, nullable=False),
        sa.Column("login", sa.Text, nullable=False),
        sa.Column("sealed", sa.Text, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=True),
        sa.Column("refreshing_until", sa.Double, nullable=True),
    )
