"""`/orion`, the shortcut, the cross, the home tab: payloads of any shape, a Slack that refuses or hangs, a sick database."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr
from slack_bolt.async_app import AsyncApp

from app.runs.testing import (
    ApprovalDesk,
    Intake,
    Outcome,
    RunId,
    RunPolicy,
    RunRequest,
    RunState,
    SpentCall,
    StopSignals,
    Usage,
    run_id_for,
)
from app.slack.api import RetryPolicy
from app.slack.ask_modal import ASK_VIEW
from app.slack.commands import HELP, NOT_NOW
from app.slack.connection import SlackConnection, SlackOptions, open_slack
from app.slack.manifest import COMMAND
from app.slack.payloads import Ignored, StopShown, from_reaction
from app.store.memory import MemoryRunStore
from tests.building import make_request, make_run
from tests.faults.building import JournalReplies
from tests.unit.slack.building import RecordingIntake, deliver_form, deliver_json, mention
from tests.unit.slack.conftest import Answer, SlackServer
from tests.unit.slack.places import (
    PERSON,
    POLICY,
    HangingStore,
    World,
    ports_of,
    world_of,
)
from tests.waiting import until


@pytest.fixture
async def world(slack: SlackConnection, slack_server: SlackServer) -> World:
    return world_of(slack, slack_server)


# -- /orion ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "help", "  Help "])
async def test_help_is_what_an_empty_command_gets(world: World, text: str) -> None:
    """In any case, and the same."""
    assert await world.command(text) == HELP


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sttaus", "did you mean status?"),
        ("status now", "Status takes nothing behind it."),
        ("docker echo hi", "Mention me in a channel"),
        ("settings what is this", "I do not understand"),
        ("settings agent=codx", "did you mean codex?"),
        ("provider", "write `/orion provider NAME`; there are: `local`, `docker`."),
        ("Provider ", "write `/orion provider NAME`"),
        ("provider vercel", "no sandbox"),
        ("settings channel agent=codex", "please write it as a message"),
        ("<!channel> hi", "&lt;!channel&gt;"),
        ("x" * 3_900, "no command"),
    ],
)
async def test_what_is_misspelt_is_told(world: World, text: str, said: str) -> None:
    """With the value, escaped; nothing is stored of it."""
    answer = await world.command(text)
    assert said in answer
    assert "<!" not in answer
    assert len(answer) < 4_000
    assert answer.count("unlink") <= 1 or "There is no command" not in answer
    assert await world.store.recent(limit=9) == []


async def test_a_command_changes_what_a_message_reads(world: World) -> None:
    """The asker's own alone."""
    assert "Your defaults are changed" in await world.command("docker")
    assert "sandbox: `docker` (you)" in await world.command("settings")
    assert (await world.store.defaults.get("T1", "U1")).sandbox == "docker"
    assert "sandbox: `local`" in await world.command("settings", user_id="U2")


async def test_usage_tells_budgets_of_the_person_and_the_channel(world: World) -> None:
    """And never what everybody spends."""
    said = await world.command("usage")
    assert "Your budget: $0 of $2 spent today" in said
    assert "This channel's budget: $0 of $5 spent today" in said
    assert "Orion's" not in said
    assert "nobody knows" not in said


@pytest.mark.parametrize(("calls", "said"), [(1, "1 model call "), (2, "2 model calls ")])
async def test_usage_tells_of_calls_whose_cost_nobody_knows(
    world: World, calls: int, said: str
) -> None:
    """Of models without a price: otherwise it would look as if nothing had been asked."""
    call = SpentCall(
        id="",
        run_id=RunId("run_1"),
        agent="codex",
        model="without-a-price",
        team="T1",
        user="U1",
        channel="C1",
        at=datetime.now(UTC),
        usage=Usage(input_tokens=3, model_calls=1),
        cost=None,
    )
    await world.store.spending.add([replace(call, id=str(number)) for number in range(calls)])
    assert f"{said}whose cost nobody knows" in await world.command("usage")


