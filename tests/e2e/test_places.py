"""Places beside messages, in the whole service: `/orion`, the message shortcut, ❌, the home tab, prompts, the welcome."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from app.aio import open_task_group
from app.playground.slack.types import (
    COLLEAGUE,
    DEFAULT_SCOPES,
    EXTERNAL,
    YOU,
    FakeSlackConfig,
    JsonObject,
)
from app.slack.actions import KEYS_ACTION, SEND_NOW_ACTION, STOP_ACTION
from app.slack.home import PROMPTS
from app.slack.limits import METHOD_RATES
from app.slack.manifest import ASK_SHORTCUT
from tests.e2e.broken_installs import NOWHERE
from tests.e2e.conftest import OpenOrion
from tests.e2e.harness import Stage, World, open_orion, open_world, run_of, text_of
from tests.e2e.orion_process import new_state_dir
from tests.ports import free_port
from tests.waiting import pauses

pytestmark = [pytest.mark.e2e, pytest.mark.bubblewrap, pytest.mark.timeout(180)]

SHOWN_WITHIN_S = 60.0


@pytest.fixture(scope="module")
async def places(
    anyio_backend: str, tmp_path_factory: pytest.TempPathFactory, prepared: Any
) -> AsyncIterator[Stage]:
    """An Orion that knows an operator and takes people's keys."""
    del anyio_backend
    directory = new_state_dir(tmp_path_factory.mktemp("places"))
    settings = {"ORION_OPERATORS": YOU, "ORION_OWN_KEYS_SECRET": "s" * 32}
    async with open_world() as world, open_orion(world, directory, prepared, **settings) as stage:
        yield stage


async def _said(stage: Stage, text: str, **place: str) -> str:
    answer = await stage.client.command(text, **place)
    assert answer["ok"], answer
    return str(answer["text"])


@asynccontextmanager
async def _no_member(stage: Stage, channel: str) -> AsyncIterator[None]:
    """Orion is out of the channel meanwhile."""
    await stage.client.channel(channel, bot_member=False)
    try:
        yield
    finally:
        await stage.client.channel(channel, bot_member=True)


async def _working(
    stage: Stage, text: str, *, channel: str = "general", user: str = YOU
) -> tuple[str, JsonObject]:
    """The ts of a question whose run goes on, and its thinking message."""
    ts = await stage.client.say(text, channel=channel, user=user)
    message = await stage.client.wait_for_reply(
        ts,
        lambda reply: run_of(reply) is not None and "offline model" in text_of(reply),
        channel=channel,
    )
    return ts, message


async def _ask_about(
    stage: Stage, ts: str, question: str, *, user: str = YOU, channel: str = "general"
) -> JsonObject:
    """The modal that was filled in and sent."""
    chosen = await stage.client.choose_shortcut(ts, ASK_SHORTCUT, user=user, channel=channel)
    assert chosen["ok"], chosen
    view: JsonObject = chosen["view"]
    sent = await stage.client.submit(view, {"question": question}, user=user)
    assert (sent["ok"], sent["errors"]) == (True, {})
    return view


async def _answered(stage: Stage, thread_ts: str, words: str, *, channel: str = "general") -> str:
    reply = await stage.client.wait_for_reply(
        thread_ts,
        lambda one: bool(one["is_bot"]) and words in text_of(one) and _is_final(one),
        channel=channel,
        timeout_s=60,
    )
    return text_of(reply)


def _is_final(message: JsonObject) -> bool:
    return any(block["type"] == "context_actions" for block in message["blocks"])


async def _home(stage: Stage, words: str, *, user: str = YOU) -> str:
    """What stands in the home tab, once these words do."""
    shown = ""
    async with asyncio.timeout(SHOWN_WITHIN_S):
        for pause_s in pauses():
            view = (await stage.client.home(user=user))["view"]
            shown = str(view["blocks"]) if view else ""
            if words in shown:
                return shown
            await asyncio.sleep(pause_s)
    raise AssertionError(shown)


