"""Reading threads back from Slack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.building import make_request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.runs.testing import RunRequest, ThreadMessage
    from app.slack.connection import SlackConnection
    from tests.unit.slack.conftest import Answer, SlackServer

ROOT_TS = "1799000000.000000"
BEFORE = "1799900000.000000"


def asked(ts: str = BEFORE, **fields: Any) -> RunRequest:
    """Returns the question of which history is read: a reply in the thread."""
    return make_request(ts=ts, thread_ts=ROOT_TS, user="UALICE", **fields)


async def read(
    slack: SlackConnection, request: RunRequest | None = None
) -> Sequence[ThreadMessage]:
    return (await slack.reader.read(request or asked())).messages


def message(ts: str, **fields: object) -> dict[str, Any]:
    return {"ts": ts, "user": "UALICE", "text": "hi", **fields}


async def test_what_a_card_says_otherwise_is_kept_with_its_text(
    slack: SlackConnection, slack_server: SlackServer
) -> None:
    """The text of an app's post is left out only where the card says each of its lines."""
    card = [{"text": "deploy was not\nfailed until now"}]
    slack_server.pages["all"] = [
        message(ROOT_TS, bot_id="B9", text="deploy failed now", attachments=card),
        message("1799000001.000000", bot_id="B9", text="was not\n\nfailed until", attachments=card),
    ]
    assert [one.text for one in await read(slack)] == ["deploy failed now", ""]


async def test_messages_become_history(slack: SlackConnection, slack_server: SlackServer) -> None:
    """People keep their names, own posts their run and whole text; notices and the asking message are left out."""
    own = {"event_type": "orion_run", "event_payload": {"run_id": "run_1", "part": 2}}
    slack_server.pages["all"] = [
        message(ROOT_TS, text="<@UBOT> root &amp; <https://a.org|link>"),
        message("1799000001.000000", subtype="channel_join"),
        message("1799000002.000000", user="UBOT", bot_id="BBOT", text="short", metadata=own,
                blocks=[{"type": "markdown", "text": "The *whole* answer"}]),
        message("1799000003.000000", bot_id="B9", bot_profile={"name": "alerts"}, text="Disk full"),
        message(BEFORE, text="the question itself"),
    ]  # fmt: skip
    await slack.identify()
    root, answer, alert = await read(slack)
    assert (root.text, root.author_name, root.is_own) == (
        "root & link (https://a.org)",
        "Ualice",
        False,
    )
    assert (answer.text, answer.is_own, answer.run_id, answer.part) == (
        "The *whole* answer",
        True,
        "run_1",
        2,
    )
    assert (alert.user, alert.author_name, alert.is_own) == ("", "alerts", False)


@pytest.mark.parametrize("word", ["stop", "Mute!", "unmute"])
async def test_what_is_said_to_orion_itself_is_no_history(
    slack: SlackConnection, slack_server: SlackServer, word: str
) -> None:
    slack_server.pages["all"] = [
        message(ROOT_TS, text="a question"),
        message("1799000001.000000", text=f"<@UBOT> {word}"),
        message("1799000002.000000", text=f"{word} that at once"),
    ]
    await slack.identify()
    assert [one.text for one in await read(slack)] == ["a question", "", f"{word} that at once"]


async def test_a_time_that_is_none_costs_no_history(
    slack: SlackConnection, slack_server: SlackServer
) -> None:
    """A message that names no time counts as the oldest; the others keep their order."""
    odd = [message("1799000001.odd"), message("1799000001.000001")]
    slack_server.pages["all"] = [message(ROOT_TS), *odd]
    older = await read(slack)
    assert [one.ts for one in older] == ["1799000001.odd", ROOT_TS, "1799000001.000001"]


async def test_names_are_asked_for_once(slack: SlackConnection, slack_server: SlackServer) -> None:
    """users.info is called once per person, and a person it refuses keeps the id."""
    slack_server.pages["all"] = [message(ROOT_TS), message("1799000001.000000")]
    for _ in range(2):
        await read(slack)
    assert len(slack_server.arguments("users.info")) == 1


@pytest.mark.parametrize("count", [900, 5_000])
async def test_long_threads_keep_the_root_and_the_newest(
    slack: SlackConnection, slack_server: SlackServer, count: int
) -> None:
    """Within eight pages, the root and the newest message are always read."""
    replies = [
        message(f"{1799000000 + number * 60}.000000", text=str(number))
        for number in range(1, count)
    ]
    slack_server.pages["all"] = [message(ROOT_TS, reply_count=count), *replies]
    older = await read(slack, asked(f"{1799000000 + count * 60}.000000"))
    assert older[0].ts == ROOT_TS
    assert older[-1].text == str(count - 1)
    assert len(slack_server.arguments("conversations.replies")) <= 8