async def test_others_are_counted_and_not_named(world: World) -> None:
    """Runs of the person have their question and a permalink."""
    mine = make_run(make_request(ts="1800000000.000100", text="my <secret> | question"))
    theirs = make_run(make_request(ts="1800000000.000200", user="U2", text="not yours"))
    again = make_request(ts="1800000000.000300", text="not yours").model_copy(
        update={"retry_of": theirs.id, "click_ts": "1800000001.000000"}
    )
    picked = make_request(ts="1800000000.000400", text="not yours").model_copy(
        update={
            "retry_of": theirs.id,
            "click_ts": "1800000001.000000",
            "picked_repo": "acme/api",
        }
    )
    for run in (mine, theirs, make_run(again), make_run(picked)):
        await world.store.add(run)
    said = await world.command("status")
    label = "my &lt;secret&gt; \u2223 question"
    assert f"• <https://acme.slack.com/archives/C1/p1800000000000100|{label}> waits" in said
    assert "|Retry> waits" in said
    assert "|Chosen repository: acme/api> waits" in said
    assert "Of others: 1." in said
    assert "not yours" not in said
    assert "not yours" not in await world.command("runs")


@pytest.mark.parametrize("picks", [True, False])
@pytest.mark.parametrize("surface", ["command", "home"])
async def test_a_question_that_went_on_in_a_repository_is_one_entry(
    world: World, surface: str, *, picks: bool
) -> None:
    """With the question's text and the state of its answer, whoever chose; another person who chose sees no text."""
    request = make_request(text="which build fails?")
    outcome = Outcome(state=RunState.SUCCEEDED, candidates=("acme/api", "none"))
    asking = replace(make_run(request), state=RunState.SUCCEEDED, outcome=outcome)
    await world.store.add(asking)
    open_entry = "which build fails?> asks which repository is meant"
    assert open_entry in await world.command("runs")
    where = {"team": "T1", "channel": "C1", "message_ts": request.message_ts}
    changes = {
        "run_id": run_id_for(**where, click="repository"),
        "user": "U1" if picks else "U2",
        "picked_repo": "none",
        "retry_of": asking.id,
        "click_ts": "1795302365.000100",
    }
    going = make_run(request.model_copy(update=changes), age_s=-1)
    await world.store.add(replace(going, state=RunState.RUNNING, reply_ts="9.000001"))
    said = await _own_runs(world, surface, "U1")
    assert said.count("•") == 1
    assert "/p9000001" in said
    assert "which build fails?> goes on" in said
    if not picks:
        theirs = await _own_runs(world, surface, "U2")
        assert "Chosen repository: none> goes on" in theirs
        assert "build" not in theirs


async def _own_runs(world: World, surface: str, user: str) -> str:
    if surface == "command":
        return await world.command("runs", user_id=user)
    await world.open(user=user)
    drawn = world.server.arguments
    await until(lambda: any(one["user_id"] == user for one in drawn("views.publish")))
    (view,) = [one["view"] for one in drawn("views.publish") if one["user_id"] == user]
    blocks = view["blocks"]
    number = next(n for n, one in enumerate(blocks) if one["text"]["text"] == "Your runs")
    return str(blocks[number + 1]["text"]["text"])


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"team_id": "T2"}, "other organisations"),
        ({"user_id": "U9"}, "not on the list"),
        ({"channel_id": "C9"}, "not switched on in this channel"),
        ({"user_id": ""}, NOT_NOW),
        ({"channel_id": "C 1"}, NOT_NOW),
    ],
)
async def test_who_may_not_ask_may_not_command(
    slack: SlackConnection, slack_server: SlackServer, fields: dict[str, str], said: str
) -> None:
    """Each word alike, also forged ones; nothing is carried out."""
    policy = replace(POLICY, allowed_users=frozenset({"U1"}), allowed_channels=frozenset({"C1"}))
    world = world_of(slack, slack_server, policy=policy)
    for text in ("stop", "runs", "docker", "settings agent=codex"):
        assert said in await world.command(text, **fields)
    assert world.intake.heard == []
    assert (await world.store.defaults.get("T1", "U1")).said == {}


