"""Which Orion a process is, for operators who look at several."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "27", "26"
is_additive = True


def upgrade() -> None:
    op.add_column("orion_processes", sa.Column("version", sa.Text))
