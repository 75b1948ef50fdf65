"""What a process that is there for one request need not ask Slack, as another one has: who the bot is, who is in a user group."""

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Final

from app.compose.permissions import ASK_S
from app.log import get_logger
from app.slack.api import BotIdentity, SlackFault
from app.slack.connection import SlackConnection
from app.store.slack_facts import SlackFact, SqlSlackFacts

IDENTIFY_S: Final = 1.5
"""For Slack's answer who the bot is: an event is to be acknowledged within three."""
_log = get_logger(__name__)


class RememberedSlack:
    """Asks Slack what the database does not know, for a process that is there for one request."""

    def __init__(
        self, slack: SlackConnection, facts: SqlSlackFacts, *, token: str, groups: int
    ) -> None:
        """`token`: the bot's. `groups`: how many user groups rules name, which share what Slack lets be asked."""
        self._slack = slack
        self._facts = facts
        self._identity = f"identity {hashlib.sha256(token.encode()).hexdigest()[:16]}"
        self._keep_s = ASK_S * max(1, groups)
        self._loaded: Mapping[str, SlackFact] | None = None

    async def identify(self) -> None:
        """Lets the connection know who the bot is. Where neither the database nor Slack says, it does without."""
        try:
            fact = (await self._load()).get(self._identity)
            if fact is not None:
                self._slack.know(BotIdentity(**fact.value))
                return
            async with asyncio.timeout(IDENTIFY_S):
                identity = await self._slack.identify()
            await self._facts.keep(self._identity, asdict(identity))
        except (SlackFault, OSError, TypeError) as exc:
            _log.warning("slack.identify_failed", reason=str(exc) or type(exc).__name__)

    async def members_of(self, group: str) -> frozenset[str] | None:
        """Does what `SlackConnection.members_of` does; where Slack does not answer, by what it told last."""
        name = f"group {group}"
        try:
            fact = (await self._load()).get(name)
        except OSError as exc:
            raise ConnectionError(str(exc)) from exc
        if fact is not None and fact.age_s < self._keep_s:
            return frozenset(fact.value)
        try:
            members = await self._slack.members_of(group)
        except ConnectionError:
            if fact is None:
                raise
            return frozenset(fact.value)
        if members is not None:
            await self._facts.keep(name, sorted(members))
        return members

    async def _load(self) -> Mapping[str, SlackFact]:
        if self._loaded is None:
            self._loaded = await self._facts.load()
        return self._loaded
