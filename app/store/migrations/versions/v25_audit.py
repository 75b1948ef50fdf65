"""Who was allowed or refused what."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "25", "24"
is_additive = True


def upgrade() -> None:
    op.create_table(
        "orion_audit",
        sa.Column("id", sa.String(128), primary_key=True),
        sa.Column("at", sa.Double, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("team", "channel", "user")),
        sa.Column("act", sa.String(64), nullable=False),
        sa.Column("target", sa.Text, nullable=False),
        sa.Column("is_allowed", sa.Boolean, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("reason", "run_id")),
    )
    op.create_index("ix_orion_audit_at", "orion_audit", ["at"])
