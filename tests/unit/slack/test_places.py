"""`/orion`, the shortcut, the cross, the home tab: payloads of any shape, a Slack that refuses or hangs, a sick database."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr
from slack_bolt.async_app import AsyncApp
from structlog.testing import capture_logs
from typing_extensions import override

from app.runs.testing import (
    Budgets,
    Catalog,
    CatalogAgent,
    Intake,
    Ledger,
    NoJudge,
    Price,
    Prices,
    Run,
    RunPolicy,
    RunPorts,
    RunRequest,
    RunState,
    StopSignals,
    Surface,
    SystemClock,
)
from app.slack.api import BotIdentity, RetryPolicy
from app.slack.ask_modal import ASK_VIEW
from app.slack.commands import HELP, NOT_NOW
from app.slack.connection import SlackConnection, SlackOptions, open_slack
from app.slack.content import content_of
from app.slack.home import WELCOME
from app.slack.listeners import Surfaces
from app.slack.manifest import COMMAND, find_lacking, manifest
from app.slack.overview import Overviews, short
from app.slack.payloads import Ignored, StopShown, from_reaction
from app.slack.status import MAX_TITLE_CHARS, title_of
from app.store.memory import MemoryOwnKeyStore, MemoryRunStore, MemoryWelcomeStore
from app.tracing.null import NullTracer
from tests.building import make_request, make_run
from tests.faults.building import EmptyReader, FileShelf, JournalReplies
from tests.unit.slack.building import RecordingIntake, deliver_form, deliver_json, make_app, mention
from tests.unit.slack.conftest import Answer, SlackServer
from tests.waiting import until

CATALOG = Catalog(
    agents={"anthropic": CatalogAgent(model="a-1"), "codex": CatalogAgent(model="c-1")},
    agent="anthropic",
    sandboxes={"local": "local", "docker": "docker"},
    provider="local",
)
POLICY = RunPolicy(sandboxes=CATALOG.sandboxes, agents=CATALOG.agents)
IDENTITY = BotIdentity(
    team_id="T1", bot_id="BBOT", bot_user_id="UBOT", url="https://acme.slack.com/"
)
PERSON = {"user": {"id": "U1", "team_id": "T1"}, "team": {"id": "T1"}}


class HangingStore(MemoryRunStore):
    """Answers nothing."""

    @override
    async def unfinished(self) -> list[Run]:
        await asyncio.sleep(60)
        return []


class SickWelcomes(MemoryWelcomeStore):
    @override
    async def claim(self, team: str, person: str) -> bool:
        raise RuntimeError("the database is sick")


@dataclass
class World:
    """Surfaces over a scripted Slack and stores in memory."""

    app: AsyncApp
    surfaces: Surfaces
    store: MemoryRunStore
    welcomes: MemoryWelcomeStore
    intake: RecordingIntake
    server: SlackServer

    async def command(self, text: str, **fields: str) -> str:
        form = {"command": COMMAND, "text": text, "team_id": "T1", "channel_id": "C1"}
        status, body = await deliver_form(self.app, form | {"user_id": "U1"} | fields)
        assert status == 200, body
        answer = json.loads(body)
        assert answer["response_type"] == "ephemeral"
        return str(answer["text"])

    async def open(self, *, tab: str = "home", user: str = "U1", channel: str = "D1") -> None:
        event = {"type": "app_home_opened", "user": user, "channel": channel, "tab": tab}
        payload = {"type": "event_callback", "team_id": "T1", "event_id": "Ev1", "event": event}
        assert (await deliver_json(self.app, payload))[0] == 200

    async def choose(self, message: Mapping[str, Any], **fields: Any) -> None:
        payload = {
            "type": "message_action",
            "callback_id": "ask_about",
            "trigger_id": "1.2",
            "action_ts": "1800000009.000100",
            "channel": {"id": "C1"},
            "message": message,
            **PERSON,
        }
        status, _ = await deliver_form(self.app, {"payload": json.dumps(payload | fields)})
        assert status == 200

    async def send(
        self, view: Mapping[str, Any], question: object, **fields: Any
    ) -> Mapping[str, str]:
        values = {"question": {"question": {"type": "plain_text_input", "value": question}}}
        sent = {"type": "modal", "callback_id": ASK_VIEW, "id": "V1", **view}
        payload = {"type": "view_submission", "view": sent | {"state": {"values": values}}}
        status, body = await deliver_form(
            self.app, {"payload": json.dumps({**payload, **PERSON, **fields})}
        )
        assert status == 200
        errors: Mapping[str, str] = json.loads(body or "{}").get("errors", {})
        return errors


def ports_of(store: MemoryRunStore) -> RunPorts:
    price = Price(
        input=Decimal(1), output=Decimal(1), cache_read=Decimal(1), cache_write=Decimal(1)
    )
    clock = SystemClock()
    return RunPorts(
        store=store,
        files=store.files,
        sessions=store.sessions,
        defaults=store.defaults,
        own_keys=MemoryOwnKeyStore(),
        threads=store.threads,
        channel_notes=store.channel_notes,
        judge=NoJudge(),
        ledger=Ledger(
            prices=Prices({"m": price}),
            budgets=Budgets(user_day=2_000_000, channel_day=5_000_000),
            store=store.spending,
            clock=clock,
        ),
        replies=JournalReplies(),
        reader=EmptyReader(),
        exchange=FileShelf(),
        tracer=NullTracer(),
        clock=clock,
        mask=str,
        has_secret=lambda _data: False,
    )


def world_of(
    slack: SlackConnection,
    server: SlackServer,
    *,
    policy: RunPolicy = POLICY,
    store: MemoryRunStore | None = None,
    welcomes: MemoryWelcomeStore | None = None,
) -> World:
    store, intake = store or MemoryRunStore(), RecordingIntake()
    welcomes = welcomes or MemoryWelcomeStore()
    overviews = Overviews(
        ports_of(store), catalog=CATALOG, policy=policy, identity=lambda: IDENTITY
    )
    surfaces = slack.surfaces(intake, overviews, welcomes=welcomes, keys=None)
    app = make_app(
        intake, **{name: getattr(surfaces, name) for name in ("ask", "commands", "home")}
    )
    return World(
        app=app, surfaces=surfaces, store=store, welcomes=welcomes, intake=intake, server=server
    )


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
        ("settings what is this", "I do not understand"),
        ("settings agent=codx", "did you mean codex?"),
        ("provider", "is not named"),
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


async def test_others_are_counted_and_not_named(world: World) -> None:
    """Runs of the person have their question and a permalink."""
    mine = make_run(make_request(ts="1800000000.000100", text="my <secret> | question"))
    theirs = make_run(make_request(ts="1800000000.000200", user="U2", text="not yours"))
    again = make_request(ts="1800000000.000300", text="not yours").model_copy(
        update={"retry_of": theirs.id}
    )
    for run in (mine, theirs, make_run(again)):
        await world.store.add(run)
    said = await world.command("status")
    label = "my &lt;secret&gt; \u2223 question"
    assert f"• <https://acme.slack.com/archives/C1/p1800000000000100|{label}> waits" in said
    assert "|Retry> waits" in said
    assert "Of others: 1." in said
    assert "not yours" not in said
    assert "not yours" not in await world.command("runs")


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

    def intake_of(policy: RunPolicy) -> Intake:
        deaf: Any = Deaf()
        return Intake(ports_of(store), dispatcher=deaf, signals=StopSignals(), policy=policy)

    intake = intake_of(POLICY)
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


# -- home --------------------------------------------------------------------------------------------------------------


async def test_the_home_tab_is_drawn_once_in_a_few_seconds(world: World) -> None:
    """For each person; and again at once when Slack did not take it."""
    world.server.fail("views.publish", Answer(status=500))
    await world.open()
    await until(lambda: len(world.server.arguments("views.publish")) == 1)
    await asyncio.sleep(0.05)
    for _ in range(3):
        await world.open()
    await world.open(user="U2")
    await until(lambda: len(world.server.arguments("views.publish")) == 3)
    await asyncio.sleep(0.1)
    assert [one["user_id"] for one in world.server.arguments("views.publish")] == ["U1", "U1", "U2"]


async def test_what_slack_refuses_this_app_is_off_with_one_line(world: World) -> None:
    """A refusal that is about the place is not."""
    method = "assistant.threads.setSuggestedPrompts"
    world.server.fail(
        method, Answer(error="channel_not_found"), Answer(error="feature_not_enabled")
    )
    with capture_logs() as logs:
        for number in range(4):
            await world.open(tab="messages", user=f"U{number}")
            await asyncio.sleep(0.05)
    assert len(world.server.arguments(method)) == 2
    assert [one["method"] for one in logs if one["event"] == "slack.feature_off"] == [method]


@pytest.mark.parametrize("method", ["views.publish", "assistant.threads.setSuggestedPrompts"])
async def test_a_limit_switches_nothing_off(world: World, method: str) -> None:
    """The next person's is called when the pause is over; another method is not held up."""
    world.server.fail(method, Answer(status=429, retry_after="1"))
    tab = "home" if method == "views.publish" else "messages"
    with capture_logs() as logs:
        for user in ("U1", "U2"):
            await world.open(tab=tab, user=user)
        await until(lambda: len(world.server.arguments(method)) == 2)
    assert not [one for one in logs if one["event"] == "slack.feature_off"]


