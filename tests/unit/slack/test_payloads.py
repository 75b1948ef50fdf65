"""What Orion understands of Slack's payloads."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.runs.testing import Addressing, Revision, RunRequest, Surface, Thread, run_id_for
from app.slack.actions import parse_click
from app.slack.payloads import (
    Ignored,
    MuteThread,
    StopDirectMessages,
    StopThread,
    from_event,
    session_stopped,
)

AT = datetime(2026, 11, 21, tzinfo=UTC)
TS = "1800000000.000100"
ROOT = "1799999999.000001"


def envelope(**event: object) -> dict[str, Any]:
    defaults = {
        "type": "app_mention",
        "user": "U1",
        "text": "<@UBOT> hi",
        "ts": TS,
        "channel": "C1",
        "team": "T1",
    }
    return {
        "type": "event_callback",
        "team_id": "T1",
        "event_id": "Ev1",
        "authorizations": [{"team_id": "T1", "user_id": "UBOT", "is_bot": True}],
        "event": {**defaults, **event},
    }


def parsed(
    **event: object,
) -> RunRequest | Revision | StopThread | StopDirectMessages | MuteThread | Ignored:
    return from_event(envelope(**event), bot_user_id="UBOT", received_at=AT)


def accepted(**event: object) -> RunRequest:
    request = parsed(**event)
    assert isinstance(request, RunRequest), request
    return request


def test_mention_becomes_a_request() -> None:
    """A top-level mention starts a thread at its own message."""
    request = accepted()
    assert request.text == "hi"
    assert request.thread == Thread(team="T1", channel="C1", thread_ts=TS)
    assert request.surface is Surface.CHANNEL
    assert request.event_id == "Ev1"
    assert not request.is_external


def test_twin_events_are_one_run() -> None:
    """`app_mention` and `message` of one message have the same run id and say the same."""
    twin = accepted(type="message", channel_type="channel")
    assert twin == accepted()


@pytest.mark.parametrize(
    ("event", "thread_ts"),
    [
        ({"channel": "D1", "channel_type": "im"}, TS),
        ({"channel": "D1", "channel_type": "im", "thread_ts": ROOT}, ROOT),
        (
            {"channel": "D1", "channel_type": "im", "thread_ts": ROOT, "parent_user_id": "UBOT"},
            ROOT,
        ),
    ],
    ids=["top-level", "thread", "legacy assistant thread"],
)
def test_direct_messages_need_no_mention(event: dict[str, Any], thread_ts: str) -> None:
    """Every way of writing to the bot directly is a request in the right thread."""
    request = accepted(type="message", text="hi", **event)
    assert request.surface is Surface.DM
    assert request.thread_ts == thread_ts


@pytest.mark.parametrize("subtype", [None, "file_share", "thread_broadcast", "me_message"])
def test_accepted_subtypes(subtype: str | None) -> None:
    """Files, broadcast replies and /me are people speaking."""
    event = {"subtype": subtype} if subtype else {}
    assert (
        accepted(type="message", channel_type="im", channel="D1", text="hi", **event).text == "hi"
    )


def test_files_are_named_and_need_no_text() -> None:
    """A file without words is a request that names it."""
    request = accepted(
        text="<@UBOT>", subtype="file_share", files=[{"name": "a.csv"}, {"title": "b"}, 7, {}]
    )
    assert [file.name for file in request.content.files] == ["a.csv", "b"]


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        ({"type": "message", "text": "hello all", "channel_type": "channel"}, "not_addressed"),
        ({"type": "message", "text": "stop", "channel_type": "channel"}, "not_addressed"),
        ({"bot_id": "B2"}, "bot"),
        ({"bot_id": "BBOT", "user": "UBOT"}, "own_message"),
        ({"user": "UBOT"}, "own_message"),
        ({"user": "USLACKBOT"}, "slackbot"),
        ({"type": "message", "subtype": "message_changed"}, "incomplete"),
        ({"type": "message", "subtype": "message_deleted"}, "incomplete"),
        ({"type": "message", "subtype": "bot_message"}, "subtype"),
        ({"type": "message", "subtype": "channel_join"}, "subtype"),
        ({"user": None}, "no_user"),
        ({"type": "reaction_added"}, "other_event"),
        ({"ts": "soon"}, "incomplete"),
    ],
)
def test_ignored_events(event: dict[str, Any], reason: str) -> None:
    """What is not a person addressing the bot is ignored, with its reason."""
    assert parsed(**event) == Ignored(reason=reason)


@pytest.mark.parametrize("allowed", ["B2", "A2", "U0BOT0001"])
@pytest.mark.parametrize(
    "event",
    [
        {"user": "U0BOT0001", "bot_id": "B2", "app_id": "A2"},
        {"user": "U0BOT0001", "bot_id": "B2", "bot_profile": {"app_id": "A2"}},
    ],
    ids=["app id", "profile"],
)
def test_an_allowed_app_may_ask(event: dict[str, Any], allowed: str) -> None:
    """By its bot, its app or its user; where it mentions Orion, and as an app, not as a person."""
    body = envelope(**event)
    request = from_event(body, bot_user_id="UBOT", received_at=AT, allowed_bots={allowed, "UBOT"})
    assert isinstance(request, RunRequest)
    assert (request.user, request.is_bot, request.text) == ("U0BOT0001", True, "hi")
    plain = envelope(type="message", text="no mention", **event)
    for unasked, reason in (
        (plain, "not_addressed"),
        (envelope(bot_id="BBOT", user="UBOT"), "own_message"),
    ):
        ignored = from_event(
            unasked, bot_user_id="UBOT", received_at=AT, allowed_bots={allowed, "UBOT"}
        )
        assert ignored == Ignored(reason=reason)


def test_an_allowed_app_without_a_user_goes_by_its_bot() -> None:
    """As older integrations post: with a subtype of their own, and a name in place of a user."""
    body = envelope(user=None, bot_id="B2", subtype="bot_message", username="alerts")
    request = from_event(body, bot_user_id="UBOT", received_at=AT, allowed_bots={"B2"})
    assert isinstance(request, RunRequest)
    assert (request.user, request.is_bot) == ("B2", True)


@pytest.mark.parametrize(
    "text",
    ["stop", "Stop", "STOP!", " stop. ", "<@UBOT> stop", "<@UBOT>: stop", "stop <@UBOT>", "stop…"],
)
@pytest.mark.parametrize("kind", ["app_mention", "message"])
def test_bare_stop_in_a_thread_stops_it(text: str, kind: str) -> None:
    """The word alone stops the thread, with or without the mention, in any case, with punctuation."""
    thread = Thread(team="T1", channel="C1", thread_ts=ROOT)
    stop = StopThread(thread=thread, user="U1", ts=TS)
    assert parsed(type=kind, text=text, thread_ts=ROOT) == stop


def test_bare_stop_outside_threads() -> None:
    """At the top of a direct message it stops all of that; at the top of a channel it is a question like any other."""
    stop = StopDirectMessages(team="T1", channel="D1", user="U1", ts=TS)
    assert parsed(type="message", text="stop", channel="D1") == stop
    assert isinstance(parsed(text="<@UBOT> stop"), RunRequest)


@pytest.mark.parametrize("word", ["stop", "mute", "unmute"])
def test_a_bare_word_of_an_app_without_a_mention_is_nothing(word: str) -> None:
    """It talks with others; with a mention its stop counts."""
    of_app = {"thread_ts": ROOT, "bot_id": "B2", "user": "U2"}
    heard, called = (
        from_event(
            envelope(**said, **of_app), bot_user_id="UBOT", received_at=AT, allowed_bots=["B2"]
        )
        for said in ({"type": "message", "text": word}, {"text": "<@UBOT> stop"})
    )
    assert heard == Ignored(reason="not_addressed")
    assert isinstance(called, StopThread)


@pytest.mark.parametrize(
    "text",
    ["<@UBOT> stop the server", "<@UBOT> don't stop", "<@UBOT> stopping", "<@UBOT> non-stop"],
)
def test_stop_among_other_words_is_a_request(text: str) -> None:
    """Only the bare word stops anything."""
    assert isinstance(parsed(text=text, thread_ts=ROOT), RunRequest)


@pytest.mark.parametrize(
    ("raw", "readable"),
    [
        ("<@UBOT> a &lt;b&gt; &amp;amp; c", "a <b> &amp; c"),
        ("hey <@UBOT|orion>, ask <@U9> in <#C1|general>", "hey, ask @U9 in #general"),
        ("<@UBOT> see <https://a.org/x?a=1&amp;b=2|the page> or <https://b.org>", "see the page (https://a.org/x?a=1&b=2) or https://b.org"),
        ("<@UBOT> <http://a.org|a.org> <mailto:x@a.org|x@a.org>", "a.org x@a.org"),
        ("<@UBOT> <!here> <!subteam^S1|@team> <!date^1^{date}|1 Jan>", "@here @team 1 Jan"),
        ("<@UBOT>\n```\nif a &lt; b:\n    x\n```", "```\nif a < b:\n    x\n```"),
        ("<@UBOT> a\n<@UBOT> b", "a\nb"),
        ("<@UBOT> List&lt;int&gt; x", "List<int> x"),
    ],
)  # fmt: skip
def test_text_is_readable(raw: str, readable: str) -> None:
    """Mentions of the bot go, tokens are spelled out, escapes undone, code and white space kept."""
    assert accepted(text=raw).text == readable


@given(
    st.text(
        alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=300
    )
)
def test_escaped_text_comes_back(text: str) -> None:
    """Whatever a person types arrives as typed, but for outer white space."""
    raw = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    result = parsed(type="message", channel="D1", channel_type="im", text=raw)
    if isinstance(result, RunRequest):
        assert result.text == text.strip()


@pytest.mark.parametrize(
    ("envelope_fields", "event", "is_external"),
    [
        ({"is_ext_shared_channel": True}, {"user_team": "T2"}, True),
        ({"is_ext_shared_channel": True}, {"source_team": "T2", "user_team": "T1"}, True),
        ({"is_ext_shared_channel": True}, {"user_team": "T1", "source_team": "T1"}, False),
        ({"is_ext_shared_channel": True}, {"team": "T2"}, True),
        ({"is_ext_shared_channel": True}, {"team": ""}, True),
        ({"is_ext_shared_channel": False}, {"user_team": "T2"}, False),
    ],
)
def test_people_of_other_companies_are_marked(
    envelope_fields: dict[str, Any],
    event: dict[str, Any],
    is_external: bool,
) -> None:
    """In a shared channel, an author of another or of an unknown workspace is external."""
    request = from_event(
        {**envelope(**event), **envelope_fields}, bot_user_id="UBOT", received_at=AT
    )
    assert isinstance(request, RunRequest)
    assert request.is_external is is_external


def test_unknown_identity_is_taken_from_the_envelope() -> None:
    """Before auth.test has answered, the authorization names the bot."""
    body = envelope(type="message", text="<@UBOT> hi")
    request = from_event(body, bot_user_id="", received_at=AT)
    assert isinstance(request, RunRequest)
    assert request.text == "hi"


def test_native_stop() -> None:
    """Slack's own Stop stops the thread it was pressed in."""
    body = envelope(type="agent_session_stopped", thread_ts=ROOT, event_ts=TS)
    assert session_stopped(body) == StopThread(
        thread=Thread(team="T1", channel="C1", thread_ts=ROOT), user="U1", ts=TS
    )
    assert session_stopped({"event": {}}) == Ignored(reason="incomplete")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=8), children, max_size=3)
    ),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    [
        "type",
        "user",
        "text",
        "ts",
        "channel",
        "thread_ts",
        "files",
        "subtype",
        "bot_id",
        "team",
        "user_team",
        "channel_type",
    ]
)


