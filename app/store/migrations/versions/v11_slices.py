"""Where a slice of a run has left its agent at work."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "11", "10"


def upgrade() -> None:
    op.add_column("orion_runs", sa.Column("checkpoint", sa.JSON(none_as_null=True), nullable=True))
