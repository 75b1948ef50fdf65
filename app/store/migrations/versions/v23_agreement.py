"""Which settings a process has, for others to compare, and what it shares with those on its host."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "23", "22"
is_additive = True


def upgrade() -> None:
    op.add_column("orion_processes", sa.Column("settings", sa.JSON(none_as_null=True)))
    op.add_column("orion_processes", sa.Column("host", sa.Text))
