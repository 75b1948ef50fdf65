"""What waits for people's answers, and how often rules have decided."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "19", "18"
is_additive = True


def upgrade() -> None:
    op.create_table(
        "orion_approvals",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("run_id", sa.String(64), nullable=False),
        *(
            sa.Column(name, sa.Text, nullable=False)
            for name in ("team", "channel", "thread_key", "thread_ts", "asker")
        ),
        sa.Column("kind", sa.String(64), nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("target", "shown", "digest")),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("rule", sa.Text, nullable=False),
        sa.Column("by", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("people", sa.BigInteger, nullable=False),
        sa.Column("options", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("otherwise", sa.Text, nullable=False),
        sa.Column("asked_at", sa.Double, nullable=False),
        sa.Column("until", sa.Double, nullable=False),
        sa.Column("state", sa.String(64), nullable=False),
        sa.Column("answers", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("is_for_thread", sa.Boolean, nullable=False),
        sa.Column("ended_at", sa.Double, nullable=True),
        sa.Column("card_ts", sa.Text, nullable=False),
        sa.Column("is_told", sa.Boolean, nullable=False),
        sa.Column("telling_until", sa.Double, nullable=True),
    )
    op.create_table(
        "orion_approval_hits",
        sa.Column("rule", sa.Text, primary_key=True),
        sa.Column("hits", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_orion_approvals_run", "orion_approvals", ["run_id", "number"], unique=True)
    op.create_index("ix_orion_approvals_thread", "orion_approvals", ["thread_key"])
    op.create_index("ix_orion_approvals_told", "orion_approvals", ["is_told"])
    op.create_index("ix_orion_approvals_state", "orion_approvals", ["team", "state"])
