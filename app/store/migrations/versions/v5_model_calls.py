"""What model calls cost, and people's own keys."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "5", "4"


def upgrade() -> None:
    op.create_table(
        "orion_model_calls",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("run_id", sa.String(64), nullable=False),
        sa.Column("agent", sa.String(32), nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("team", sa.String(32), nullable=False),
        sa.Column("user", sa.String(32), nullable=False),
        sa.Column("channel", sa.String(32), nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("usage", sa.JSON, nullable=False),
        sa.Column("cost", sa.BigInteger),
        if_not_exists=True,  # some of version 4 have it
    )
    op.create_index("ix_orion_model_calls_run", "orion_model_calls", ["run_id"], if_not_exists=True)
    op.create_index("ix_orion_model_calls_at", "orion_model_calls", ["at"], if_not_exists=True)
    own_key = sa.Column("is_own_key", sa.Boolean, nullable=False, server_default=sa.false())
    op.add_column("orion_model_calls", own_key)
    op.create_table(
        "orion_own_keys",
        sa.Column("team", sa.String(32), primary_key=True),
        sa.Column("person", sa.String(32), primary_key=True),
        sa.Column("protocol", sa.String(16), primary_key=True),
        sa.Column("sealed", sa.Text, nullable=False),
    )