async def test_the_command_answers_the_asker_alone(places: Stage) -> None:
    """Each word, within the acknowledgement; what is misspelt is told with all that there is."""
    await places.ask("@Orion what did I ask")
    assert "`status`" in await _said(places, "/orion")
    assert await _said(places, "/orion HELP") == await _said(places, "/orion")
    assert "Nothing of yours goes on or waits." in await _said(places, "/orion status")
    runs = await _said(places, "/orion runs")
    assert "/archives/C0GENERAL/p" in runs
    assert "what did I ask> answered" in runs
    assert "what did I ask" not in await _said(places, "/orion runs", user=COLLEAGUE)
    assert "`anthropic`" in await _said(places, "/orion agents")
    assert "Your budget: $0 spent today (UTC), no limit" in await _said(places, "/orion usage")
    assert "did you mean status?" in await _said(places, "/orion statu")
    assert "takes nothing behind it" in await _said(places, "/orion runs all of them")
    shown = await places.client.messages(user=YOU)
    assert any(one["ephemeral_to"] == YOU and "`status`" in one["text"] for one in shown)
    assert not any(
        one["ephemeral_to"] == YOU for one in await places.client.messages(user=COLLEAGUE)
    )


async def test_settings_are_the_same_by_either_door(places: Stage) -> None:
    """What a command keeps, a message tells, and the other way round; a channel's are changed where it hears of it."""
    assert "sandbox: `local` (setting)" in await _said(places, "/orion settings", user=COLLEAGUE)
    assert "Your defaults are changed" in await _said(places, "/orion local", user=COLLEAGUE)
    assert "sandbox: `local` (you)" in await places.ask("@Orion settings", user=COLLEAGUE)
    assert "forgotten" in await _said(places, "/orion settings reset", user=COLLEAGUE)
    assert "no sandbox 'vercel' here" in await _said(places, "/orion provider vercel")
    assert "provider NAME`; there are: `local`" in await _said(places, "/orion provider")
    said = await _said(places, "/orion settings channel agent=anthropic")
    assert "A channel hears who changes its defaults" in said
    assert "I do not understand" in await _said(places, "/orion settings please, whatever")


@pytest.mark.long
async def test_the_command_stops_what_its_asker_asked_in_this_channel(places: Stage) -> None:
    """Theirs alone, there alone; it says what; nothing is left for a second one."""
    mine, _ = await _working(places, "@Orion !slow 40 mine")
    theirs, _ = await _working(places, "@Orion !slow 40 theirs", user=COLLEAGUE)
    elsewhere, _ = await _working(places, "@Orion !slow 40 elsewhere", channel="random")
    assert "!slow 40 mine" in await _said(places, "/orion status")
    said = await _said(places, "/orion stop")
    assert said.startswith("I stop 1:")
    assert "!slow 40 mine" in said
    assert "theirs" not in said
    assert (await places.ended(mine)).state == "stopped"
    assert "Nothing that you asked here goes on." in await _said(places, "/orion stop")
    for ts, channel, user in ((theirs, "general", COLLEAGUE), (elsewhere, "random", YOU)):
        record = await places.record(ts, channel=channel)
        assert record.stop_requested_by is None
        assert "I stop 1:" in await _said(places, "/orion stop", channel=channel, user=user)
        assert (await places.ended(ts, channel=channel)).state == "stopped"


@pytest.mark.long
async def test_a_cross_on_the_thinking_message_stops_it(places: Stage) -> None:
    """Any other reaction, on any other message, is nothing; once it is over, so is a cross."""
    ts, message = await _working(places, "@Orion !slow 40 crossed")
    await places.client.react(message["ts"], "eyes", user=COLLEAGUE)
    await places.client.react(ts, "x", user=COLLEAGUE)
    await asyncio.sleep(0.5)
    assert (await places.record(ts)).stop_requested_by is None
    await places.client.react(message["ts"], "x", user=COLLEAGUE)
    assert (await places.ended(ts)).state == "stopped"
    assert f"Stopped by <@{COLLEAGUE}>" in text_of(await places.answer(ts))
    await places.client.react(message["ts"], "x", user=YOU)
    assert await _said(places, "/orion help")