async def test_a_sick_database_is_told_in_time(
    slack: SlackConnection, slack_server: SlackServer
) -> None:
    """Slack waits three seconds for an acknowledgement."""
    world = world_of(slack, slack_server, store=HangingStore())
    async with asyncio.timeout(2.9):
        assert await world.command("status") == NOT_NOW


async def test_another_app_s_command_is_nothing(world: World) -> None:
    """It is acknowledged, and answered with nothing."""
    form = {"command": "/other", "text": "x", "team_id": "T1"}
    assert await deliver_form(world.app, form) == (200, "")


# -- the cross ---------------------------------------------------------------------------------------------------------


def reaction(**event: object) -> dict[str, Any]:
    item = {"type": "message", "channel": "C1", "ts": "1800000000.000200"}
    given = {"type": "reaction_added", "reaction": "x", "item_user": "UBOT", "item": item}
    return mention(**given | event)


@pytest.mark.parametrize(
    "event",
    [
        {"reaction": "eyes"},
        {"item_user": "U1"},
        {"item_user": None},
        {"user": "UBOT"},
        {"item": {"type": "file", "file": "F1"}},
        {"item": {"type": "message", "channel": "C1", "ts": "soon"}},
        {"item": []},
        {"user": None},
    ],
)
def test_any_other_reaction_is_nothing(event: dict[str, Any]) -> None:
    """On other messages, by Orion itself, of another kind or shape."""
    assert isinstance(from_reaction(reaction(**event), bot_user_id="UBOT"), Ignored)


async def test_a_cross_on_orion_s_message_stops_what_it_shows(
    bolt: AsyncApp, intake: RecordingIntake
) -> None:
    """Also before Orion knows its own name: the envelope tells it."""
    stop = StopShown(team="T1", channel="C1", user="U1", ts="1800000000.000200")
    assert from_reaction(reaction(), bot_user_id="") == stop
    assert (await deliver_json(bolt, reaction()))[0] == 200
    assert intake.heard == [("stop_shown", "C1", "U1", "1800000000.000200")]


async def test_stops_reach_those_that_are_meant() -> None:
    """Of a channel the asker's own; of a thinking message its run; for whoever may stop."""
    store = MemoryRunStore()
    runs = [
        make_run(make_request(ts=f"180000000{number}.000100", channel=channel, user=user))
        for number, (channel, user) in enumerate([("C1", "U1"), ("C1", "U2"), ("C2", "U1")])
    ]
    for number, run in enumerate(runs):
        await store.add(replace(run, state=RunState.RUNNING, reply_ts=f"9.00000{number}"))

    class Deaf:
        def wake(self) -> None:
            """Nothing is advanced here."""

    replies = JournalReplies()

    def intake_of(policy: RunPolicy) -> Intake:
        deaf: Any = Deaf()
        ports, signals = replace(ports_of(store), replies=replies), StopSignals()
        desk = ApprovalDesk(ports, dispatcher=deaf, policy=policy)
        return Intake(ports, dispatcher=deaf, signals=signals, desk=desk, policy=policy)

    intake = intake_of(POLICY)
    run, ts = runs[0], "1900000000.000100"
    assert not await intake.stop_run(run.id, user="U8", is_external=True)
    assert not await intake.stop_thread(run.thread, user="U8", ts=ts, is_external=True)
    assert not await intake.stop_shown("T1", "C1", user="U8", reply_ts="9.000000", is_shared=True)
    assert not await intake.mute(
        run.thread, user="U8", ts=ts, is_muted=True, has_mention=True, is_external=True
    )
    await intake.show_log(run.id, user="U8", is_external=True)
    told = [(user, text) for _, user, text in replies.ephemerals]
    assert told == [("U8", "People of other organisations cannot use Orion here.")]
    stranger = intake_of(replace(POLICY, allowed_users=frozenset({"U7"})))
    assert await stranger.stop_own("T1", "C1", user="U1") == []
    assert not await stranger.stop_shown("T1", "C1", user="U1", reply_ts="9.000000")
    assert [run.id for run in await intake.stop_own("T1", "C1", user="U1")] == [runs[0].id]
    assert await intake.stop_own("T1", "C1", user="U1") == []
    assert not await intake.stop_shown("T1", "C2", user="U1", reply_ts="9.000001")
    assert await intake.stop_shown("T1", "C1", user="U3", reply_ts="9.000001")
    stopped = {run.id: run.stop_requested_by for run in await store.unfinished()}
    assert stopped == {runs[0].id: "U1", runs[1].id: "U3", runs[2].id: None}