@given(st.dictionaries(FIELDS, JSON), JSON, JSON)
def test_no_payload_raises(event: dict[str, Any], authorizations: Any, actions: Any) -> None:
    """Whatever is in the fields, the parser answers."""
    body = {**envelope(**event), "authorizations": authorizations}
    kinds = (RunRequest, StopThread, StopDirectMessages, MuteThread, Ignored)
    assert isinstance(from_event(body, bot_user_id="UBOT", received_at=AT), kinds)
    assert isinstance(session_stopped(body), kinds)
    clicked = {"user": authorizations, "actions": actions, "container": event}
    assert isinstance(parse_click(clicked), (Ignored, tuple))


def revised(before: dict[str, Any], after: dict[str, Any] | None) -> object:
    """What an edit (or, without `after`, a deletion) of a message is to Orion."""
    original = {"type": "message", "user": "U1", "ts": TS, "text": "<@UBOT> hi", **before}
    event: dict[str, Any] = {"type": "message", "previous_message": original}
    if after is None:
        event |= {"subtype": "message_deleted", "deleted_ts": TS}
    else:
        event |= {"subtype": "message_changed", "message": {**original, **after}}
    return parsed(**event)


MESSAGE_RUN = run_id_for(team="T1", channel="C1", message_ts=TS)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (
            {},
            {"text": "<@UBOT> bye"},
            Revision(run_id=MESSAGE_RUN, user="U1", text="bye", addressing=Addressing.CLEAR),
        ),
        (
            {"text": "hi"},
            {"text": "<@U2> bye"},
            Revision(run_id=MESSAGE_RUN, user="U1", text="@U2 bye", addressing=Addressing.OTHERS),
        ),
        ({}, None, Revision(run_id=MESSAGE_RUN, user="U1", text=None)),
        (
            {},
            {"subtype": "tombstone", "user": "USLACKBOT", "text": "This message was deleted."},
            Revision(run_id=MESSAGE_RUN, user="U1", text=None),
        ),
        ({}, {"attachments": [{"title": "a link"}]}, Ignored(reason="unchanged")),
        ({}, {"text": "<@UBOT>"}, Ignored(reason="unchanged")),
        ({"bot_id": "BBOT", "user": "UBOT"}, {"text": "Thinking"}, Ignored(reason="own_message")),
        ({"bot_id": "BBOT", "user": "UBOT"}, None, Ignored(reason="own_message")),
        ({"user": None}, {"text": "x"}, Ignored(reason="incomplete")),
        ({"ts": "soon"}, {"text": "x"}, Ignored(reason="incomplete")),
    ],
)
def test_revisions(
    before: dict[str, Any], after: dict[str, Any] | None, expected: Revision | Ignored
) -> None:
    """An edit or a deletion names the run of its message; unfurled links and the bot's own edits are nothing."""
    assert revised(before, after) == expected


