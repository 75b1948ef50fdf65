"""A question becomes an answer: at once a sign of life, then one message, in the right place, with the right history."""

import asyncio
from collections.abc import Callable
from datetime import datetime
from itertools import pairwise

import pytest

from app.errors import ErrorCode
from app.playground.slack.types import BOT_USER_ID, COLLEAGUE, YOU
from tests.e2e.conftest import OpenOrion
from tests.e2e.harness import (
    Stage,
    World,
    blocks_of_type,
    has_stop_button,
    part_of,
    run_of,
    text_of,
)

pytestmark = [pytest.mark.e2e, pytest.mark.bubblewrap, pytest.mark.timeout(180)]

PLACED_WITHIN_S = 1.0


async def test_a_mention_is_answered_in_its_thread(shared: Stage) -> None:
    """A thinking message stands in the thread first, and that very message becomes the one answer."""
    ts = await shared.client.say("@Orion good morning, number 4711")
    answer = await shared.answer(ts)
    versions = await shared.client.versions(answer)
    assert "Thinking" in versions[0]["text"]
    assert has_stop_button(versions[0])
    replies = await shared.client.replies(ts)
    assert [reply["ts"] for reply in replies] == [answer["ts"]]
    assert answer["thread_ts"] == ts
    assert "number 4711" in str(blocks_of_type(answer, "markdown")[0]["text"])
    assert run_of(answer) == shared.run_id(ts)
    assert part_of(answer) == 0
    record = await shared.record(ts)
    assert (record.state, record.delivery, record.attempt) == ("succeeded", "sent", 1)
    assert record.result.usage.model_calls == 1


@pytest.mark.long
async def test_the_thinking_message_stands_within_a_second(
    shared: Stage, record_property: Callable[[str, object], None]
) -> None:
    """Once the service is warm, by the fake Slack's clock, three times of three."""
    # In a channel of its own: Slack takes a message a second, and other tests have said much in the first one.
    await shared.ask("@Orion warm up", channel="random")
    placed, answered = [], []
    for number in range(3):
        ts = await shared.client.say(f"@Orion question {number}", channel="random")
        answer = await shared.answer(ts, channel="random")
        placed.append(round(float(answer["ts"]) - float(ts), 3))
        last = (await shared.client.versions(answer))[-1]["at"]
        answered.append(round(datetime.fromisoformat(last).timestamp() - float(ts), 3))
    record_property("mention to thinking message [s]", placed)
    record_property("mention to answer [s]", answered)
    assert max(placed) < PLACED_WITHIN_S


async def test_one_message_is_one_run_however_often_it_is_delivered(shared: Stage) -> None:
    """The twin events of a mention, and redeliveries with and without Slack's header, change nothing."""
    ts = await shared.client.say("@Orion just once please")
    before = await shared.answer(ts)
    delivered = await shared.deliveries(ts, at_least=2)
    assert sorted(entry["type"] for entry in delivered) == ["app_mention", "message"]
    for entry in delivered:
        for with_header in (True, False):
            await shared.client.redeliver(entry["event_id"], with_header=with_header)
    again = await shared.deliveries(ts, at_least=6)
    assert [entry["status"] for entry in again] == [200] * 6
    # The engine looks for work every 0.1 s: a second run would have posted by then.
    await asyncio.sleep(1)
    after = await shared.client.replies(ts)
    assert [(reply["ts"], reply["version"]) for reply in after] == [
        (before["ts"], before["version"])
    ]
    assert len(shared.orion.log_lines("run.started")) == len(
        {line["run_id"] for line in shared.orion.log_lines("run.started")}
    )


async def test_a_direct_message_needs_no_mention_and_is_answered_in_its_thread(
    shared: Stage,
) -> None:
    """A top-level DM is answered below itself, and a follow-up there knows what was said before."""
    ts = await shared.client.say("my favourite colour is heliotrope", channel=YOU)
    answer = await shared.answer(ts, channel=YOU)
    assert answer["thread_ts"] == ts
    follow_up = await shared.ask("and now?", channel=YOU, thread_ts=ts)
    assert "Before that you wrote: “my favourite colour is heliotrope”" in follow_up
    assert "and I answered: “Hello!" in follow_up
    assert len(await shared.client.replies(ts, channel=YOU)) == 3


