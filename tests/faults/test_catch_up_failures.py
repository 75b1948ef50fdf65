"""What was said while nobody heard, where Slack, the database or this process fail meanwhile, and where there is too much of it."""

from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from app.aio import open_task_group
from app.playground.slack.types import (
    BOT_USER_ID,
    GENERAL,
    RANDOM,
    YOU,
    Channel,
    FakeSlackConfig,
    Message,
)
from app.slack.api import SlackFault, SlackRateLimit, SlackRefusal
from app.slack.limits import Rate
from app.slack.listeners import create_bolt_app
from app.slack.socket_mode import open_socket_mode
from app.store.runs import open_store
from tests.faults.absence import (
    AT_ONCE,
    DM,
    HOUR,
    METHODS,
    MINUTE,
    Absence,
    Open,
    open_absences,
    run_of,
    ts_of,
)
from tests.waiting import until


@pytest.fixture
def open_absence(tmp_path: Path) -> Open:
    return open_absences(tmp_path / "orion.db")


@pytest.fixture
async def absence(open_absence: Open) -> AsyncIterator[Absence]:
    async with open_absence() as one:
        yield one


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
    """As with a manifest of before, of which the start has told: the rest goes on."""
    whole = FakeSlackConfig().scopes
    config = FakeSlackConfig(rate_limits="off", scopes=whole - {"im:read", "mpim:read"})
    async with open_absence(config=config) as absence:
        absence.say("one", 20 * MINUTE, channel=DM)
        absence.say("@Orion two", 10 * MINUTE)
        absence.recent = [run_of(channel=DM, thread_ts="1.000000")]
        await absence.was_there(HOUR)
        with capture_logs() as logged:
            catch_up = absence.catch_up()
            assert await catch_up.look()
            absence.connection.hearing.begin()
            await catch_up.look()
    assert absence.inbox.texts == ["one", "two"]
    assert not [line for line in logged if line["event"] == "catch_up.limited"]
    assert absence.connection.scopes == config.scopes


@pytest.mark.parametrize(
    "word",
    ["not_in_channel", "channel_not_found", "missing_scope", "is_archived", "a_word_of_tomorrow"],
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


@pytest.mark.parametrize("method", ["conversations.history", "conversations.replies"])
async def test_a_refusal_on_the_way_costs_what_comes_after_it(
    absence: Absence, method: str
) -> None:
    """What was read counts: it is not read again."""
    for number in range(250):
        absence.say(f"@Orion {number}", 50 * MINUTE - number * timedelta(seconds=1))
    root = absence.say("talk", 40 * MINUTE)
    absence.say("@Orion there", 30 * MINUTE, thread_ts=root)
    await absence.was_there(HOUR)
    absence.recent = [run_of(channel=GENERAL, thread_ts="1.000000")]
    absence.fail(method, skip=int(method == "conversations.history"), error="invalid_cursor")
    is_done, told = await absence.look()
    assert (is_done, told["cut"], told["refused"]) == (True, 1, 0)
    assert "249" in absence.inbox.texts


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
        ts = ts_of(datetime.now(UTC) - 50 * MINUTE + number * timedelta(seconds=1))
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
    absence.recent = [run_of(channel="C0999", thread_ts="1.000000")]
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
    absence.recent = [run_of(channel=GENERAL, thread_ts="1.000000")]
    await absence.was_there(HOUR)
    absence.fail("conversations.history", skip=1, delay_s=3.0)
    is_done, told = await absence.look(limit_s=1.0)
    assert not is_done
    assert told["left_over"] == 6
    is_done, told = await absence.look()
    assert is_done
    assert sorted(absence.inbox.texts) == ["one", "two"]


async def test_a_place_that_takes_too_long_is_cut(absence: Absence) -> None:
    """It is over with its round: else the next one would begin with it again, for ever."""
    for number in range(400):
        absence.say(f"@Orion {number}", 50 * MINUTE - number * timedelta(seconds=1))
    absence.say("@Orion there", 10 * MINUTE, channel=RANDOM)
    absence.recent = [run_of(channel=GENERAL, thread_ts="1.000000")]
    await absence.was_there(HOUR)
    absence.fail("conversations.history", delay_s=2.2)
    is_done, told = await absence.look(limit_s=4.0)
    assert (is_done, told["cut"], told["left_over"]) == (True, 1, 0)
    assert absence.inbox.texts == [str(number) for number in range(200, 400)] + ["there"]


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
        assert refused.value.retry_after_s == 60


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


async def test_what_was_sent_to_this_process_alone(absence: Absence) -> None:
    """Slack sends each event over one of several sockets: another process's, which heard all of its own, says nothing of a deaf one's."""
    await absence.was_there(HOUR)
    catch_up = absence.catch_up()
    assert await catch_up.look()
    assert await catch_up.look()
    absence.say("@Orion one", MINUTE)
    await absence.store.heard.advance(datetime.now(UTC) + MINUTE)
    absence.connection.hearing.begin()
    assert await catch_up.look()
    assert absence.inbox.texts == ["one"]


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


async def test_what_is_said_while_slack_is_down(absence: Absence) -> None:
    """Slack does not tell it afterwards, by whichever way it comes: found once Slack answers again, and only then is it taken for heard."""
    await absence.was_there(MINUTE)
    catch_up = absence.catch_up()
    assert await catch_up.look()
    absence.say("@Orion meanwhile", timedelta(0))
    with absence.slack_does_not_tell():
        for _ in range(2):
            with pytest.raises(SlackFault):
                await catch_up.look()
    assert absence.inbox.texts == []
    assert await catch_up.look()
    assert absence.inbox.texts == ["meanwhile"]
    pages = len(absence.calls("conversations.history"))
    assert await catch_up.look()
    assert len(absence.calls("conversations.history")) == pages
