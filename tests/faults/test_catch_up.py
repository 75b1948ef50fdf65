"""What was said while nobody heard, found in a real look-alike over the real SDK, with the store that remembers what was heard."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from app.playground.slack.types import (
    COLLEAGUE,
    GENERAL,
    RANDOM,
    TEAM_ID,
    YOU,
)
from app.runs.testing import run_id_for
from tests.building import make_request
from tests.faults.absence import DM, HOUR, MINUTE, Absence, Open, open_absences, run_of


@pytest.fixture
def open_absence(tmp_path: Path) -> Open:
    return open_absences(tmp_path / "orion.db")


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
    absence.inbox.threads = {new}
    absence.say("and without a mention", 25 * MINUTE, thread_ts=new)
    absence.say("@Orion five", 10 * MINUTE, channel=RANDOM)
    absence.say("@Orion heard", 70 * MINUTE)
    await absence.was_there(HOUR)
    is_done, told = await absence.look()
    assert absence.inbox.texts == [
        *("one", "two, in private", "three", "and without a mention", "four", "five")
    ]
    assert is_done
    figures = [told[name] for name in ("accepted", "known", "left_over", "too_old")]
    assert figures == [6, 0, 0, 0]
    late = [round(one.late_s / 60) for one in absence.inbox.requests.values()]
    assert late == [50, 40, 30, 25, 20, 10]
    received = [one.received_at for one in absence.inbox.requests.values()]
    assert received == sorted(set(received))
    first = next(iter(absence.inbox.requests.values()))
    assert first.run_id == run_id_for(team=TEAM_ID, channel=GENERAL, message_ts=new)
    with_it = len(absence.calls("conversations.history"))
    catch_up = absence.catch_up()
    assert await catch_up.look()
    assert await catch_up.look()  # and now it is known to be heard
    assert len(absence.inbox.requests) == 6
    assert len(absence.calls("conversations.history")) == 2 * with_it


async def test_threads_that_are_not_listed_any_more(absence: Absence) -> None:
    """The root is older than what one page of the channel shows, but Orion was asked there before."""
    root = absence.say("@Orion at first", 50 * HOUR)
    absence.recent = [run_of(channel=GENERAL, thread_ts=root)]
    for number in range(210):
        absence.say(f"talk {number}", 40 * HOUR - number * MINUTE / 10)
    absence.say("@Orion and now?", 5 * MINUTE, thread_ts=root)
    await absence.was_there(HOUR)
    await absence.look()
    assert absence.inbox.texts == ["and now?"]


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
    ids = [run_id_for(team=TEAM_ID, channel=GENERAL, message_ts=ts) for ts in (root, other)]
    assert [absence.connection.hearing.is_withdrawn(one) for one in ids] == [True, False]
