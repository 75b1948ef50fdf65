"""What was said while nobody heard, found in a real look-alike over the real SDK, with the store that remembers what was heard."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs
from typing_extensions import override

from app.aio import open_task_group
from app.playground.slack.fake_slack import FakeSlack
from app.playground.slack.types import (
    BOT_USER_ID,
    COLLEAGUE,
    GENERAL,
    RANDOM,
    TEAM_ID,
    YOU,
    Channel,
    FakeSlackConfig,
    Message,
)
from app.playground.slack.web_api import Fault
from app.playground.stack import create_slack_app
from app.runs.testing import Intake, Revision, Run, RunId, RunRequest, Thread, run_id_for
from app.slack.api import RetryPolicy, SlackRateLimit, SlackRefusal
from app.slack.catch_up import CatchUp
from app.slack.connection import SlackConnection, SlackOptions, open_slack
from app.slack.limits import METHOD_RATES, Rate
from app.slack.listeners import create_bolt_app
from app.slack.socket_mode import open_socket_mode
from app.store.runs import SqlRunStore, open_store
from app.web.hosting import serve
from tests.building import make_request
from tests.waiting import until

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
DM = "D0YOU"
AT_ONCE = {name: Rate(burst=10_000, per_s=10_000) for name in METHOD_RATES}
METHODS = ("users.conversations", "conversations.history", "conversations.replies")


class Inbox(Intake):
    """Keeps what is handed over by run ids, as the record does; may be told to fail from the n-th on."""

    def __init__(self) -> None:
        self.requests: dict[RunId, RunRequest] = {}
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
        is_new = request.run_id not in self.requests
        self.requests.setdefault(request.run_id, request)
        return is_new

    @override
    async def revise(self, revision: Revision) -> bool:
        self.revisions.append(revision)
        return True

    @override
    def may_stop(self, user: str) -> bool:
        return user == YOU

    @override
    async def stop_thread(self, thread: Thread, *, user: str, ts: str) -> bool:
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
        ts = _ts(datetime.now(UTC) - ago)
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


def _ts(at: datetime) -> str:
    return f"{at.timestamp():.6f}"


Open = Callable[..., Any]


@pytest.fixture
def open_absence(tmp_path: Path) -> Open:
    @asynccontextmanager
    async def opened(
        *, config: FakeSlackConfig | None = None, rates: Mapping[str, Rate] = AT_ONCE
    ) -> AsyncIterator[Absence]:
        config = config or FakeSlackConfig(rate_limits="off")
        app = create_slack_app(config)
        async with (
            serve(app) as url,
            open_store(tmp_path / "orion.db") as store,
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


@pytest.fixture
async def absence(open_absence: Open) -> AsyncIterator[Absence]:
    async with open_absence() as one:
        yield one


async def test_a_first_start_answers_nothing(absence: Absence) -> None:
    """Where Orion never was, nothing was missed; from then on it is."""
    absence.say("@Orion long before", HOUR)
    await absence.connection.identify()
    absence.connection.hearing.begin()
    assert await absence.look() == (True, {})


async def test_a_start_at_once_after_another(absence: Absence) -> None:
    """Slack tells its time to the second: what is said between two starts within one is found all the same."""
    for number in range(8):
        await absence.connection.identify()
        absence.connection.hearing.begin()
        assert await absence.catch_up().look()
        absence.say(f"@Orion {number}", timedelta(0))
    await absence.connection.identify()
    absence.connection.hearing.begin()
    assert await absence.catch_up().look()
    assert absence.inbox.texts == [str(number) for number in range(8)]


async def test_before_it_hears_it_looks_for_nothing(absence: Absence) -> None:
    assert await absence.look() == (True, {})
    assert absence.calls("users.conversations") == []


async def test_all_that_is_for_orion_is_found_oldest_first(absence: Absence) -> None:
    """Mentions, direct messages, replies to what was said before and since; nothing else. Each says how late it is."""
    old = absence.say("an old talk", 30 * HOUR, user=COLLEAGUE)
    new = absence.say("@Orion one", 50 * MINUTE)
    absence.say("@Orion four", 20 * MINUTE, thread_ts=old)
    absence.say("@Orion three", 30 * MINUTE, thread_ts=new)
    absence.say("two, in private", 40 * MINUTE, channel=DM)
    absence.say("not for it", 35 * MINUTE)
    absence.say("nor this", 35 * MINUTE, thread_ts=old)
    absence.say("@Orion five", 10 * MINUTE, channel=RANDOM)
    absence.say("@Orion heard", 70 * MINUTE)
    await absence.was_there(HOUR)
    is_done, told = await absence.look()
    assert absence.inbox.texts == ["one", "two, in private", "three", "four", "five"]
    assert is_done
    assert (told["accepted"], told["left_over"], told["too_old"]) == (5, 0, 0)
    late = [round(one.late_s / 60) for one in absence.inbox.requests.values()]
    assert late == [50, 40, 30, 20, 10]
    first = next(iter(absence.inbox.requests.values()))
    assert first.run_id == run_id_for(team=TEAM_ID, channel=GENERAL, message_ts=new)
    with_it = len(absence.calls("conversations.history"))
    catch_up = absence.catch_up()
    assert await catch_up.look()
    assert await catch_up.look()  # and now it is known to be heard
    assert len(absence.inbox.requests) == 5
    assert len(absence.calls("conversations.history")) == 2 * with_it


async def test_threads_that_are_not_listed_any_more(absence: Absence) -> None:
    """The root is older than what one page of the channel shows, but Orion was asked there before."""
    root = absence.say("@Orion at first", 50 * HOUR)
    absence.recent = [_run(channel=GENERAL, thread_ts=root)]
    for number in range(210):
        absence.say(f"talk {number}", 40 * HOUR - number * MINUTE / 10)
    absence.say("@Orion and now?", 5 * MINUTE, thread_ts=root)
    await absence.was_there(HOUR)
    await absence.look()
    assert absence.inbox.texts == ["and now?"]


def _run(**place: str) -> Run:
    request = make_request().model_copy(update=place)
    return Run(id=request.run_id, request=request, created_at=datetime.now(UTC))


@pytest.mark.parametrize("away", [10 * MINUTE, HOUR, 24 * HOUR], ids=["10 min", "1 h", "24 h"])
async def test_a_hundred_messages(absence: Absence, away: timedelta) -> None:
    """In two channels, a private place and threads: each once, in the order in which they were said."""
    step = (away - MINUTE) / 100
    roots: list[str] = []
    for number in range(100):
        ago = away - MINUTE / 2 - number * step
        if number % 4 == 3:
            absence.say(f"@Orion {number}", ago, thread_ts=roots[0])
        else:
            place = (GENERAL, RANDOM, DM)[number % 4]
            ts = absence.say(f"@Orion {number}", ago, channel=place)
            roots += [ts] if place == GENERAL else []
    await absence.was_there(away)
    is_done, told = await absence.look()
    assert is_done
    assert absence.inbox.texts == [str(number) for number in range(100)]
    assert told["accepted"] == 100
    await absence.catch_up().look()
    assert len(absence.inbox.requests) == 100


async def test_what_is_older_than_people_wait_for_is_counted(absence: Absence) -> None:
    absence.say("@Orion the day before yesterday", 40 * HOUR)
    absence.say("stop", 39 * HOUR, channel=DM)
    absence.say("@Orion yesterday", 23 * HOUR)
    await absence.was_there(48 * HOUR)
    is_done, told = await absence.look()
    assert is_done
    assert absence.inbox.texts == ["yesterday"]
    assert (told["too_old"], absence.inbox.stops) == (1, [])


async def test_only_orions_own_answer_counts(absence: Absence) -> None:
    """By the record, or in the thread where the record is gone; a colleague's answer, or one to another message, is none."""
    known = absence.say("@Orion on record", 50 * MINUTE)
    absence.inbox.requests[run_id_for(team=TEAM_ID, channel=GENERAL, message_ts=known)] = (
        make_request()
    )
    answered = absence.say("@Orion answered", 40 * MINUTE)
    absence.say("@Orion again?", 30 * MINUTE, thread_ts=answered)
    helped = absence.say("@Orion helped", 20 * MINUTE)
    absence.say("I know that", 15 * MINUTE, user=COLLEAGUE, thread_ts=helped)
    absence.answered(answered)
    await absence.was_there(HOUR)
    _, told = await absence.look()
    assert absence.inbox.texts[1:] == ["again?", "helped"]
    assert (told["accepted"], told["known"]) == (2, 2)