REPLY = {"type": "message", "channel_type": "channel", "thread_ts": ROOT, "text": "and now?"}


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ({}, Addressing.NONE),
        ({"channel": "G1", "channel_type": "mpim"}, Addressing.NONE),
        ({"subtype": "file_share", "text": ""}, Addressing.NONE),
        ({"subtype": "thread_broadcast"}, Addressing.NONE),
        ({"text": "<@UBOT> and <@U2>"}, Addressing.CLEAR),
        ({"type": "app_mention", "text": "<@UBOT> hi"}, Addressing.CLEAR),
        ({"type": "app_mention", "text": "hi"}, Addressing.EVENT),
        ({"channel": "D1", "channel_type": "im"}, Addressing.CLEAR),
    ],
)
def test_for_whom_a_reply_says_that_it_is(event: dict[str, Any], expected: Addressing) -> None:
    """One that mentions nobody may be a follow-up; in a direct message all is for Orion."""
    assert accepted(**{**REPLY, **event}).addressing is expected


@pytest.mark.parametrize(
    "event",
    [
        {"thread_ts": None},
        {"thread_ts": TS},
        {"text": "<@U2> and you?"},
        {"text": "<!subteam^S1|@team> who knows?"},
        {"text": "<!here> who knows?"},
        {"bot_id": "B2"},
        {"subtype": "channel_join"},
    ],
)
def test_what_is_no_follow_up_whatever_its_thread_is(event: dict[str, Any]) -> None:
    """The top of a channel, somebody else's mention, another app, a notice."""
    assert isinstance(parsed(**{**REPLY, **event}), Ignored)


