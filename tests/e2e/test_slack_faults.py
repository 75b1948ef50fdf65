"""A sick Slack: what can still be told is told once; what cannot is recorded, and nothing tries for ever."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from app.playground.slack.types import BOT_USER_ID
from app.slack.api import CALL_TIMEOUT_S
from tests.e2e.conftest import OpenOrion
from tests.e2e.fault_table import fault
from tests.e2e.harness import Stage, World, file_names, open_world, text_of

pytestmark = [pytest.mark.e2e, pytest.mark.bubblewrap, pytest.mark.timeout(180)]

LIMITED_ONCE = (
    *("chat.postMessage", "chat.update", "conversations.replies", "users.info"),
    *("agents.sessions.setStatus", "assistant.threads.setStatus"),
    *("files.getUploadURLExternal", "files.completeUploadExternal"),
    *("chat.startStream", "chat.appendStream", "chat.stopStream"),
)
"""The others have tests of their own: catching up in tests/faults, surfaces in test_places.py."""
SLOW_WORDS = "offline model and I write"
QUIET_S = 6.0


@pytest.fixture
async def stage(shared: Stage) -> AsyncIterator[Stage]:
    """The shared Orion, with a Slack that is well again afterwards."""
    yield shared
    await shared.client.switches(outage=False, clear_faults=True)
    await shared.client.channel("random", archived=False)


@pytest.mark.long
async def test_rate_limits_delay_but_lose_nothing(stage: Stage) -> None:
    """429 on posting and on updating: the thread still ends in one message, the answer."""
    await stage.client.faults("chat.postMessage", status=429, retry_after=1, times=2)
    await stage.client.faults("chat.update", status=429, retry_after=1, times=3)
    ts = await stage.client.say("@Orion patience")
    answer = await stage.answer(ts)
    assert "patience" in text_of(answer)
    assert len(await stage.client.replies(ts)) == 1
    fault("Slack: 429 with Retry-After").assert_holds(await stage.record(ts))


@pytest.mark.long
async def test_slack_wants_to_be_left_alone_at_every_method(start_orion: OpenOrion) -> None:
    """Once at each that runs use: files, answers and streams are there a little later, each once."""
    async with open_world() as world, start_orion(world) as stage:
        for method in LIMITED_ONCE:
            await stage.client.faults(method, status=429, retry_after=1)
        script = "mkdir -p out && cp in/notes.txt out/copy.txt && echo copied"
        ts = await stage.client.say(f"@Orion run: {script}", files={"notes.txt": b"some notes"})
        assert "copied" in text_of(await stage.answer(ts))
        again = await stage.client.say("@Orion and again", thread_ts=ts)
        assert "and again" in text_of(await stage.answer(again, thread_ts=ts))
        for words in ("!slow 3", "!slow 4"):  # what is not begun as a stream goes on without one
            asked = await stage.client.say(words, channel="D0YOU")
            assert SLOW_WORDS in text_of(await stage.answer(asked, channel="D0YOU"))
            assert len(await stage.bot_messages(asked, channel="D0YOU")) == 1
        replies = await stage.client.replies(ts)
        assert [name for reply in replies for name in file_names(reply)] == ["copy.txt"]
        limited = [line["method"] for line in stage.orion.log_lines("slack.rate_limited")]
        assert sorted(limited) == sorted(LIMITED_ONCE)


@pytest.mark.long
@pytest.mark.parametrize(
    ("status", "row"),
    [
        (500, "Slack: 500"),
        (502, "Slack: 502 of a gateway, in HTML"),
    ],
)
async def test_server_errors_are_tried_again(stage: Stage, status: int, row: str) -> None:
    """On posting and on updating."""
    for method in ("chat.postMessage", "chat.update"):
        await stage.client.faults(method, status=status, is_html=status != 500, times=2)
    ts = await stage.client.say("@Orion again")
    assert "again" in text_of(await stage.answer(ts))
    assert len(await stage.client.replies(ts)) == 1
    fault(row).assert_holds(await stage.record(ts))


@pytest.mark.long
async def test_a_post_whose_answer_is_late_is_not_posted_again(stage: Stage) -> None:
    """Slack takes the message and answers after our time-out: it is found by its metadata instead."""
    await stage.client.faults("chat.postMessage", answer_after_s=CALL_TIMEOUT_S + 1)
    before = len(await stage.client.calls("chat.postMessage"))
    ts = await stage.client.say("@Orion late")
    assert "late" in text_of(await stage.answer(ts))
    assert len(await stage.client.replies(ts)) == 1
    assert len(await stage.client.calls("chat.postMessage")) == before + 1
    fault("Slack: time-out after the message was posted").assert_holds(await stage.record(ts))


async def test_a_post_whose_answer_was_lost_is_not_posted_again(stage: Stage) -> None:
    """The connection is cut after Slack took the message: it is found by its metadata instead."""
    await stage.client.faults("chat.postMessage", drop_after_accept=True)
    before = len(await stage.client.calls("chat.postMessage"))
    ts = await stage.client.say("@Orion cut off")
    assert "cut off" in text_of(await stage.answer(ts))
    assert len(await stage.client.replies(ts)) == 1
    assert len(await stage.client.calls("chat.postMessage")) == before + 1
    row = fault("Slack: connection cut after the message was posted")
    row.assert_holds(await stage.record(ts))


@pytest.mark.long
async def test_a_post_that_never_arrived_is_posted_again(stage: Stage) -> None:
    """The connection is cut before Slack took the message."""
    await stage.client.faults("chat.postMessage", drop_before_accept=True)
    ts = await stage.client.say("@Orion lost on the way")
    assert "lost on the way" in text_of(await stage.answer(ts))
    assert len(await stage.client.replies(ts)) == 1
    row = fault("Slack: connection cut before the message was posted")
    row.assert_holds(await stage.record(ts))


@pytest.mark.long
async def test_a_deleted_thinking_message_is_replaced_by_the_answer(stage: Stage) -> None:
    """Whoever took it away under a run finds the answer in a message of its own, once."""
    ts = await stage.client.say("@Orion !slow 9")
    message = await stage.client.wait_for_reply(ts, lambda reply: SLOW_WORDS in text_of(reply))
    await stage.client.delete(message["ts"], user=BOT_USER_ID)
    answer = await stage.answer(ts)
    assert "to press Stop" in text_of(answer)
    assert [reply["ts"] for reply in await stage.client.replies(ts)] == [answer["ts"]]
    fault("Slack: thinking message deleted").assert_holds(await stage.record(ts))


@pytest.mark.long
async def test_an_answer_waits_for_slack_to_come_back(stage: Stage) -> None:
    """Eleven seconds without Slack, in which the run ends: the answer arrives afterwards."""
    ts = await stage.client.say("@Orion !slow 8")
    await stage.client.wait_for_reply(ts, lambda reply: SLOW_WORDS in text_of(reply))
    await stage.client.switches(outage=True)
    await asyncio.sleep(11)
    assert not (await stage.record(ts)).state.is_final
    await stage.client.switches(outage=False)
    assert "to press Stop" in text_of(await stage.answer(ts))
    fault("Slack: down while a run ends").assert_holds(await stage.record(ts))


async def test_a_revoked_token_ends_the_run_without_an_answer(
    world: World, start_orion: OpenOrion
) -> None:
    """The run ends, its record says why nobody was told, and nothing retries for ever."""
    # An Orion of its own: without a token it also gives up Slack's native Stop until it is started again.
    async with start_orion(world) as stage:
        ts = await stage.client.say("@Orion !slow 9")
        await stage.client.wait_for_reply(ts, lambda reply: SLOW_WORDS in text_of(reply))
        await stage.client.switches(token_revoked=True)
        await stage.ended(ts)
        await _assert_untold(stage, ts, row="Slack: token revoked")
        await _assert_quiet(stage)


@pytest.mark.long
async def test_an_archived_channel_ends_the_run_without_an_answer(stage: Stage) -> None:
    """As above; and a question that was waiting there ends too."""
    ts = await stage.client.say("@Orion !slow 12", channel="random")
    await stage.client.wait_for_reply(
        ts, lambda reply: SLOW_WORDS in text_of(reply), channel="random"
    )
    second = await stage.client.say("@Orion next", channel="random", thread_ts=ts)
    await stage.thinking(second, channel="random", thread_ts=ts)
    await stage.client.channel("random", archived=True)
    waiting = await stage.ended(second, channel="random")
    assert waiting.delivery == "failed(is_archived)"
    await stage.ended(ts, channel="random")
    await _assert_untold(stage, ts, row="Slack: channel archived", channel="random")
    await _assert_quiet(stage)


async def _assert_untold(stage: Stage, ts: str, *, row: str, channel: str = "general") -> None:
    """The record, as the operator sees it, the metric and the trace say that nobody was told, and why."""
    record = await stage.record(ts, channel=channel)
    expected = fault(row)
    expected.assert_holds(record)
    code, output = await stage.cli("runs", "show", record.id, "--json")
    assert code == 0, output
    assert json.loads(output)["delivery"] == expected.delivery
    metrics = (await stage.world.http.get(f"{stage.orion.url}/metrics")).text
    assert f'orion_deliveries{{delivery="{expected.delivery}"}}' in metrics
    word = expected.delivery.removeprefix("failed(").rstrip(")")
    assert word in json.dumps(await stage.world.whole_trace(record.trace_id))


async def _assert_quiet(stage: Stage) -> None:
    """No more calls about messages; the status call and the health check are not ours to count."""

    async def calls() -> int:
        return len([call for call in await stage.client.calls() if "chat." in call["method"]])

    before = await calls()
    await asyncio.sleep(QUIET_S)
    assert await calls() == before