async def test_messages_are_taken_as_they_are_now(absence: Absence) -> None:
    """Edited ones as they read, also one that was heard before and may still wait; deleted ones, with replies or not, are gone."""
    workspace = absence.slack.workspace
    said = {text: absence.say(f"@Orion {text}", HOUR / 2) for text in ("edit", "delete", "bury")}
    heard = absence.say("@Orion heard", 40 * MINUTE)
    absence.say("a reply", 20 * MINUTE, thread_ts=said["bury"])
    workspace.retype(workspace.message(GENERAL, said["edit"]), "@Orion edited")
    workspace.retype(workspace.message(GENERAL, heard), "@Orion heard, edited")
    for text in ("delete", "bury"):
        workspace.delete(workspace.message(GENERAL, said[text]), by=YOU)
    run_id = run_id_for(team=TEAM_ID, channel=GENERAL, message_ts=heard)
    absence.inbox.requests[run_id] = make_request()
    await absence.was_there(HOUR)
    await absence.look()
    assert absence.inbox.texts[1:] == ["edited"]
    assert [(one.run_id, one.text) for one in absence.inbox.revisions] == [
        (run_id, "heard, edited")
    ]


async def test_a_stop_withdraws_what_was_asked_before_it(absence: Absence) -> None:
    """Of its thread, and in a direct message of all; from somebody whose stop counts. What is going is told to stop."""
    root = absence.say("@Orion one", 50 * MINUTE)
    absence.say("@Orion two", 45 * MINUTE, thread_ts=root)
    stop = absence.say("stop", 40 * MINUTE, thread_ts=root)
    absence.say("@Orion three", 35 * MINUTE, thread_ts=root)
    other = absence.say("@Orion other", 50 * MINUTE)
    theirs = absence.say("stop", 40 * MINUTE, thread_ts=other, user=COLLEAGUE)
    absence.say("four", 30 * MINUTE, channel=DM)
    private = absence.say("stop", 25 * MINUTE, channel=DM)
    absence.say("five", 20 * MINUTE, channel=DM)
    await absence.was_there(HOUR)
    _, told = await absence.look()
    assert absence.inbox.texts == ["other", "three", "five"]
    assert told["withdrawn"] == 3
    assert sorted(absence.inbox.stops) == sorted([stop, theirs, private])