def test_what_other_apps_may_ask_is_no_follow_up() -> None:
    """They must mention Orion, also where they may ask."""
    body = envelope(**{**REPLY, "bot_id": "B2"})
    intent = from_event(body, bot_user_id="UBOT", received_at=AT, allowed_bots={"B2"})
    assert intent == Ignored(reason="not_addressed")


@pytest.mark.parametrize(
    ("event", "is_muted", "has_mention"),
    [
        ({"text": "mute"}, True, False),
        ({"text": " Mute! "}, True, False),
        ({"text": "<@UBOT> mute"}, True, True),
        ({"type": "app_mention", "text": "<@UBOT> unmute"}, False, True),
        ({"text": "UNMUTE"}, False, False),
    ],
)
def test_a_thread_is_muted_by_a_bare_word(
    event: dict[str, Any], is_muted: bool, has_mention: bool
) -> None:
    """With a mention or without, by both events alike."""
    thread = Thread(team="T1", channel="C1", thread_ts=ROOT)
    assert parsed(**{**REPLY, **event}) == MuteThread(
        thread=thread, user="U1", ts=TS, is_muted=is_muted, has_mention=has_mention
    )


@pytest.mark.parametrize(
    "event",
    [
        {"text": "mute the alarms please"},
        {"text": "mute", "channel": "D1", "channel_type": "im"},
        {"type": "app_mention", "text": "<@UBOT> mute", "thread_ts": None},
    ],
)
def test_what_is_a_request_though_it_says_mute(event: dict[str, Any]) -> None:
    """A sentence, a direct message, the top of a channel."""
    assert isinstance(parsed(**{**REPLY, **event}), RunRequest)