# -- Ask Orion about this ----------------------------------------------------------------------------------------------

MESSAGE = {"type": "message", "user": "U2", "ts": "1800000001.000100", "text": "it &lt;broke&gt;"}


async def _view(
    world: World, message: Mapping[str, Any] = MESSAGE, **fields: Any
) -> dict[str, Any]:
    world.server.fail("conversations.info", Answer(body_json={"channel": {"is_member": True}}))
    await world.choose(message, **fields)
    view: dict[str, Any] = world.server.arguments("views.open")[-1]["view"]
    return view


async def test_a_submission_is_a_request_in_the_message_s_thread(world: World) -> None:
    """At the moment of the shortcut, with the message quoted; the same view twice gives the same run id."""
    view = await _view(world, MESSAGE | {"thread_ts": "1800000000.000100"})
    for _ in range(2):
        assert await world.send(view, " why? ") == {}
    first, second = world.intake.heard
    assert isinstance(first, RunRequest)
    assert isinstance(second, RunRequest)
    assert first.run_id == second.run_id
    assert (first.thread_ts, first.message_ts) == ("1800000000.000100", "1800000009.000100")
    assert (first.text, first.user) == ("why?", "U1")
    (about,) = first.content.shared
    assert about.splitlines()[0].startswith("> The message by @U2 that is asked about")
    assert "> it <broke>" in about


@pytest.mark.parametrize("text", ["w" * 9_000, '"\n' * 4_000, "\u4e2d" * 9_000])
async def test_a_long_message_fits_into_the_modal(world: World, text: str) -> None:
    """Its beginning; the thread has the rest."""
    view = await _view(world, MESSAGE | {"text": text})
    assert len(view["private_metadata"]) <= 3_000
    assert await world.send(view, "why?") == {}


@pytest.mark.parametrize(
    ("metadata", "question", "said"),
    [
        ("", "why?", "choose the shortcut again"),
        ("[]", "why?", "choose the shortcut again"),
        ('{"channel": "C1", "thread_ts": "1.2"}', "why?", "choose the shortcut again"),
        (
            '{"channel": "C 1", "thread_ts": "1.2", "asked_ts": "1.3"}',
            "why?",
            "choose the shortcut",
        ),
        ('{"channel": "C1", "thread_ts": "1.2", "asked_ts": "1.3"}', " ", "write a question"),
        ('{"channel": "C1", "thread_ts": "1.2", "asked_ts": "1.3"}', None, "write a question"),
    ],
)
async def test_a_forged_or_empty_modal_is_refused(
    world: World, metadata: str, question: object, said: str
) -> None:
    """For the person to correct; nothing is accepted."""
    errors = await world.send({"private_metadata": metadata}, question)
    assert said in errors["question"]
    assert world.intake.heard == []


