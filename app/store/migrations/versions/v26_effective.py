"""What runs begin with, and by whom; the newest ones, and figures about all of them, without reading each."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "26", "25"
is_additive = True


def upgrade() -> None:
    op.add_column("orion_runs", sa.Column("effective", sa.JSON(none_as_null=True), nullable=True))
    op.create_index("ix_orion_runs_created", "orion_runs", ["created_at"])
    is_told = sa.text("delivery != ''")
    op.create_index(
        "ix_orion_runs_delivery",
        "orion_runs",
        ["delivery"],
        sqlite_where=is_told,
        postgresql_where=is_told,
    )
