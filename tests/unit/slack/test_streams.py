"""A streamed answer against the look-alike Slack: what stands in the thread while it comes, at its end, and after everything that ends a stream."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from app.playground.slack.types import FakeSlackConfig
from app.runs.testing import PlannedStep, Progress, QueuePosition, StepState, ToolCall
from app.slack.streams import ROLL_AFTER_S, LiveAnswers, StreamContent
from sandbox_runtime.task_group import open_task_group
from tests.unit.slack.placing import DONE
from tests.unit.slack.streaming import CHANNEL, DM, open_scene
from tests.waiting import until

if TYPE_CHECKING:
    from app.runs.testing import Run
    from tests.unit.slack.streaming import Scene

LS = ToolCall(number=1, name="shell", argument="ls")


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with open_scene() as opened:
        yield opened


def progress(text: str = "", **more: Any) -> Progress:
    return Progress(phase="Working", elapsed_s=1, text=text, **more)


async def finished(scene: Scene, run: Run, *, resumed: bool = False) -> None:
    """One message stands, with the answer, and nothing of a stream is left."""
    delivery = await scene.slack.replies.finish(run, DONE, resumed=resumed)
    assert delivery.text == "sent"
    (message,) = scene.own(run)
    assert message.blocks[0]["text"] == "The answer."
    assert "task" not in str(message.blocks)
    assert scene.part(run) == (run.id, 0)
    assert message.stream is None or message.stream.state != "in_progress"


@pytest.mark.parametrize("channel", [DM, CHANNEL])
async def test_an_answer_is_streamed_and_becomes_a_message(scene: Scene, channel: str) -> None:
    """The thinking message is the stream; tools and plan are its cards, the text grows; the end is an edit like any other."""
    run = await scene.place(scene.ask(channel=channel))
    assert "Thinking" in scene.shown(run)
    assert "orion_stop" in scene.shown(run)
    plan = (PlannedStep(title="Read <!channel> it", state=StepState.RUNNING),)
    async with scene.slack.replies.live(run) as live:
        live.show(progress(tools=(LS,), plan=plan, steps=1))
        await scene.until_shown(run, "shell ls")
        assert "<!channel>" not in scene.shown(run)
        live.show(progress("Hello <!here> there, wo", tools=(replace(LS, state=StepState.FAILED),)))
        await scene.until_shown(run, "there, ")
        assert "<!here>" not in scene.shown(run)
        assert "wo'" not in scene.shown(run), "a word that is not whole yet"
        live.show(progress("Hello <!here> there, world. "))
        await scene.until_shown(run, "world. ")
    (message,) = scene.own(run)
    assert message.stream is not None
    assert message.stream.text.endswith("there, world. ")
    states = {task["title"]: task["status"] for task in message.stream.tasks.values()}
    assert states["shell ls"] == "error"
    assert scene.calls("chat.update") == scene.calls("chat.postMessage") == []
    await finished(scene, run)
    assert [len(scene.calls(f"chat.{name}")) for name in ("stopStream", "update")] == [1, 1]


async def test_the_first_text_goes_at_once(scene: Scene) -> None:
    """It does not wait for the second that is between two appends."""
    run = await scene.place(scene.ask())
    async with scene.slack.replies.live(run) as live:
        live.show(progress(tools=(LS,), steps=1))
        await scene.until_shown(run, "shell ls")
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        live.show(progress("Hello there", tools=(LS,), steps=1))
        await scene.until_shown(run, "Hello ")
        assert loop.time() - began_at < 0.7
        live.show(progress("Hello there now ", tools=(LS,), steps=1))
        await scene.until_shown(run, "now ")
        assert loop.time() - began_at > 0.9
    await finished(scene, run)


@pytest.mark.parametrize(
    "word",
    [
        *("channel_type_not_supported", "missing_scope", "unknown_method", "not_an_agent"),
        *("missing_recipient_team_id", "invalid_chunks"),
    ],
)
async def test_where_slack_takes_no_stream_the_message_is_posted(scene: Scene, word: str) -> None:
    """At once, in the same placing; Slack is not asked again in such a place, but elsewhere."""
    scene.fail("chat.startStream", error=word)
    first = await scene.place(scene.ask())
    second = await scene.place(scene.ask())
    assert len(scene.calls("chat.startStream")) == 1
    async with scene.slack.replies.live(first) as live:
        live.show(progress("Hello there "))
        await scene.until_shown(first, "Hello there")
    for run in (first, second):
        await finished(scene, run)
    await scene.place(scene.ask(channel=CHANNEL))
    assert len(scene.calls("chat.startStream")) == 2


@pytest.mark.parametrize(
    "fault",
    [
        *({"error": "message_not_in_streaming_state"}, {"error": "stopped_by_user"}),
        *({"error": "msg_too_long"}, {"error": "invalid_chunks"}),
        *({"drop_after_accept": True}, {"drop_before_accept": True}, {"status": 502}),
    ],
)
async def test_a_stream_that_takes_no_more_goes_on_by_edits(
    scene: Scene, fault: dict[str, Any]
) -> None:
    """On the same message, with all that was written, whatever Slack said; and nothing is added twice."""
    run = await scene.place(scene.ask())
    scene.fail("chat.appendStream", **fault)
    async with scene.slack.replies.live(run) as live:
        live.show(progress("All that was written "))
        await until(lambda: bool(scene.calls("chat.update")))
        await scene.until_shown(run, "All that was written")
        assert scene.shown(run).count("All that") == 1
        live.show(progress("All that was written and more "))
        await scene.until_shown(run, "and more")
    assert len(scene.calls("chat.appendStream")) <= 1
    await finished(scene, run)


async def test_a_rate_limit_is_waited_out_in_the_stream(scene: Scene) -> None:
    """Nothing of what was refused is lost, or said twice."""
    run = await scene.place(scene.ask())
    scene.fail("chat.appendStream", status=429, retry_after=1)
    async with scene.slack.replies.live(run) as live:
        live.show(progress("Hello there "))
        await scene.until_shown(run, "Hello there")
        assert scene.shown(run).count("Hello") == 1
    assert scene.calls("chat.update") == []
    await finished(scene, run)


async def test_a_stream_is_given_up_before_slack_seals_it(scene: Scene) -> None:
    """Four minutes after its start it becomes a message that is edited."""
    run = await scene.place(scene.ask())
    stream = scene.slack.replies._streams.driver(run)
    assert stream is not None
    stream.started_at_s -= ROLL_AFTER_S
    async with scene.slack.replies.live(run) as live:
        live.show(progress("Later "))
        await until(lambda: bool(scene.calls("chat.update")))
    assert scene.calls("chat.appendStream") == []
    assert len(scene.calls("chat.stopStream")) == 1
    await finished(scene, run)
    assert len(scene.calls("chat.stopStream")) == 1


@pytest.mark.parametrize("is_sealed", [False, True])
async def test_another_process_goes_on_by_edits(scene: Scene, *, is_sealed: bool) -> None:
    """It finds an open stream, or one that Slack has sealed: the message is the same, and there is no other."""
    run = await scene.place(scene.ask())
    async with scene.slack.replies.live(run) as live:
        live.show(progress("Before "))
        await scene.until_shown(run, "Before")
    scene.clock.by_s += 400 if is_sealed else 0
    run = replace(run, attempt=2)
    async with scene.another_process() as other:
        async with other.slack.replies.live(run) as live:
            live.show(progress("Before and after "))
            await scene.until_shown(run, "Before and after")
        await finished(other, run)


async def test_another_process_takes_over_a_stream_that_says_nothing_yet(scene: Scene) -> None:
    """Where one process hears and others work: it is added to, and its end is theirs."""
    run = replace(await scene.place(scene.ask()), attempt=1)
    async with scene.another_process() as other:
        async with other.slack.replies.live(run) as live:
            live.show(progress("Hello there ", tools=(LS,), steps=1))
            await scene.until_shown(run, "Hello there")
        assert "shell ls" in scene.shown(run)
        assert scene.shown(run).count("task_card") == 2
        await finished(other, run)
    assert len(scene.calls("chat.stopStream")) == len(scene.calls("chat.update")) == 1


async def test_a_posted_message_is_not_taken_for_a_stream(scene: Scene) -> None:
    """By who has posted it, at all; by another process once, and then it is edited."""
    position = QueuePosition(ahead_in_thread=1)
    asked = scene.ask()
    ts = await scene.slack.replies.place(asked, position=position, maybe_posted=False)
    run = replace(asked, reply_ts=ts, attempt=1)
    async with scene.slack.replies.live(run) as live:
        live.show(progress("Hello there "))
        await scene.until_shown(run, "Hello there")
    assert scene.calls("chat.appendStream") == []
    async with scene.another_process() as other:
        async with other.slack.replies.live(run) as live:
            live.show(progress("Hello there again "))
            await scene.until_shown(run, "again")
        assert len(scene.calls("chat.appendStream")) == 1
        await finished(other, run)


async def test_a_later_slice_goes_on_with_the_stream(scene: Scene) -> None:
    """In the same process; what was told is not told again, where the agent's words are all read again or not."""
    run = await scene.place(scene.ask())
    for text in ("One ", "One two ", "One two three "):
        async with scene.slack.replies.live(run) as live:
            live.show(progress("One "))
            live.show(progress(text))
            await scene.until_shown(run, text)
    assert scene.shown(run).count("One") == 1
    assert scene.calls("chat.update") == []
    await finished(scene, run)