@pytest.mark.long
async def test_people_of_other_companies_stop_nothing(places: Stage) -> None:
    """Neither by a cross, a word nor a button, nor do they see a log; in their channel a person's own cross counts."""
    stage = places
    at: dict[str, Any] = {"channel": "partners"}
    ts, message = await _working(stage, "@Orion !slow 60 ours", **at)
    queued = await stage.client.say("@Orion hello", thread_ts=ts, **at)
    waiting = await stage.client.wait_for_reply(
        ts, lambda reply: "Queued behind" in text_of(reply), **at
    )
    await stage.client.react(message["ts"], "x", user=EXTERNAL, **at)
    for word in ("stop", "mute"):
        await stage.client.say(word, thread_ts=ts, user=EXTERNAL, **at)
    await stage.client.press(message, STOP_ACTION, user=EXTERNAL)
    await stage.client.press(waiting, SEND_NOW_ACTION, user=EXTERNAL)
    await stage.client.react(
        message["ts"], "x", user=COLLEAGUE, **at
    )  # whose company Slack does not tell
    await asyncio.sleep(1)
    for asked in (ts, queued):
        assert (await stage.record(asked, **at)).stop_requested_by is None
    assert not (await stage.record(queued, **at)).request.is_urgent
    await stage.client.react(message["ts"], "x", user=YOU, **at)
    assert (await stage.ended(ts, **at)).state == "stopped"
    assert (await stage.ended(queued, **at)).state == "succeeded"


@pytest.mark.long
async def test_the_shortcut_asks_in_the_message_s_thread(places: Stage) -> None:
    """The agent has the message; one that is sent twice is one run; the person's own words are the question."""
    ts = await places.client.say("the deploy of teapot failed at 04:18", user=COLLEAGUE)
    await _ask_about(places, ts, f"why is that? {places.world.config.bot_token}")
    told = await _answered(places, ts, "why is that")
    assert "asked: “why is that? " in told
    assert places.world.config.bot_token not in told.partition("asked:")[2].partition("”")[0]
    asked = [
        one for one in await places.world.model_requests() if "why is that" in str(one["body"])
    ]
    assert "the deploy of teapot failed at 04:18" in str(asked[-1]["body"])
    assert "that is asked about" in str(asked[-1]["body"])
    reply = await places.client.say("and the kettle too", user=COLLEAGUE, thread_ts=ts)
    await _ask_about(places, reply, "and this one", user=COLLEAGUE)
    assert "and this one" in await _answered(places, ts, "and this one")
    thread = await places.client.replies(ts)
    assert len({run_of(one) for one in thread if run_of(one)}) == 2


@pytest.mark.long
async def test_a_modal_sent_twice_is_one_run(places: Stage) -> None:
    """Whoever presses Ask twice before Slack has closed it, asked once."""
    ts = await places.client.say("twice is once", user=COLLEAGUE)
    chosen = await places.client.choose_shortcut(ts, ASK_SHORTCUT)
    fake = places.world.fake_slack
    payload = fake.modals.submit(chosen["view"]["id"], {"question": "sent twice"}, user=YOU)
    async with open_task_group() as group:
        sent = [group.create_task(fake.deliverer.send_interaction(payload)) for _ in range(2)]
    assert all(one.result().ok for one in sent)
    await _answered(places, ts, "sent twice")
    thread = await places.client.replies(ts)
    assert len({run_of(one) for one in thread if run_of(one)}) == 1


async def test_where_orion_is_no_member_the_modal_says_how_to_go_on(places: Stage) -> None:
    """It asks for the channel, never for what is said in it; nothing can be sent."""
    ts = await places.client.say("a secret of this channel", channel="random")
    async with _no_member(places, "random"):
        before = len(await places.client.calls())
        chosen = await places.client.choose_shortcut(ts, ASK_SHORTCUT, channel="random")
        assert "submit" not in chosen["view"]
        assert "forward the message" in str(chosen["view"]["blocks"])
        made = {call["method"] for call in (await places.client.calls())[before:]}
    assert {"conversations.info", "views.open"} <= made
    assert not {one for one in made if one.startswith(("conversations.h", "conversations.r"))}


async def test_the_home_tab_shows_ones_own_and_operators_the_whole(places: Stage) -> None:
    """Nobody's text is another's; the button for keys works there; looked at again at once it is drawn once more, seconds later."""
    await places.ask("@Orion the colleague's own question", user=COLLEAGUE)
    await places.ask("@Orion the operator's own question")
    await places.client.open_home()
    mine = await _home(places, "the operator's own question")
    assert "the colleague's own question" not in mine
    assert "How it goes, for operators" in mine
    await places.client.open_home(user=COLLEAGUE)
    theirs = await _home(places, "the colleague's own question", user=COLLEAGUE)
    assert "the operator's own question" not in theirs
    assert "for operators" not in theirs
    published = len(await places.client.calls("views.publish"))
    for _ in range(3):
        await places.client.open_home(user=COLLEAGUE)
    await places.client.open_home(user=EXTERNAL)
    await _home(places, "Your runs", user=EXTERNAL)
    assert len(await places.client.calls("views.publish")) <= published + 2
    pressed = await places.client.press_home(KEYS_ACTION)
    assert pressed["ok"]
    assert pressed["view"]["callback_id"] == "orion_keys"


