"""An Orion that was away, and what people said meanwhile, in a real look-alike over the real SDK."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pydantic import SecretStr
from structlog.testing import capture_logs
from typing_extensions import override

from app.playground.slack.fake_slack import FakeSlack
from app.playground.slack.types import (
    BOT_USER_ID,
    GENERAL,
    TEAM_ID,
    YOU,
    FakeSlackConfig,
    Message,
)
from app.playground.slack.web_api import Fault
from app.playground.stack import create_slack_app
from app.runs.testing import Intake, Revision, Run, RunId, RunRequest, Thread, run_id_for
from app.slack.api import RetryPolicy
from app.slack.catch_up import CatchUp
from app.slack.connection import SlackConnection, SlackOptions, open_slack
from app.slack.limits import METHOD_RATES, Rate
from app.store.runs import SqlRunStore, open_store
from app.web.hosting import serve
from tests.building import make_request

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
DM = "D0YOU"
AT_ONCE = {name: Rate(burst=10_000, per_s=10_000) for name in METHOD_RATES}
METHODS = ("users.conversations", "conversations.history", "conversations.replies")


class Inbox(Intake):
    """Keeps what is handed over by run ids, as the record does; may be told to fail from the n-th on."""

    def __init__(self) -> None:
        self.requests: dict[RunId, RunRequest] = {}
        self.threads: set[str] = set()
        """The roots of those that it is at."""
        self.stops: list[str] = []
        self.revisions: list[Revision] = []
        self.fails_after: int | None = None
        self.bug_in = ""

    @property
    def texts(self) -> list[str]:
        return [request.text for request in self.requests.values()]

    @override
    async def accept(self, request: RunRequest) -> bool:
        if self.fails_after is not None and len(self.requests) >= self.fails_after:
            raise OSError("killed")
        if self.bug_in and self.bug_in in request.text:
            raise ValueError(self.bug_in)
        if request.is_candidate and request.thread_ts not in self.threads:
            return False
        is_new = request.run_id not in self.requests
        self.requests.setdefault(request.run_id, request)
        return is_new

    @override
    async def revise(self, revision: Revision) -> bool:
        self.revisions.append(revision)
        return True

    @override
    def may_stop(self, user: str, *, is_external: bool = False) -> bool:
        return user == YOU and not is_external

    @override
    async def stop_thread(
        self, thread: Thread, *, user: str, ts: str, is_external: bool = False
    ) -> bool:
        self.stops.append(ts)
        return False

    @override
    async def stop_channel(self, team: str, channel: str, *, user: str, ts: str) -> bool:
        self.stops.append(ts)
        return False


@dataclass(kw_only=True)
class Absence:
    """An Orion that was last there `away` ago, and what people can have said since."""

    url: str
    slack: FakeSlack
    connection: SlackConnection
    store: SqlRunStore
    inbox: Inbox = field(default_factory=Inbox)
    recent: list[Run] = field(default_factory=list)
    window: timedelta = 24 * HOUR

    def say(
        self,
        text: str,
        ago: timedelta,
        *,
        channel: str = GENERAL,
        user: str = YOU,
        thread_ts: str | None = None,
    ) -> str:
        ts = ts_of(datetime.now(UTC) - ago)
        workspace = self.slack.workspace
        said = workspace.say(user=user, channel_ref=channel, typed=text, thread_ts=thread_ts, ts=ts)
        return said.ts

    def answered(self, ts: str, *, channel: str = GENERAL, run_of: str | None = None) -> None:
        """Orion's own message stands in the thread, for this or another message of it."""
        run_id = run_id_for(team=TEAM_ID, channel=channel, message_ts=run_of or ts)
        payload = {"run_id": run_id, "part": 0}
        message = Message(
            ts="",
            channel=channel,
            user=BOT_USER_ID,
            text="So it is.",
            thread_ts=ts,
            metadata={"event_type": "orion_run", "event_payload": payload},
        )
        self.slack.workspace.post(self.slack.workspace.channel(channel), message)

    async def was_there(self, ago: timedelta) -> None:
        """It heard everything until then, and is back."""
        heard = datetime.now(UTC) - ago
        assert await self.store.heard.begin(heard)
        await self.connection.identify()  # tells Slack's clock
        self.connection.hearing.begin()

    def catch_up(self, store: SqlRunStore | None = None) -> CatchUp:
        async def recent() -> list[Run]:
            return self.recent

        return self.connection.catch_up(
            self.inbox,
            store=(store or self.store).heard,
            recent=recent,
            window=self.window,
            allowed_bots=(),
        )

    async def look(self, **options: Any) -> tuple[bool, Mapping[str, Any]]:
        """Whether it is done, and what the log says of the round."""
        with capture_logs() as logged:
            is_done = await self.catch_up().look(**options)
        rounds = [line for line in logged if line["event"] == "catch_up.finished"]
        return is_done, rounds[0] if rounds else {}

    @contextmanager
    def slack_does_not_tell(self) -> Iterator[None]:
        """Of what is said meanwhile, not even later."""
        self.slack.faults.outage = True
        yield
        self.slack.faults.outage = False

    def fail(self, method: str, **fault: Any) -> None:
        self.slack.faults.plan(Fault(method=method, **fault))

    def calls(self, method: str) -> list[str]:
        return [call["channel"] for call in self.slack.api.calls if call["method"] == method]


def ts_of(at: datetime) -> str:
    return f"{at.timestamp():.6f}"


Open = Callable[..., Any]


def open_absences(database: Path) -> Open:
    @asynccontextmanager
    async def opened(
        *, config: FakeSlackConfig | None = None, rates: Mapping[str, Rate] = AT_ONCE
    ) -> AsyncIterator[Absence]:
        config = config or FakeSlackConfig(rate_limits="off")
        app = create_slack_app(config)
        async with (
            serve(app) as url,
            open_store(database) as store,
            open_slack(
                SlackOptions(
                    bot_token=SecretStr(config.bot_token),
                    base_url=f"{url}/api/",
                    policy=RetryPolicy(first_wait_s=0.02, max_wait_s=0.05),
                    rates=rates,
                )
            ) as connection,
        ):
            await store.leases.join()
            yield Absence(
                url=f"{url}/api/",
                slack=app.state.fake_slack,
                connection=connection,
                store=store,
            )

    return opened


def run_of(**place: str) -> Run:
    request = make_request().model_copy(update=place)
    return Run(id=request.run_id, request=request, created_at=datetime.now(UTC))
