"""Where a slice of a run has left its agent at work, and who keeps the sandbox of a thread."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "12", "11"


def upgrade() -> None:
    op.add_column("orion_runs", sa.Column("checkpoint", sa.JSON(none_as_null=True), nullable=True))
    for name in ("kept_by", "kept_environment"):
        op.add_column("orion_sessions", sa.Column(name, sa.Text, nullable=False, server_default=""))
    op.add_column("orion_sessions", sa.Column("kept_until", sa.Double, nullable=True))
