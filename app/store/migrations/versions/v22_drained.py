"""How many attempts of a run a drain has ended, and what Slack has told one process that the others need."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "22", "21"
is_additive = True


def upgrade() -> None:
    op.add_column(
        "orion_runs", sa.Column("drained", sa.BigInteger, nullable=False, server_default="0")
    )
    op.create_table(
        "orion_slack_facts",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("value", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("at", sa.Double, nullable=False),
    )