async def test_a_slice_that_knows_only_the_newest_words_goes_on_by_edits(scene: Scene) -> None:
    """They cannot be added to what stands."""
    run = await scene.place(scene.ask())
    async with scene.slack.replies.live(run) as live:
        live.show(progress("One two "))
        await scene.until_shown(run, "One two")
    async with scene.slack.replies.live(run) as live:
        live.show(progress("three "))
        await until(lambda: bool(scene.calls("chat.update")))
    await finished(scene, run)


@pytest.mark.parametrize("text", ["three ", "One " * 3_000])
async def test_edits_as_planned_are_no_failure(scene: Scene, text: str) -> None:
    """A text that is another one, or too long for a stream, is told in the log, but warns nobody."""
    run = await scene.place(scene.ask())
    with capture_logs() as logs:
        async with scene.slack.replies.live(run) as live:
            live.show(progress("One "))
            await scene.until_shown(run, "One")
            live.show(progress(text))
            await until(lambda: bool(scene.calls("chat.update")))
        await finished(scene, run)
    assert [one["event"] for one in logs if one["log_level"] != "debug"] == ["slack.stream_left"]


@pytest.mark.parametrize("is_open", [True, False])
async def test_a_stream_whose_ts_was_never_recorded_is_found(
    scene: Scene, *, is_open: bool
) -> None:
    """A process that dies between the start and the record leaves one message, and the next one makes it the answer."""
    asked = scene.ask()
    await scene.place(asked)
    assert scene.part(asked) == (asked.id, 0)
    scene.clock.by_s += 0 if is_open else 400
    async with scene.another_process() as other:
        again = await other.place(asked, maybe_posted=True)
        assert again.reply_ts == scene.own(asked)[0].ts
        await finished(other, again)