@pytest.mark.long
async def test_a_direct_message_has_prompts_a_title_and_one_welcome(places: Stage) -> None:
    """And what the person looks at beside it reaches the agent by name and link, and is not fetched."""
    for _ in range(2):
        await places.client.open_home(tab="messages")
        await places.client.open_home(tab="home")
    async with asyncio.timeout(SHOWN_WITHIN_S):
        while (await places.client.home())["prompts"] is None:
            await asyncio.sleep(0.05)
    prompts = (await places.client.home())["prompts"]["prompts"]
    assert [one["title"] for one in prompts] == [title for title, _ in PROMPTS]
    channel = places.channel_id(YOU)
    looked_at = "1795302364.000100"
    at = {
        "type": "slack#/types/message_context",
        "value": {"channel_id": "C0RANDOM", "message_ts": looked_at},
        "team_id": "T0PLAYGROUND",
    }
    before = len(await places.client.calls())
    ts = await places.client.say("what is that here", channel=channel, looking_at=[at])
    await places.answer(ts, channel=channel)
    asked = [
        one
        for one in await places.world.model_requests()
        if "what is that here" in str(one["body"])
    ]
    told = "They had open: a message in #random (https://app.slack.com/client/T0PLAYGROUND/C0RANDOM/thread/C0RANDOM-1795302364.000100)"
    assert told in str(asked[-1]["body"])
    # Its newest messages may be read at any moment, to find what nobody heard; that names no message.
    calls = [one for one in (await places.client.calls())[before:] if one["channel"] == "C0RANDOM"]
    read = [
        one for one in calls if one["method"] in ("conversations.history", "conversations.replies")
    ]
    assert not [one for one in read if one["latest"] or looked_at in one.values()]
    async with asyncio.timeout(SHOWN_WITHIN_S):
        while (await places.client.home())["titles"].get(ts) != "what is that here":
            await asyncio.sleep(0.05)
    said = await places.client.messages(channel=channel)
    assert len([one for one in said if "I say this once." in one["text"]]) == 1


@pytest.mark.long
async def test_all_of_it_over_the_socket(world: World, start_orion: OpenOrion) -> None:
    """Commands, shortcuts, reactions and openings come the same way, and are answered in the acknowledgement."""
    async with start_orion(world, SLACK_APP_TOKEN=world.config.app_token) as stage:
        assert "`status`" in await _said(stage, "/orion")
        ts = await stage.client.say("over the socket", user=COLLEAGUE)
        await _ask_about(stage, ts, "and what is this")
        assert "and what is this" in await _answered(stage, ts, "and what is this")
        asked, message = await _working(stage, "@Orion !slow 40")
        await stage.client.react(message["ts"], "x")
        assert (await stage.ended(asked)).state == "stopped"
        await stage.client.open_home()
        await _home(stage, "Your runs")
        assert {entry["via"] for entry in await stage.client.deliveries()} == {"socket"}


@pytest.mark.long
async def test_people_without_rights_get_a_reason_and_nothing_else(
    world: World, start_orion: OpenOrion
) -> None:
    """By command, by shortcut, by reaction, at home; people of other companies neither."""
    async with start_orion(world, ORION_ALLOWED_USERS=YOU) as stage:
        ts, message = await _working(stage, "@Orion !slow 40")
        for words in ("stop", "runs", "settings agent=anthropic", "local"):
            said = await _said(stage, f"/orion {words}", user=COLLEAGUE)
            assert "not on the list of people" in said
        await stage.client.react(message["ts"], "x", user=COLLEAGUE)
        await stage.client.open_home(user=COLLEAGUE)
        assert "not on the list" in await _home(stage, "not on the list", user=COLLEAGUE)
        about = await stage.client.say("forbidden", user=COLLEAGUE)
        await _ask_about(stage, about, "may I", user=COLLEAGUE)
        refused = await stage.client.wait_for_reply(
            about, lambda one: one["ephemeral_to"] == COLLEAGUE
        )
        assert "not on the list of people" in refused["text"]
        said = await _said(stage, "/orion runs", user=EXTERNAL, channel="partners")
        assert "other organisations" in said
        chosen = await stage.client.choose_shortcut(
            await stage.client.say("shared", channel="partners"),
            ASK_SHORTCUT,
            user=EXTERNAL,
            channel="partners",
        )
        assert (chosen["ok"], chosen["view"]) == (True, None)
        assert (await stage.record(ts)).stop_requested_by is None
        await _said(stage, "/orion stop")
        await stage.ended(ts)
        theirs = await stage.client.messages(channel=stage.channel_id(COLLEAGUE))
        assert theirs == []