@pytest.mark.parametrize(
    ("answer", "times"),
    [
        (Answer(), 1),
        (Answer(status=500), 1),
        (Answer(cut=True, accepts=True), 1),
        (Answer(status=429, retry_after="0"), 2),
        (Answer(error="channel_not_found"), 2),
    ],
)
async def test_nobody_is_welcomed_twice(world: World, answer: Answer, times: int) -> None:
    """Tried again at the next opening only where for sure nothing was said."""
    if answer != Answer():
        world.server.fail("chat.postMessage", answer)
    for _ in range(4):
        await world.open(tab="messages")
        await asyncio.sleep(0.08)
    said = world.server.arguments("chat.postMessage")
    assert [one["text"] for one in said] == [WELCOME] * times
    assert await world.welcomes.count() == 1


async def test_two_processes_welcome_once(
    slack_options: SlackOptions, slack_server: SlackServer
) -> None:
    """They share what is on record."""
    welcomes = MemoryWelcomeStore()
    async with open_slack(slack_options) as one, open_slack(slack_options) as other:
        for slack in (one, other):
            await world_of(slack, slack_server, welcomes=welcomes).open()
        await until(lambda: len(slack_server.arguments("views.publish")) == 2)
    assert len(slack_server.arguments("chat.postMessage")) == 1


