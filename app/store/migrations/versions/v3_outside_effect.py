"""Whether a run may have changed something outside its sandbox."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "3", "2"


def upgrade() -> None:
    effect = sa.Column("has_outside_effect", sa.Boolean, nullable=False, server_default=sa.false())
    op.add_column("orion_runs", effect)
