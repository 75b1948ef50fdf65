"""How often a run was placed again after a crash."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "10", "9"


def upgrade() -> None:
    attempt = sa.Column("place_attempt", sa.BigInteger, nullable=False, server_default="0")
    op.add_column("orion_runs", attempt)