async def test_an_answer_is_told_over_an_unknown_stream(scene: Scene) -> None:
    """The outcome was decided, and its process died: whoever tells it has no record of a message."""
    asked = scene.ask()
    await scene.place(asked)
    async with scene.another_process() as other:
        await finished(other, asked, resumed=True)


@pytest.mark.parametrize("name", ["drop_after_accept", "drop_before_accept"])
async def test_a_lost_start_leaves_one_message(scene: Scene, name: str) -> None:
    """Nobody knows whether it was carried out: it is looked for, and posted if it is not there."""
    scene.fail("chat.startStream", **{name: True})
    run = await scene.place(scene.ask())
    await finished(scene, run)


async def test_a_lost_start_that_cannot_be_looked_for_is_not_made_up_for(scene: Scene) -> None:
    """Placing fails, as when Slack cannot be reached, and the next try finds the message."""
    scene.fail("chat.startStream", drop_after_accept=True)
    scene.fail("conversations.replies", error="missing_scope")
    asked = scene.ask()
    with pytest.raises(ConnectionError):
        await scene.place(asked)
    run = await scene.place(asked, maybe_posted=True)
    await finished(scene, run)


async def test_a_stop_that_is_lost_costs_no_answer(scene: Scene) -> None:
    """The edit ends the stream."""
    run = await scene.place(scene.ask())
    scene.fail("chat.stopStream", error="fatal_error", times=6)
    await finished(scene, run)


@pytest.mark.parametrize("lost", ["", "drop_after_accept", "drop_before_accept"])
async def test_an_answer_whose_stream_cannot_be_ended_is_a_message_of_its_own(
    scene: Scene, lost: str
) -> None:
    """Whole and once, also where its post is lost or its record dies; the next one is not streamed there."""
    run = await scene.place(scene.ask())
    scene.fail("chat.stopStream", error="feature_not_enabled", times=99)
    scene.fail("chat.appendStream", error="feature_not_enabled", times=99)
    if lost:
        scene.fail("chat.postMessage", **{lost: True})
    async with scene.slack.replies.live(run) as live:
        live.show(progress("Hello there "))
        await until(lambda: bool(scene.calls("chat.stopStream")))
    delivery = await scene.slack.replies.finish(run, DONE, resumed=False)
    assert delivery.text == "sent"
    stream, answer = scene.own(run)
    assert (delivery.reply_ts, stream.ts) == (answer.ts, run.reply_ts)
    assert answer.blocks[0]["text"] == "The answer."
    await until(lambda: bool(scene.calls("chat.delete")))
    await scene.place(scene.ask())
    assert len(scene.calls("chat.startStream")) == 1
    async with scene.another_process() as other:
        again = await other.slack.replies.finish(run, DONE, resumed=True)
        assert (again.text, again.reply_ts) == ("sent", answer.ts)
        assert len(scene.own(run)) == 2
        scene.clock.by_s += 400
        await other.slack.replies.finish(run, DONE, resumed=True)
        await until(lambda: scene.own(run) == [answer])