async def test_a_mention_in_a_thread_sees_what_others_wrote_there(shared: Stage) -> None:
    """Messages of other people in the thread reach the model, with their authors' names."""
    root = await shared.client.say("The build is red since Tuesday", user=COLLEAGUE)
    await shared.client.say("I suspect the cache", thread_ts=root)
    answer = await shared.ask("@Orion what do you think?", thread_ts=root)
    assert "what do you think?" in answer
    request = next(
        request["body"]
        for request in reversed(await shared.world.model_requests())
        if "what do you think?" in str(request["body"]["messages"][-1])
    )
    seen = str(request["messages"])
    assert "Sam Colleague: The build is red since Tuesday" in seen or (
        "Sam: The build is red since Tuesday" in seen
    )
    assert "You: I suspect the cache" in seen


@pytest.mark.long
async def test_a_message_with_a_file_is_accepted(shared: Stage) -> None:
    """A `file_share` message is work like any other, and the file's name is told to the model."""
    ts = await shared.client.say("@Orion look at this", files={"measurements.csv": b"1,2\n3,4\n"})
    answer = text_of(await shared.answer(ts))
    assert "look at this" in answer
    assert "measurements.csv" in answer


async def test_what_is_not_addressed_to_orion_is_left_alone(shared: Stage) -> None:
    """No mention, an edit that adds one, a deletion, and the bot's own or another bot's mention start nothing."""
    quiet = await shared.client.say("nobody asked a machine")
    edited = await shared.client.say("will be edited")
    await shared.client.edit(edited, "@Orion edited in")
    deleted = await shared.client.say("will be deleted")
    await shared.client.delete(deleted)
    workspace = shared.world.fake_slack.workspace
    own = workspace.say(user=BOT_USER_ID, channel_ref="general", typed="<@U0ORION> talks to itself")
    control = await shared.client.say("@Orion this one counts")
    await shared.answer(control)
    for ts in (quiet, edited, own.ts):
        assert await shared.client.replies(ts) == []
        assert await shared.orion.run(shared.run_id(ts)) is None
    assert await shared.orion.run(shared.run_id(deleted)) is None


@pytest.mark.long
async def test_a_command_is_shown_while_it_runs_and_its_output_is_quoted(shared: Stage) -> None:
    """Progress names the tool and its argument; the answer quotes what the command printed."""
    ts = await shared.client.say("@Orion run: ls -la && sleep 4")
    answer = await shared.answer(ts)
    assert "total " in text_of(answer)
    versions = await shared.client.versions(answer)
    shown = [text_of(version) for version in versions[:-1]]
    assert any("shell" in text and "ls -la" in text for text in shown), shown
    assert all(has_stop_button(version) for version in versions[:-1])


@pytest.mark.long
async def test_each_update_says_something_new(shared: Stage) -> None:
    """With several steps, every version differs from the one before in more than the elapsed time."""
    steps = "\n".join(f"run: sleep 3; echo step-{number}" for number in range(3))
    ts = await shared.client.say(f"@Orion\n{steps}")
    answer = await shared.answer(ts)
    assert all(f"step-{number}" in text_of(answer) for number in range(3))
    versions = (await shared.client.versions(answer))[:-1]
    facts = [_without_elapsed_time(text_of(version)) for version in versions]
    assert all(before != after for before, after in pairwise(facts)), facts
    for number in range(3):
        assert any(f"echo step-{number}" in fact for fact in facts), facts


def _without_elapsed_time(text: str) -> str:
    return " · ".join(part for part in text.split(" · ") if not part.endswith(" s"))


@pytest.mark.long
async def test_a_provider_that_is_not_there_is_told(world: World, start_orion: OpenOrion) -> None:
    """Whoever asks for a sandbox that cannot be made is not told of a bug; the record says why."""
    async with start_orion(world, DOCKER_HOST="unix:///nowhere/docker.sock") as stage:
        ts = await stage.client.say("@Orion sandbox=docker hello")
        assert "trouble starting up" in text_of(await stage.answer(ts))
        run = await stage.record(ts)
        assert run.result.error_code is ErrorCode.SANDBOX_CREATION_FAILED
        assert "docker cannot be used" in run.result.detail
        assert "You wrote" in await stage.ask("@Orion hello")
