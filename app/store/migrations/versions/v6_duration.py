"""How long a run took and in how many steps, as its thread is told."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "6", "5"


def upgrade() -> None:
    duration = sa.Column("duration_s", sa.Double, nullable=False, server_default="0")
    op.add_column("orion_runs", duration)
    op.add_column("orion_runs", sa.Column("steps", sa.Integer, nullable=False, server_default="0"))