async def test_people_of_other_companies_get_no_modal(world: World) -> None:
    """And one that they send is refused."""
    other = {"user": {"id": "U1", "team_id": "T2"}}
    await world.choose(MESSAGE, **other)
    assert world.server.arguments("views.open") == []
    view = await _view(world)
    assert "members of this workspace" in (await world.send(view, "why?", **other))["question"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer(error="channel_not_found"), "forward the message"),
        (Answer(error="missing_scope"), "forward the message"),
        (Answer(body_json={"channel": {"is_member": False}}), "forward the message"),
        (Answer(status=429, retry_after="1"), "try again in a moment"),
        (Answer(delay_s=0.5), "try again in a moment"),
        (Answer(cut=True), "try again in a moment"),
    ],
)
async def test_where_orion_cannot_answer_it_says_so_at_once(
    world: World, answer: Answer, said: str
) -> None:
    """Nothing is read there, and there is nothing to send."""
    # aiohttp itself asks again once when a connection that it reused is cut.
    world.server.fail("conversations.info", *[answer] * (2 if answer.cut else 1))
    await world.choose(MESSAGE)
    (call,) = world.server.arguments("views.open")
    assert said in str(call["view"]["blocks"])
    assert "submit" not in call["view"]
    assert {name for name, _, _ in world.server.calls} == {"conversations.info", "views.open"}


async def test_what_is_not_durable_is_not_taken(world: World) -> None:
    """Slack shows the person that it did not work; they press again."""
    view = await _view(world)
    world.intake.error = OSError("disk full")
    sent = {"type": "modal", "callback_id": ASK_VIEW, "id": "V1", **view}
    values = {"question": {"question": {"value": "why?"}}}
    payload = {"type": "view_submission", "view": sent | {"state": {"values": values}}, **PERSON}
    assert (await deliver_form(world.app, {"payload": json.dumps(payload)}))[0] == 500


# -- payloads of any shape ---------------------------------------------------------------------------------------------

_NAMES = st.sampled_from(
    ["type", "event", "team", "team_id", "user", "user_id", "channel", "channel_id", "item", "item_user", "reaction", "tab",
     "message", "view", "callback_id", "private_metadata", "state", "values", "question", "value", "command", "text", "ts",
     "thread_ts", "action_ts", "trigger_id", "id", "app_context", "entities"]
)  # fmt: skip
_WORDS = st.sampled_from(
    ["message_action", "ask_about", ASK_VIEW, "modal", "view_submission", "event_callback", "reaction_added", "app_home_opened",
     "x", "home", "messages", COMMAND, "stop", "U1", "T1", "C1", "D1", "1800000000.000100", ""]
)  # fmt: skip
_ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | _WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=6),
    max_leaves=25,
)


@pytest.fixture
async def nowhere() -> AsyncIterator[SlackConnection]:
    """A Slack that cannot be reached."""
    options = SlackOptions(
        bot_token=SecretStr("xoxb-1"),
        base_url="http://127.0.0.1:9/api/",
        policy=RetryPolicy(call_timeout_s=0.1),
        modal_timeout_s=0.2,
    )
    async with open_slack(options) as connection:
        yield connection


@given(
    kind=st.sampled_from(["message_action", "view_submission", "event_callback"]),
    event=st.sampled_from(["reaction_added", "app_home_opened"]),
    body=st.dictionaries(_NAMES, _ANY, max_size=9),
    form=st.dictionaries(_NAMES, _WORDS, max_size=9),
)
@settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
async def test_no_payload_of_a_place_makes_bolt_fail(
    nowhere: SlackConnection, kind: str, event: str, body: dict[str, Any], form: dict[str, str]
) -> None:
    """Taken or refused, never a 5xx."""
    app = world_of(nowhere, SlackServer()).app
    inner = body.get("event")
    body |= {"type": kind, "callback_id": "ask_about"}
    body["event"] = {**(inner if isinstance(inner, dict) else body), "type": event}
    assert (await deliver_json(app, body))[0] in (200, 400)
    assert (await deliver_form(app, form | {"command": COMMAND}))[0] in (200, 400)