@pytest.mark.parametrize("word", ["not_in_channel", "missing_scope"])
async def test_an_unreadable_thread_is_empty(
    slack: SlackConnection, slack_server: SlackServer, answer: type[Answer], word: str
) -> None:
    """A refusal leaves the history to Orion's own records."""
    slack_server.fail("conversations.replies", answer(error=word))
    assert await read(slack) == ()


async def test_a_failing_page_is_repeated(
    slack: SlackConnection, slack_server: SlackServer, answer: type[Answer]
) -> None:
    """A server error while reading costs a retry, not the history."""
    slack_server.pages["all"] = [message(ROOT_TS)]
    slack_server.fail("conversations.replies", answer(status=502), answer(cut=True))
    assert len(await read(slack)) == 1


@pytest.mark.long
async def test_a_thread_that_waits_for_slacks_limits_is_read_all_the_same(
    slack: SlackConnection, slack_server: SlackServer, answer: type[Answer]
) -> None:
    """However long the pause that Slack asks for on the way."""
    slack_server.pages["all"] = [message(ROOT_TS)]
    slack_server.fail("conversations.replies", answer(status=429, retry_after="11"))
    view = await slack.reader.read(asked())
    assert ([one.ts for one in view.messages], view.is_cut) == ([ROOT_TS], False)


async def test_a_thread_that_slack_does_not_tell_is_cut(
    slack: SlackConnection, slack_server: SlackServer, answer: type[Answer]
) -> None:
    """As is one of which it tells a part; what it refuses is not: it never tells that."""
    slack_server.pages["all"] = [message(ROOT_TS)]
    slack_server.fail("conversations.replies", *[answer(status=502)] * 9)
    view = await slack.reader.read(asked())
    assert (view.messages, view.is_cut) == ((), True)
    slack_server.script.clear()
    slack_server.fail("conversations.replies", answer(error="missing_scope"))
    assert not (await slack.reader.read(asked())).is_cut


@pytest.mark.parametrize(
    ("answers", "stands"),
    [
        ([], True),
        ([{"error": "thread_not_found"}], False),
        ([{"error": "not_in_channel"}], True),
        ([{"status": 502}] * 9, True),
    ],
    ids=["read", "no-thread", "refused", "down"],
)
async def test_whether_a_message_stands(
    slack: SlackConnection,
    slack_server: SlackServer,
    answer: type[Answer],
    answers: list[dict[str, Any]],
    *,
    stands: bool,
) -> None:
    """It is taken to, unless Slack says that it does not."""
    slack_server.pages["all"] = [message(ROOT_TS)]
    slack_server.fail("conversations.replies", *(answer(**one) for one in answers))
    assert await slack.reader.stands(asked(ROOT_TS)) == stands


async def test_a_message_that_is_not_listed_does_not_stand(
    slack: SlackConnection, slack_server: SlackServer
) -> None:
    """Its thread is asked for that moment alone."""
    slack_server.pages["all"] = [message(ROOT_TS)]
    assert not await slack.reader.stands(asked())
    (arguments,) = slack_server.arguments("conversations.replies")
    assert arguments["oldest"] == arguments["latest"] == BEFORE


async def test_a_person_is_called_by_name(
    slack: SlackConnection, slack_server: SlackServer, answer: type[Answer]
) -> None:
    """Asked for once; who cannot be looked up is called by their id."""
    slack_server.fail("users.info", answer(error="user_not_found"))
    assert await slack.reader.name_of("UBOB") == "UBOB"
    assert [await slack.reader.name_of("UALICE") for _ in range(2)] == ["Ualice"] * 2
    assert len(slack_server.arguments("users.info")) == 2


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("これは<@USAM0>さん", "これは@Usam0さん"),
        ("请<@USAM0>看看<#C0SHOP>吧", "请@Usam0看看#C0Shop吧"),
        ("cc:<@USAM0>,<@USAM0>x", "cc:@Usam0,@Usam0x"),
        ("mail@UNKNOWN.example and a.@USAM0", "mail@UNKNOWN.example and a.@USAM0"),
    ],
)
async def test_people_and_channels_have_names_in_every_script(
    slack: SlackConnection, slack_server: SlackServer, text: str, named: str
) -> None:
    """Also where nothing parts them from the words around."""
    slack_server.pages["all"] = [message(ROOT_TS, text=text)]
    assert [one.text for one in await read(slack)] == [named]


async def test_a_message_without_history_does_not_wait_to_be_read(
    slack: SlackConnection, slack_server: SlackServer
) -> None:
    """Where Slack's limits hold reads up, what its events told has to do; with a free line it is read once."""
    slack_server.pages["all"] = [message(ROOT_TS, files=[{"id": "F1", "name": "a.csv"}])]
    root = make_request(ts=ROOT_TS, user="UALICE")
    assert (await slack.reader.read(root)).request.content.files
    slack._api.limits.pause("conversations.replies", "C1", 5)
    assert not (await slack.reader.read(root)).request.content
    assert len(slack_server.arguments("conversations.replies")) == 1