async def test_a_stream_that_cannot_be_ended_is_taken_away_once_it_is_sealed(scene: Scene) -> None:
    """Slack lets nobody take it away before."""
    scene.clock.by_s = -400
    run = await scene.place(scene.ask())
    scene.fail("chat.update", error="streaming_state_conflict", times=2)
    scene.fail("chat.delete", error="cant_delete_message")
    scene.clock.by_s = 0
    delivery = await scene.slack.replies.finish(run, DONE, resumed=False)
    await until(lambda: [one.ts for one in scene.own(run)] == [delivery.reply_ts])
    assert len(scene.calls("chat.delete")) == 2


async def test_whoever_waits_or_asks_no_agent_has_a_message(scene: Scene) -> None:
    """Slack seals a stream long before a queue's end, and takes few of them."""
    waiting = scene.ask()
    position = QueuePosition(ahead_in_thread=1)
    await scene.slack.replies.place(waiting, position=position, maybe_posted=False)
    asked = scene.ask()
    request = asked.request.model_copy(update={"text": "settings"})
    await scene.place(replace(asked, request=request))
    stranger = asked.request.model_copy(update={"is_external": True})
    await scene.place(replace(scene.ask(), request=stranger))
    assert scene.calls("chat.startStream") == []


async def test_answers_that_are_final_only() -> None:
    """The thinking message stands, and nothing comes before the answer."""
    async with open_scene(answers=LiveAnswers(dm="final")) as scene:
        run = await scene.place(scene.ask())
        async with scene.slack.replies.live(run) as live:
            live.show(progress("Hello there "))
            await asyncio.sleep(0.3)
        assert scene.calls("chat.startStream") == scene.calls("chat.update") == []
        await finished(scene, run)


@pytest.mark.alone
async def test_twenty_streams_at_once_keep_to_slacks_limits() -> None:
    """Twenty runs write, all at once, at Slack's real limits: none is refused, each has its first text soon, and no answer waits for progress."""
    config = FakeSlackConfig(rate_limits="real", send_bot_events=False)
    async with asyncio.timeout(25), open_scene(config) as scene:
        runs = [await scene.place(scene.ask()) for _ in range(20)]
        assert len(scene.calls("chat.startStream")) == 20
        loop = asyncio.get_running_loop()
        waits: list[float] = []
        over = asyncio.Event()

        async def work(run: Run) -> None:
            async with scene.slack.replies.live(run) as live:
                live.show(progress("First words "))
                began_at = loop.time()
                await scene.until_shown(run, "First words")
                waits.append(loop.time() - began_at)
                words = "First words "
                while not over.is_set():
                    words += "more "
                    live.show(progress(words))
                    await asyncio.sleep(0.1)

        async with open_task_group() as group:
            for run in runs:
                group.create_task(work(run))
            await until(lambda: len(waits) == 20)
            await asyncio.sleep(3)
            began_at = loop.time()
            await scene.slack.replies.finish(runs[0], DONE, resumed=False)
            answered_s = loop.time() - began_at
            over.set()
        assert max(waits) < 2.0
        assert answered_s < 2.0
        assert [call for call in scene.fake_slack.api.calls if call["error"]] == []


def test_titles_fit_and_many_tools_share_a_card(run: Run) -> None:
    """No title is too long, and a stream has no more than forty cards."""
    content = StreamContent(run)
    chunks = [*content.begin("Thinking…")]
    for number in range(100):
        tool = ToolCall(number=number, name="shell", argument="x" * 2_000)
        chunks += content.add(progress(tools=(tool,), steps=number))
    titles = [chunk["title"] for chunk in chunks if "title" in chunk]
    assert max(map(len, titles)) == 250
    assert len({chunk["id"] for chunk in chunks if chunk["type"] == "task_update"}) <= 41
    left = {chunk["id"] for chunk in content.end()}
    assert {run.id} <= left


def test_text_without_blanks_is_streamed(run: Run) -> None:
    """Chinese has none; a secret or a token of Slack's has no such letters, and stays whole."""
    content = StreamContent(run)
    content.begin("Thinking…")
    written = "".join(
        str(chunk["text"])
        for text in ("你好", "你好世界<!chan", "你好世界<!channel>吗")
        for chunk in content.add(progress(text))
        if chunk["type"] == "markdown_text"
    )
    assert re.sub("[^\\w@]", "", written) == "你好世界@channel吗"
