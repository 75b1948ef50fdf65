"""What a process that is there for one request learns of Slack: from the database where another one has asked."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import sqlalchemy as sa

from app.compose.slack_facts import RememberedSlack
from app.slack.api import BotIdentity, SlackUnreachable
from app.slack.connection import SlackConnection
from app.store.runs import SqlRunStore, open_store

IDENTITY = BotIdentity(team_id="T1", bot_id="B1", bot_user_id="UBOT", url="https://x.test/")


@dataclass
class Slack:
    """Counts what it is asked."""

    is_away: bool = False
    asked: list[str] = field(default_factory=list)
    members: frozenset[str] | None = frozenset({"U1"})
    known: list[BotIdentity] = field(default_factory=list)

    async def identify(self) -> BotIdentity:
        self.asked.append("identity")
        if self.is_away:
            raise SlackUnreachable("timeout")
        return IDENTITY

    def know(self, identity: BotIdentity) -> None:
        self.known.append(identity)

    async def members_of(self, group: str) -> frozenset[str] | None:
        self.asked.append(group)
        if self.is_away:
            raise ConnectionError("timeout")
        return self.members


def remembered(slack: Slack, store: SqlRunStore, app: str = "one") -> RememberedSlack:
    return RememberedSlack(cast("SlackConnection", slack), store.slack_facts, token=app, groups=1)


@asynccontextmanager
async def aged(tmp_path: Path) -> AsyncIterator[tuple[SqlRunStore, Any]]:
    """A store, and what makes all that is known in it older by some seconds."""
    async with open_store(tmp_path / "orion.db") as store:

        async def age(seconds: float) -> None:
            older = sa.text("UPDATE orion_slack_facts SET at = at - :seconds")
            await store._call(lambda it: it.execute(older, {"seconds": seconds}))

        yield store, age


async def test_who_the_bot_is_is_asked_once(tmp_path: Path) -> None:
    """For each token; a Slack that is away is asked again by the next one."""
    slack = Slack(is_away=True)
    async with aged(tmp_path) as (store, _):
        await remembered(slack, store).identify()
        slack.is_away = False
        for _ in range(3):
            await remembered(slack, store).identify()
        assert slack.asked == ["identity"] * 2
        assert slack.known == [IDENTITY] * 2
        await remembered(slack, store, "other").identify()
        assert slack.asked == ["identity"] * 3


async def test_members_are_asked_for_every_few_seconds(tmp_path: Path) -> None:
    """By all of them together; while Slack is away they are as it told last."""
    slack = Slack()
    async with aged(tmp_path) as (store, age):
        for _ in range(3):
            assert await remembered(slack, store).members_of("S1") == frozenset({"U1"})
        assert slack.asked == ["S1"]
        slack.members = frozenset({"U1", "U2"})
        await age(5)
        assert await remembered(slack, store).members_of("S1") == frozenset({"U1", "U2"})
        slack.is_away = True
        await age(60)
        assert await remembered(slack, store).members_of("S1") == frozenset({"U1", "U2"})
        assert slack.asked == ["S1"] * 3
        slack.is_away, slack.members = False, None
        assert await remembered(slack, store).members_of("S2") is None
