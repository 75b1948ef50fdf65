"""What runs begin with, and by whom."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "26", "25"
is_additive = True


def upgrade() -> None:
    op.add_column("orion_runs", sa.Column("effective", sa.JSON(none_as_null=True), nullable=True))
