"""From which version on an Orion may work on the tables: those that only add something leave it as it is.

A migration says that of itself by a line `is_additive = True`.
"""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "13", "12"


def upgrade() -> None:
    op.add_column("orion_schema", sa.Column("oldest", sa.Integer, nullable=True))
