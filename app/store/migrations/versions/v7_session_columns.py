"""What a session kept in one column of JSON has columns of its own; a run counts the edits of its message."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "7", "6"

_TEXTS = ("detached", "base_branch", "chosen_model", "heard_until")


def upgrade() -> None:
    revisions = sa.Column("revision", sa.BigInteger, nullable=False, server_default="0")
    op.add_column("orion_runs", revisions)
    for name in _TEXTS:
        text = sa.Column(name, sa.Text, nullable=False, server_default="")
        op.add_column("orion_sessions", text)
    elsewhere = sa.Column("elsewhere", sa.JSON, nullable=False, server_default="{}")
    op.add_column("orion_sessions", elsewhere)
    _move_values(op.get_bind())
    op.drop_column("orion_sessions", "extra")
    op.drop_column("orion_sessions", "volume_slug")  # nobody ever wrote it


def _move_values(connection: sa.Connection) -> None:
    sessions = sa.table(
        "orion_sessions",
        sa.column("id"),
        sa.column("agent_session_id"),
        sa.column("extra", sa.JSON),
        sa.column("elsewhere", sa.JSON),
        *map(sa.column, _TEXTS),
    )
    query = sa.select(sessions.c.id, sessions.c.agent_session_id, sessions.c.extra)
    for session_id, agent_session_id, extra in connection.execute(query).all():
        heard = extra.get("heard", {})
        values = {
            "elsewhere": extra.get("elsewhere", {}),
            "detached": extra.get("detached", ""),
            "base_branch": extra.get("base_branch", ""),
            "chosen_model": extra.get("chosen_model", ""),
            # Of another memory than the one that is kept it says nothing.
            "heard_until": heard["until"] if heard.get("session") == agent_session_id else "",
        }
        update = sa.update(sessions).where(sessions.c.id == session_id)
        connection.execute(update.values(values))
