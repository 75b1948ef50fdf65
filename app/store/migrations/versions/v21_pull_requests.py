"""Pull requests that are looked after."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "21", "20"
is_additive = True


def upgrade() -> None:
    texts = (
        *("link", "name", "base", "team", "channel", "thread_ts", "asker", "acting_for"),
        *("head", "claim"),
    )
    op.create_table(
        "orion_pull_requests",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("run_id", sa.String(64), nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in texts),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("pushed_at", sa.Double, nullable=False),
        sa.Column("state", sa.String(64), nullable=False),
        sa.Column("red_since", sa.Double, nullable=True),
        sa.Column("green_since", sa.Double, nullable=True),
        *(
            sa.Column(name, sa.Boolean, nullable=False)
            for name in ("is_external", "is_bot", "is_unseen")
        ),
        sa.Column("told", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("notices", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("rounds", sa.BigInteger, nullable=False),
        sa.Column("is_tidied", sa.Boolean, nullable=False),
        sa.Column("next_at", sa.Double, nullable=True),
        sa.Column("claimed_until", sa.Double, nullable=True),
        sa.Column("claimed_by", sa.String(32), nullable=True),
    )
    op.create_index("ix_orion_pull_requests_next", "orion_pull_requests", ["next_at"])
    op.create_index("ix_orion_pull_requests_run", "orion_pull_requests", ["run_id"])
