"""Up to when Orion has heard what was said."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "18", "17"
is_additive = True


def upgrade() -> None:
    op.create_table(
        "orion_heard",
        sa.Column("place", sa.String(32), primary_key=True),
        sa.Column("until", sa.Double, nullable=False, server_default=sa.text("0")),
        sa.Column("owner", sa.String(32), nullable=True),
    )
