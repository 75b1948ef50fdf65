"""A Slack connection to the look-alike, and a run whose answer is streamed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import SecretStr

from app.playground.slack.fake_slack import FakeSlack
from app.playground.slack.types import TEAM_ID, YOU, FakeSlackConfig, Message
from app.playground.slack.web_api import Fault
from app.playground.stack import create_slack_app
from app.runs.testing import QueuePosition, Run, RunRequest, Surface, run_id_for
from app.slack.api import RetryPolicy
from app.slack.connection import SlackConnection, SlackOptions, open_slack
from app.slack.live import UpdateTiming
from app.slack.messages import own_part
from app.slack.streams import LiveAnswers
from app.web.hosting import serve
from tests.waiting import until

DM, CHANNEL = "D0YOU", "C0GENERAL"
STREAM = LiveAnswers(dm="stream", channel="stream")


@dataclass
class TurnedClock:
    """The real time, and how far it was turned."""

    by_s: float = 0.0

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self.by_s)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@dataclass
class Scene:
    fake_slack: FakeSlack
    slack: SlackConnection
    clock: TurnedClock
    options: SlackOptions

    def ask(self, *, channel: str = DM) -> Run:
        """A question in a thread of its own."""
        message = self.fake_slack.workspace.say(user=YOU, channel_ref=channel, typed="hi")
        request = RunRequest(
            run_id=run_id_for(team=TEAM_ID, channel=channel, message_ts=message.ts),
            team=TEAM_ID,
            channel=channel,
            thread_ts=message.ts,
            message_ts=message.ts,
            user=YOU,
            text="hi",
            surface=Surface.DM if channel == DM else Surface.CHANNEL,
            received_at=datetime.now(UTC),
        )
        return Run(id=request.run_id, request=request, created_at=request.received_at)

    async def place(self, run: Run, *, maybe_posted: bool = False) -> Run:
        ts = await self.slack.replies.place(
            run, position=QueuePosition(), maybe_posted=maybe_posted
        )
        assert ts is not None
        return replace(run, reply_ts=ts)

    def own(self, run: Run) -> list[Message]:
        """Orion's messages in the run's thread."""
        thread = self.fake_slack.workspace.thread(run.request.channel, run.request.thread_ts)
        return [message for message in thread if message.is_bot]

    def shown(self, run: Run) -> str:
        """All that is told in the run's one message."""
        (message,) = self.own(run)
        return str(message.blocks)

    async def until_shown(self, run: Run, words: str) -> None:
        await until(lambda: words in self.shown(run))

    def part(self, run: Run) -> tuple[str, int] | None:
        """Whose the message is, as a process that begins anew reads it."""
        (message,) = self.own(run)
        return own_part(self.fake_slack.workspace.render(message, with_metadata=True))

    def calls(self, method: str) -> list[Any]:
        return [call for call in self.fake_slack.api.calls if call["method"] == method]

    def fail(self, method: str, **fault: Any) -> None:
        self.fake_slack.faults.plan(Fault(method=method, **fault))

    @asynccontextmanager
    async def another_process(self) -> AsyncIterator["Scene"]:
        async with open_slack(self.options) as slack:
            yield replace(self, slack=slack)


@asynccontextmanager
async def open_scene(
    config: FakeSlackConfig | None = None, *, answers: LiveAnswers = STREAM
) -> AsyncIterator[Scene]:
    config = config or FakeSlackConfig(rate_limits="off", send_bot_events=False)
    app = create_slack_app(config)
    async with serve(app) as url:
        options = SlackOptions(
            bot_token=SecretStr(config.bot_token),
            base_url=f"{url}/api/",
            live=answers,
            policy=RetryPolicy(first_wait_s=0.02, max_wait_s=0.05, call_timeout_s=2),
            timing=UpdateTiming(first_after_s=0.05, interval_s=0.3, refresh_after_s=1.0),
            look_again_after_s=0.05,
        )
        fake_slack: FakeSlack = app.state.fake_slack
        clock = TurnedClock()
        fake_slack.workspace.clock = clock
        async with open_slack(options) as slack:
            yield Scene(fake_slack, slack, clock, options)
