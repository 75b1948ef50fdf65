"""Where people link accounts, of a real connection."""

import asyncio

from app.accounts.links import Waiting
from app.accounts.records import Owner
from app.slack.connection import SlackOptions, open_slack
from app.store.accounts import MemoryAccountStore
from app.store.audit import MemoryAuditLog
from tests.unit.accounts.test_links import NOW, FakeLogin


async def test_a_connection_that_ends_waits_for_nobody_to_type(slack_options: SlackOptions) -> None:
    """Though the code would be good for a quarter of an hour."""
    login = FakeLogin([Waiting(interval_s=600)])
    async with asyncio.timeout(5), open_slack(slack_options) as slack:
        links = slack.account_links(
            MemoryAccountStore(), [login], audit=MemoryAuditLog(), now=lambda: NOW
        )
        owner = Owner(team="T1", person="U1")
        assert "CODE-1" in await links.begin(owner, "", channel="C1")