@pytest.mark.parametrize("after", [0, 1, 7, 29])
async def test_what_is_broken_off_goes_on(absence: Absence, after: int) -> None:
    """Whatever is durable by then stays; the next process finds the rest, and nothing twice."""
    for number in range(30):
        place = (GENERAL, RANDOM, DM)[number % 3]
        absence.say(f"@Orion {number}", HOUR / 2 - number * timedelta(seconds=30), channel=place)
    await absence.was_there(HOUR)
    absence.inbox.fails_after = after
    with pytest.raises(OSError, match="killed"):
        await absence.look()
    absence.inbox.fails_after = None
    absence.connection.hearing.begin()
    is_done, told = await absence.look()
    assert is_done
    assert absence.inbox.texts == [str(number) for number in range(30)]
    assert (told["accepted"], told["known"]) == (30 - after, after)


async def test_a_message_that_is_not_understood_keeps_no_other_back(absence: Absence) -> None:
    absence.say("@Orion bad", 20 * MINUTE)
    absence.say("@Orion good", 10 * MINUTE)
    absence.inbox.bug_in = "bad"
    await absence.was_there(HOUR)
    is_done, told = await absence.look()
    assert (is_done, absence.inbox.texts, told["failed"]) == (True, ["good"], 1)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "fault",
    [{"status": 429, "retry_after": 1}, {"status": 503}, {"drop_before_accept": True}],
    ids=["429", "503", "cut"],
)
async def test_each_method_may_fail(
    absence: Absence, method: str, fault: Mapping[str, Any]
) -> None:
    """Slack wants to be left alone for a while, or is not there: the same call is made again."""
    root = absence.say("@Orion one", 20 * MINUTE)
    absence.say("@Orion two", 10 * MINUTE, thread_ts=root)
    await absence.was_there(HOUR)
    absence.fail(method, times=2, **fault)
    is_done, _ = await absence.look()
    assert (is_done, absence.inbox.texts) == (True, ["one", "two"])