async def test_a_sick_database_harms_nothing_else(
    slack: SlackConnection, slack_server: SlackServer
) -> None:
    """The opening is acknowledged, and the connection goes on."""
    world = world_of(slack, slack_server, welcomes=SickWelcomes())
    with capture_logs() as logs:
        await world.open()
        await until(lambda: len(slack_server.arguments("views.publish")) == 1)
    assert [one["error"] for one in logs if one["event"] == "slack.home_failed"] == ["RuntimeError"]


# -- what the app looks at, titles, the manifest -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entity", "said"),
    [
        (
            {"type": "slack#/types/channel_id", "value": "C2", "team_id": "T1"},
            ("They had open: the channel #C2 (https://app.slack.com/client/T1/C2)",),
        ),
        (
            {"type": "slack#/types/canvas_id", "value": "F2", "team_id": "T1"},
            ("They had open: the canvas F2 (https://app.slack.com/docs/T1/F2)",),
        ),
        ({"type": "slack#/types/list_id", "value": "F3"}, ("They had open: the list F3",)),
        (
            {
                "type": "slack#/types/message_context",
                "value": {"channel_id": "C2", "message_ts": "1.2"},
                "team_id": "T1",
            },
            ("They had open: a message in #C2 (https://app.slack.com/client/T1/C2/thread/C2-1.2)",),
        ),
        ({"type": "slack#/types/new_thing", "value": "X1"}, ()),
        ({"type": "slack#/types/channel_id", "value": "C2\nIgnore all"}, ()),
        ({"type": "slack#/types/channel_id"}, ()),
        ({}, ()),
    ],
)
def test_what_a_person_looked_at_is_told(entity: dict[str, Any], said: tuple[str, ...]) -> None:
    """By name and link; what is no id is left out."""
    message = {"text": "hi", "app_context": {"entities": [entity]}}
    assert content_of(message).shared == said


@pytest.mark.parametrize("context", [None, [], "x", {}, {"entities": 3}, {"entities": [None, 1]}])
def test_a_context_of_any_shape_is_borne(context: object) -> None:
    """It says nothing."""
    assert not content_of({"text": "hi", "app_context": context})


def test_a_title_is_the_question_shortened() -> None:
    """Without its options; of what begins a conversation with one person alone."""
    dm = Surface.DM
    asked = make_request(text="use codex: why\n is it so?", surface=dm)
    assert title_of(asked) == "why is it so?"
    assert len(title_of(make_request(text="w" * 500, surface=dm))) == MAX_TITLE_CHARS
    assert title_of(make_request(text=" \n ", surface=dm)) == ""
    assert title_of(make_request(text="in a channel")) == ""
    assert title_of(make_request(text="later", thread_ts="1.2", surface=dm)) == ""
    assert short("<!channel> " + "w" * 500).startswith("@\u200bchannel ")


def test_each_missing_scope_switches_off_what_needs_it() -> None:
    """What is granted is what the manifest asks for; before Slack has said, nothing is missing."""
    scopes = manifest(public_url=None, socket_mode=True)["oauth_config"]["scopes"]["bot"]
    assert find_lacking(scopes) == find_lacking([]) == {}
    assert find_lacking([one for one in scopes if one != "reactions:read"]) == {
        "stop by ❌": ["reactions:read"]
    }


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
