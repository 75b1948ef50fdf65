"""What people told Orion to remember in a channel."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "17", "16"
is_additive = True


def upgrade() -> None:
    op.create_table(
        "orion_channel_notes",
        sa.Column("run_id", sa.String(64), primary_key=True),
        sa.Column("team", sa.Text, nullable=False),
        sa.Column("channel", sa.Text, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("user", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("forgotten_by", sa.Text, nullable=False),
    )
    op.create_index(
        "ix_orion_channel_notes_number",
        "orion_channel_notes",
        ["team", "channel", "number"],
        unique=True,
    )
    op.create_index("ix_orion_channel_notes_user", "orion_channel_notes", ["team", "user"])