@pytest.mark.parametrize("method", METHODS)
async def test_a_slack_that_stays_away_loses_nothing(absence: Absence, method: str) -> None:
    """The round is given up, and the next one does what is left."""
    root = absence.say("@Orion one", 20 * MINUTE)
    absence.say("@Orion two", 10 * MINUTE, thread_ts=root)
    await absence.was_there(HOUR)
    absence.fail(method, times=100, error="token_revoked")
    with pytest.raises(SlackRefusal, match="token_revoked"):
        await absence.look()
    absence.slack.faults.clear()
    is_done, _ = await absence.look()
    assert (is_done, absence.inbox.texts) == (True, ["one", "two"])


async def test_without_the_scope_for_direct_messages_known_ones_are_read(
    open_absence: Open,
) -> None:
    """As with a manifest of before: it is said once, and the rest goes on."""
    whole = FakeSlackConfig().scopes
    config = FakeSlackConfig(rate_limits="off", scopes=whole - {"im:read", "mpim:read"})
    async with open_absence(config=config) as absence:
        absence.say("one", 20 * MINUTE, channel=DM)
        absence.say("@Orion two", 10 * MINUTE)
        absence.recent = [_run(channel=DM, thread_ts="1.000000")]
        await absence.was_there(HOUR)
        with capture_logs() as logged:
            catch_up = absence.catch_up()
            assert await catch_up.look()
            absence.connection.hearing.begin()
            await catch_up.look()
    assert absence.inbox.texts == ["one", "two"]
    limited = [line for line in logged if line["event"] == "catch_up.limited"]
    assert [line["places"] for line in limited] == ["im", "mpim"]
    assert absence.connection.scopes == config.scopes


@pytest.mark.parametrize(
    "word", ["not_in_channel", "channel_not_found", "missing_scope", "is_archived"]
)
async def test_a_place_that_cannot_be_read_keeps_no_other_back(absence: Absence, word: str) -> None:
    """The bot was taken out, or the channel archived, since it was listed."""
    absence.say("@Orion one", 20 * MINUTE)
    absence.say("@Orion two", 20 * MINUTE, channel=RANDOM)
    absence.say("three", 10 * MINUTE, channel=DM)
    await absence.was_there(HOUR)
    absence.fail("conversations.history", error=word, skip=4)  # those of the direct messages first
    is_done, told = await absence.look()
    assert (is_done, told["refused"]) == (True, 1)
    assert len(absence.inbox.texts) == 2


async def test_an_archived_channel_is_not_looked_at(absence: Absence) -> None:
    absence.say("@Orion one", 20 * MINUTE)
    absence.slack.workspace.channels[GENERAL].is_archived = True
    await absence.was_there(HOUR)
    assert (await absence.look())[0]
    assert absence.inbox.texts == []


