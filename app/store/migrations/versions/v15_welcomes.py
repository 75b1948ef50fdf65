"""Who was welcomed, so that nobody is twice."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "15", "14"
is_additive = True


def upgrade() -> None:
    op.create_table(
        "orion_welcomes",
        sa.Column("team", sa.Text, primary_key=True),
        sa.Column("person", sa.Text, primary_key=True),
    )
