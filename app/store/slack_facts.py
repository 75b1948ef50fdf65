"""What Slack has told one process, for those that are there for one request only."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from app.store.engine import Database
from app.store.tables import Now, insert_for, slack_facts


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackFact:
    value: Any
    """As JSON has it."""
    age_s: float
    """Seconds since Slack told it, by the database's clock."""


class SqlSlackFacts:
    """`SqlRunStore.slack_facts` is one. Raises OSError where the database does not answer."""

    def __init__(self, database: Database) -> None:
        self._call = database.call

    async def load(self) -> Mapping[str, SlackFact]:
        """Returns all that is known, by names."""
        age_s = sa.type_coerce(Now(), sa.Double) - sa.type_coerce(slack_facts.c.at, sa.Double)
        query = sa.select(slack_facts.c.name, slack_facts.c.value, age_s.label("age_s"))
        rows = await self._call(lambda connection: connection.execute(query).all())
        return {row.name: SlackFact(value=row.value, age_s=row.age_s) for row in rows}

    async def keep(self, name: str, value: Any) -> None:  # noqa: ANN401 - any JSON
        """Keeps it as told now, in place of what was told before."""
        told = {"value": value, "at": Now()}

        def work(connection: sa.Connection) -> None:
            insert = insert_for(connection, slack_facts).values(name=name, **told)
            connection.execute(insert.on_conflict_do_update(index_elements=["name"], set_=told))

        await self._call(work)