async def test_pages(absence: Absence) -> None:
    """Of a channel and of a thread: what is on the last of them is found too."""
    root = absence.say("@Orion first", 55 * MINUTE)
    for number in range(450):
        absence.say(f"talk {number}", 50 * MINUTE - number * timedelta(seconds=1))
        absence.say(f"reply {number}", 50 * MINUTE - number * timedelta(seconds=1), thread_ts=root)
    absence.say("@Orion last", 10 * MINUTE, thread_ts=root)
    await absence.was_there(HOUR)
    is_done, told = await absence.look()
    assert (is_done, absence.inbox.texts, told["cut"]) == (True, ["first", "last"], 0)
    assert len(absence.calls("conversations.replies")) == 3


async def test_what_is_too_much_is_told(absence: Absence) -> None:
    """More than 2,000 messages in one place: the newest are read, and the log says that there are more."""
    absence.say("@Orion buried", 59 * MINUTE)
    workspace = absence.slack.workspace
    for number in range(2_050):
        ts = _ts(datetime.now(UTC) - 50 * MINUTE + number * timedelta(seconds=1))
        workspace.messages[GENERAL][ts] = Message(ts=ts, channel=GENERAL, user=YOU, text="talk")
    absence.say("@Orion seen", MINUTE)
    await absence.was_there(HOUR)
    is_done, told = await absence.look()
    assert (is_done, absence.inbox.texts, told["cut"]) == (True, ["seen"], 1)


async def test_a_thousand_channels(absence: Absence) -> None:
    """All are looked through; where people spoke with Orion last, first."""
    workspace = absence.slack.workspace
    for number in range(1_000):
        channel = Channel(id=f"C{number:04}", name=f"c{number}", members={YOU, BOT_USER_ID})
        workspace.channels[channel.id], workspace.messages[channel.id] = channel, {}
    for number in (3, 700, 999):
        absence.say(f"@Orion {number}", 10 * MINUTE, channel=f"C{number:04}")
    absence.recent = [_run(channel="C0999", thread_ts="1.000000")]
    await absence.was_there(HOUR)
    is_done, told = await absence.look()
    assert is_done
    assert sorted(absence.inbox.texts) == ["3", "700", "999"]
    assert told["places"] == 1_006
    assert absence.calls("conversations.history")[0] == "C0999"


async def test_a_round_is_bounded_and_the_next_goes_on(absence: Absence) -> None:
    """What was read and accepted is not read again; what is left is counted."""
    absence.say("@Orion one", 20 * MINUTE)
    absence.say("@Orion two", 10 * MINUTE, channel=RANDOM)
    absence.recent = [_run(channel=GENERAL, thread_ts="1.000000")]
    await absence.was_there(HOUR)
    absence.fail("conversations.history", skip=1, delay_s=3.0)
    is_done, told = await absence.look(limit_s=1.0)
    assert not is_done
    assert told["left_over"] == 6
    is_done, told = await absence.look()
    assert is_done
    assert sorted(absence.inbox.texts) == ["one", "two"]


async def test_an_app_that_is_given_little_takes_what_there_is(open_absence: Open) -> None:
    """Fifteen messages a page: it is told once, and all pages are read."""
    config = FakeSlackConfig(rate_limits="off", is_distributed=True)
    async with open_absence(config=config) as absence:
        for number in range(40):
            absence.say(f"@Orion {number}", 50 * MINUTE - number * timedelta(seconds=1))
        await absence.was_there(HOUR)
        with capture_logs() as logged:
            assert await absence.catch_up().look()
    assert absence.inbox.texts == [str(number) for number in range(40)]
    limited = [line["error"] for line in logged if line["event"] == "catch_up.limited"]
    assert limited == ["small_pages"]