@pytest.mark.long
async def test_an_old_manifest_is_told_and_what_it_lacks_is_off(start_orion: OpenOrion) -> None:
    """One log line for each scope, a line of `doctor` with the fix; questions are answered as before."""
    lacking = {"commands", "reactions:read", "users:read", "assistant:write", "channels:history"}
    config = FakeSlackConfig(rate_limits="off", scopes=frozenset(DEFAULT_SCOPES - lacking))
    async with open_world(config) as world, start_orion(world) as stage:
        await stage.client.open_home(tab="messages", user=COLLEAGUE)
        async with asyncio.timeout(SHOWN_WITHIN_S):
            while not await stage.client.calls("assistant.threads.setSuggestedPrompts"):
                await asyncio.sleep(0.05)
        assert "still here" in await stage.ask("@Orion still here")
        lines = stage.orion.log_lines("slack.feature_off")
        off = {one["lacks"]: one["feature"] for one in lines}
        assert len(lines) == len(off)
        behind = "what was said before, replies without a mention, and catching up"
        assert off == {
            "channels:history": f"{behind} in public channels",
            "users:read": "names of people",
            "assistant:write": "suggested prompts",
            "commands": "/orion and Ask Orion about this",
            "reactions:read": "stop by ❌",
        }
        token = config.config_token
        _, told = await stage.cli(
            "doctor",
            ORION_PORT=str(free_port()),
            SLACK_CONFIG_TOKEN=token,
            ORION_PUBLIC_URL=NOWHERE,
        )
        slack, compared = (
            next(line for line in told.splitlines() if line[5:].startswith(part))
            for part in ("slack ", "manifest ")
        )
        assert slack.startswith("warn slack      bot user")
        assert "stop by ❌ (lacks reactions:read); paste `orion manifest` into" in slack
        assert "not compared: bots.info: missing_scope  ->  paste `orion manifest`" in compared


@pytest.mark.long
async def test_a_plan_without_agent_features_and_limits_everywhere(start_orion: OpenOrion) -> None:
    """Prompts and titles are off with one line each; everything else works, also when Slack wants to be left alone at each method."""
    config = FakeSlackConfig(rate_limits="off", has_agents=False)
    async with open_world(config) as world, start_orion(world) as stage:
        for _ in range(3):
            await stage.client.open_home(tab="messages", user=COLLEAGUE)
        assert "without agents" in await stage.ask("@Orion without agents")
        async with asyncio.timeout(SHOWN_WITHIN_S):
            while not stage.orion.log_lines("slack.feature_off"):
                await asyncio.sleep(0.05)
        (line,) = stage.orion.log_lines("slack.feature_off")
        assert line["method"] == "assistant.threads.setSuggestedPrompts"
        assert len(stage.orion.log_lines("slack.status_unavailable")) == 1

        await stage.client.faults("views.publish", status=429, retry_after=1)
        await stage.client.open_home()
        async with asyncio.timeout(SHOWN_WITHIN_S):
            while not stage.orion.log_lines("slack.rate_limited"):
                await asyncio.sleep(0.05)
        await stage.client.open_home()
        await _home(stage, "without agents")
        ts = await stage.client.say("limited", user=COLLEAGUE)
        await stage.client.faults("conversations.info", status=429, retry_after=1)
        chosen = await stage.client.choose_shortcut(ts, ASK_SHORTCUT)
        assert "try again in a moment" in str(chosen["view"]["blocks"])
        # Slack's pause, and until two calls may go at the rate that comes after it.
        await asyncio.sleep(1 + 1 / METHOD_RATES["conversations.info"].per_s)
        await stage.client.faults("views.open", error="expired_trigger_id")
        chosen = await stage.client.choose_shortcut(ts, ASK_SHORTCUT)
        assert (chosen["ok"], chosen["view"]) == (True, None)
        await _ask_about(stage, ts, "at last")
        assert "at last" in await _answered(stage, ts, "at last")