async def test_slack_gives_such_an_app_one_page_a_minute(open_absence: Open) -> None:
    """The look-alike refuses the second call as Slack does."""
    async with open_absence(config=FakeSlackConfig(is_distributed=True)) as absence:
        read = partial(
            absence.connection._api.once,
            "conversations.history",
            {"channel": GENERAL},
            verb="GET",
        )
        await read()
        with pytest.raises(SlackRateLimit) as refused:
            await read()
        assert refused.value.retry_after_s == 30  # of sixty; longer pauses are cut


async def test_a_live_call_never_waits_for_it(open_absence: Open) -> None:
    """Of what Slack allows it leaves a reserve, at each moment."""
    rates = {**AT_ONCE, "conversations.replies": Rate(burst=4, per_s=8, reserve=2)}
    async with open_absence(rates=rates) as absence:
        for number in range(12):
            root = absence.say(f"talk {number}", HOUR / 2)
            absence.say("@Orion there", HOUR / 3, thread_ts=root)
        await absence.was_there(HOUR)
        limits, waits_s = absence.connection._api.limits, []

        def is_over() -> bool:
            waits_s.append(limits.line_s("conversations.replies"))
            return look.done()

        async with open_task_group() as group:
            look = group.create_task(absence.catch_up().look())
            await until(is_over)
            assert look.result()
    assert len(absence.inbox.texts) == 12
    assert max(waits_s) == 0


@pytest.mark.postgresql
async def test_one_process_at_a_time(absence: Absence, postgres_url: str) -> None:
    """While one catches up the others do not; when it has failed, they do."""
    absence.say("@Orion one", 20 * MINUTE)
    async with open_store(postgres_url) as one, open_store(postgres_url) as other:
        await one.leases.join()
        await other.leases.join()
        ago = datetime.now(UTC) - HOUR
        assert await one.heard.begin(ago)
        await absence.connection.identify()
        absence.connection.hearing.begin()
        assert await one.heard.claim() == {"": ago}
        assert not await absence.catch_up(other).look()
        assert absence.inbox.texts == []
        absence.fail("users.conversations", times=9, error="token_revoked")
        with pytest.raises(SlackRefusal):
            await absence.catch_up(one).look()
        absence.slack.faults.clear()
        assert await absence.catch_up(other).look()  # though the first one lives
        assert absence.inbox.texts == ["one"]


@pytest.mark.parametrize("how", ["closed", "deaf"])
async def test_a_socket_that_looked_alive(open_absence: Open, how: str) -> None:
    """It answers pings and delivers nothing, or it is closed by Slack: a hundred messages meanwhile are found over the next one, once."""
    async with open_absence() as absence:
        await absence.was_there(timedelta(0))
        hearing, hub = absence.connection.hearing, absence.slack.sockets
        bolt = create_bolt_app(
            bot_token="xoxb-1",
            base_url=absence.url,
            identity=absence.connection.identity,
            intake=absence.inbox,
            hearing=hearing,
        )
        token = absence.slack.config.app_token
        socket = open_socket_mode(
            bolt, app_token=token, base_url=absence.url, quiet_after_s=2.0, hearing=hearing
        )
        async with open_task_group() as group, socket:
            looks = group.create_task(absence.catch_up().run_forever())
            await until(lambda: len(absence.calls("conversations.history")) >= 6)  # at the start
            await until(lambda: hub.count == 1 and hearing.silent_s < 1.0)
            assert hub.deafen() == 1
            with absence.slack_does_not_tell():
                for number in range(100):
                    absence.say(
                        f"@Orion {number}", timedelta(0), channel=(GENERAL, RANDOM)[number % 2]
                    )
            if how == "closed":
                await hub.disconnect("refresh_requested")
            await until(lambda: len(absence.inbox.requests) == 100)
            absence.say("@Orion at last", timedelta(0))
            await until(lambda: len(absence.inbox.requests) == 101)
            looks.cancel()
        assert sorted(map(int, absence.inbox.texts[:100])) == list(range(100))
        assert absence.inbox.texts[100] == "at last"
        assert all(one.late_s for one in list(absence.inbox.requests.values())[:100])
