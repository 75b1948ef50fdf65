"""SlackReplies against real HTTP: what stands in the thread after every kind of failure."""

from __future__ import annotations

import asyncio
import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from app.errors import ErrorCode, LeaseLostError
from app.pull_requests.records import NOWHERE, Notice, NoticeKind
from app.runs.testing import Delivery, Progress, QueuePosition, Run, SharedFile, channel_change
from app.slack.api import SHARE_METHOD
from app.slack.connection import open_slack
from app.slack.replies import EPHEMERAL_TIMEOUT_S
from tests.unit.pull_requests.building import make_pull
from tests.unit.slack.placing import DONE, FREE, place
from tests.waiting import until

if TYPE_CHECKING:
    from app.slack.connection import SlackConnection, SlackOptions
    from tests.unit.slack.conftest import Answer, SlackServer


async def test_thinking_message_is_posted_in_the_thread_with_metadata(
    slack: SlackConnection, slack_server: SlackServer, run: Run
) -> None:
    """Placing posts one message below the root, marked with run and part, without unfurls."""
    await place(slack, run)
    (posted,) = slack_server.arguments("chat.postMessage")
    assert posted["thread_ts"] == run.request.thread_ts
    assert posted["metadata"]["event_payload"] == {"run_id": run.id, "part": 0}
    assert posted["metadata"]["event_type"] == "orion_run"
    assert posted["unfurl_links"] is False
    assert posted["unfurl_media"] is False


@pytest.mark.parametrize("fault", ["cut", "timeout", "server_error", "fatal_error", "html"])
@pytest.mark.parametrize("accepts", [True, False])
async def test_an_ambiguous_post_ends_in_exactly_one_message(
    slack: SlackConnection,
    slack_server: SlackServer,
    run: Run,
    *,
    answer: type[Answer],
    fault: str,
    accepts: bool,
) -> None:
    """Whether or not Slack carried the lost call out, one thinking message stands, and its ts is returned."""
    faults = {
        "cut": answer(cut=True, accepts=accepts),
        "timeout": answer(delay_s=0.0 if accepts else 0.6, status=504, accepts=accepts),
        "server_error": answer(status=503, accepts=accepts),
        "fatal_error": answer(status=500, error="fatal_error", accepts=accepts),
        "html": answer(status=502, body="<html>", accepts=accepts),
    }
    slack_server.fail("chat.postMessage", faults[fault])
    placed = await place(slack, run)
    assert list(slack_server.messages) == [placed.reply_ts]
    assert len(slack_server.arguments("chat.postMessage")) == (1 if accepts else 2)


async def test_a_post_is_not_repeated_while_the_thread_cannot_be_read(
    slack: SlackConnection, slack_server: SlackServer, run: Run, answer: type[Answer]
) -> None:
    """When the look for a lost post is refused, nothing is posted again."""
    slack_server.fail("chat.postMessage", answer(cut=True, accepts=True))
    slack_server.fail("conversations.replies", answer(error="missing_scope"))
    assert await slack.replies.place(run, position=FREE, maybe_posted=False) is None
    assert len(slack_server.messages) == 1


async def test_placing_again_finds_what_stands_there(
    slack: SlackConnection, slack_server: SlackServer, run: Run
) -> None:
    """After a crash between post and record, `maybe_posted` finds the message instead of posting another."""
    first = await place(slack, run)
    second = await place(slack, run, maybe_posted=True)
    assert second.reply_ts == first.reply_ts
    assert len(slack_server.messages) == 1


async def test_rate_limited_post_waits_as_long_as_slack_says(
    slack: SlackConnection, slack_server: SlackServer, run: Run, answer: type[Answer]
) -> None:
    """After a 429 the post is repeated once, not before Retry-After."""
    slack_server.fail("chat.postMessage", answer(status=429, error="ratelimited", retry_after="1"))
    await place(slack, run)
    first, second = slack_server.times("chat.postMessage")
    assert second - first >= 0.95


@pytest.mark.parametrize(
    "word", ["is_archived", "channel_not_found", "not_in_channel", "token_revoked", "missing_scope"]
)
async def test_a_permanent_refusal_is_not_repeated(
    slack: SlackConnection, slack_server: SlackServer, run: Run, answer: type[Answer], word: str
) -> None:
    """Placing gives None, finishing names Slack's word; neither tries twice."""
    slack_server.fail("chat.postMessage", answer(error=word), answer(error=word))
    assert await slack.replies.place(run, position=FREE, maybe_posted=False) is None
    delivery = await slack.replies.finish(run, DONE, resumed=False)
    assert delivery.text == f"failed({word})"
    assert len(slack_server.arguments("chat.postMessage")) == 2


async def test_finish_turns_the_thinking_message_into_the_answer(
    slack: SlackConnection, slack_server: SlackServer, run: Run
) -> None:
    """One message stands at the end, with the answer; finishing again changes nothing."""
    placed = await place(slack, run)
    for _ in range(2):
        assert (await slack.replies.finish(placed, DONE, resumed=False)).text == "sent"
    (message,) = slack_server.messages.values()
    assert message["blocks"][0] == {"type": "markdown", "text": "The answer."}
    assert message["metadata"]["event_payload"] == {"run_id": run.id, "part": 0}


async def test_a_long_answer_is_posted_once_in_order_even_after_a_crash(
    slack: SlackConnection, slack_server: SlackServer, run: Run
) -> None:
    """A resumed finish finds the parts that an earlier process posted and posts only the missing ones."""
    placed = await place(slack, run)
    long = dataclasses.replace(
        DONE, answer="\n\n".join(f"Paragraph {n}. " + "x" * 900 for n in range(30))
    )
    first = await slack.replies.finish(placed, long, resumed=False)
    count = len(slack_server.messages)
    assert count >= 3
    slack_server.messages.pop(first.part_ts[-1])
    again = await slack.replies.finish(placed, long, resumed=True)
    assert len(slack_server.messages) == count
    assert again.part_ts[:-1] == first.part_ts[:-1]
    texts = [
        slack_server.messages[ts]["blocks"][0]["text"]
        for ts in (placed.reply_ts, *again.part_ts)
        if ts
    ]
    assert "\n\n".join(texts) == long.answer


@pytest.mark.parametrize("word", ["message_not_found", "cant_update_message", "edit_window_closed"])
async def test_an_uneditable_message_is_replaced_by_a_new_one(
    slack: SlackConnection, slack_server: SlackServer, run: Run, answer: type[Answer], word: str
) -> None:
    """The answer is posted anew when Slack does not let the thinking message be edited."""
    placed = await place(slack, run)
    slack_server.fail("chat.update", answer(error=word))
    assert (await slack.replies.finish(placed, DONE, resumed=False)).failure == ""
    *_, last = slack_server.messages.values()
    assert last["blocks"][0]["text"] == "The answer."


@pytest.mark.parametrize("word", ["msg_too_long", "msg_blocks_too_long", "invalid_blocks"])
async def test_refused_blocks_end_in_smaller_parts_and_then_in_plain_text(
    slack: SlackConnection, slack_server: SlackServer, run: Run, answer: type[Answer], word: str
) -> None:
    """Two refusals of the blocks leave the whole answer as plain text, in order, with the line of facts below."""
    placed = await place(slack, run)
    long = dataclasses.replace(DONE, answer="\n\n".join(f"P{n} " + "x" * 500 for n in range(20)))
    slack_server.fail("chat.update", answer(error=word), answer(error=word))
    delivery = await slack.replies.finish(placed, long, resumed=False)
    assert delivery.text == "sent"
    texts = [slack_server.messages[ts]["text"] for ts in (placed.reply_ts, *delivery.part_ts) if ts]
    assert all(slack_server.messages[ts]["blocks"] == [] for ts in delivery.part_ts)
    assert "".join("".join(texts).split()) == "".join(f"{long.answer} 12 s · 3 steps".split())


@pytest.mark.parametrize("status", [500, 502, 503, 504])
async def test_a_failing_update_is_repeated(
    slack: SlackConnection, slack_server: SlackServer, run: Run, answer: type[Answer], status: int
) -> None:
    """An update is idempotent, so server errors and cut connections are tried again."""
    placed = await place(slack, run)
    slack_server.fail("chat.update", answer(status=status), answer(cut=True))
    assert (await slack.replies.finish(placed, DONE, resumed=False)).text == "sent"
    assert len(slack_server.arguments("chat.update")) == 3


async def test_native_status_is_switched_off_after_a_refusal(
    slack_options: SlackOptions, slack_server: SlackServer, run: Run, answer: type[Answer]
) -> None:
    """An app that is no agent is asked once; neither placing nor finishing waits for it."""
    stands = asyncio.Event()
    slack_server.fail("agents.sessions.setStatus", answer(error="unknown_method", until=stands))
    patient = dataclasses.replace(slack_options.policy, call_timeout_s=30)
    async with open_slack(dataclasses.replace(slack_options, policy=patient)) as slack:
        placed = await place(slack, run)
        await slack.replies.finish(placed, DONE, resumed=False)
        assert slack_server.in_flight["agents.sessions.setStatus"] == 1
        stands.set()
        await asyncio.sleep(0.2)
    assert len(slack_server.arguments("agents.sessions.setStatus")) == 1


async def test_native_status_ends_active(
    slack: SlackConnection, slack_server: SlackServer, run: Run, answer: type[Answer]
) -> None:
    """A slow `processing` never overtakes the `active` of a run that ended quickly."""
    slack_server.fail("agents.sessions.setStatus", answer(delay_s=0.2, accepts=True))
    placed = await place(slack, run)
    await slack.replies.finish(placed, DONE, resumed=False)
    await asyncio.sleep(0.4)
    statuses = [call["status"] for call in slack_server.arguments("agents.sessions.setStatus")]
    assert statuses == ["processing", "active"]


async def test_announcement_mentions_the_asker(
    slack: SlackConnection, slack_server: SlackServer, run: Run
) -> None:
    """The extra line notifies the asker and is no part of the answer."""
    await slack.replies.announce(run, dataclasses.replace(DONE, duration_s=72))
    (posted,) = slack_server.arguments("chat.postMessage")
    assert posted["text"] == "<@UASKER> done (1 min 12 s)"
    assert posted["metadata"]["event_payload"]["part"] == -1
    assert (await slack.replies.finish(run, DONE, resumed=True)).text == "sent"
    assert len(slack_server.messages) == 2


async def test_refusal_is_for_the_asker_alone(
    slack: SlackConnection, slack_server: SlackServer, run: Run, answer: type[Answer]
) -> None:
    """A refused request is answered by an ephemeral message; when that fails nothing is raised."""
    slack_server.fail("chat.postEphemeral", answer(), answer(error="user_not_in_channel"))
    await slack.replies.refuse(run.request, ErrorCode.NOT_ALLOWED, detail="<!channel>")
    first, second = slack_server.arguments("chat.postEphemeral")
    assert first == second
    assert first["user"] == "UASKER"
    assert "&lt;!channel&gt;" in first["text"]


@pytest.mark.parametrize(
    "limit", [{"status": 429, "retry_after": "3"}, {"delay_s": 0.6}, {"status": 503}]
)
async def test_what_one_person_asked_to_see_comes_after_slacks_pause(
    slack: SlackConnection,
    slack_server: SlackServer,
    run: Run,
    answer: type[Answer],
    limit: dict[str, Any],
) -> None:
    """In the background, as a click waits for its acknowledgement; what is asked for meanwhile, too."""
    method = "chat.postEphemeral"
    slack_server.fail(method, answer(**limit))
    async with asyncio.timeout(2 * EPHEMERAL_TIMEOUT_S):
        for text in ("one", "two"):
            await slack.replies.show_ephemeral(run.thread, user="UASKER", text=text)
    await until(lambda: len(slack_server.arguments(method)) == 3)
    assert {one["text"] for one in slack_server.arguments(method)} == {"one", "two"}


async def test_queued_message_is_edited_when_the_run_starts(
    slack: SlackConnection, slack_server: SlackServer, run: Run
) -> None:
    """Placing with a known ts edits that message instead of posting another."""
    ts = await slack.replies.place(
        run, position=QueuePosition(ahead_in_thread=1), maybe_posted=False
    )
    (message,) = slack_server.messages.values()
    assert message["text"] == "Queued behind 1 earlier message in this thread"
    placed = dataclasses.replace(run, reply_ts=ts)
    assert await slack.replies.place(placed, position=FREE, maybe_posted=False) == ts
    (message,) = slack_server.messages.values()
    assert message["text"] == "Thinking…"


async def test_identify_names_the_bot(slack: SlackConnection) -> None:
    """The identity is unknown until Slack has been asked."""
    assert slack.identity() is None
    assert (await slack.identify()).bot_user_id == "UBOT"
    identity = slack.identity()
    assert identity is not None
    assert identity.bot_id == "BBOT"


async def test_resuming_without_the_right_to_read_still_answers(
    slack: SlackConnection, slack_server: SlackServer, run: Run, answer: type[Answer]
) -> None:
    """When the thread may not be read, the known thinking message becomes the answer all the same."""
    placed = await place(slack, run)
    slack_server.fail("conversations.replies", answer(error="missing_scope"))
    assert (await slack.replies.finish(placed, DONE, resumed=True)).text == "sent"
    assert len(slack_server.messages) == 1


async def test_a_run_without_a_thinking_message_gets_its_answer(
    slack: SlackConnection, slack_server: SlackServer, run: Run, answer: type[Answer]
) -> None:
    """With nothing standing in the thread, finishing posts the answer; finishing again finds it."""
    slack_server.fail("conversations.replies", answer(error="thread_not_found"))
    for _ in range(2):
        assert (await slack.replies.finish(run, DONE, resumed=True)).text == "sent"
    (message,) = slack_server.messages.values()
    assert message["blocks"][0]["text"] == "The answer."


async def test_a_change_of_a_channels_defaults_is_told_to_all_of_it(
    slack: SlackConnection, slack_server: SlackServer, run: Run
) -> None:
    """In the thread and in the channel, once also after a crash; nobody but who changed them is mentioned."""
    request = run.request.model_copy(update={"text": "settings channel agent=codex"})
    change = channel_change(request)
    assert change is not None
    for resumed in (False, True):
        await slack.replies.tell_change(run, change, resumed=resumed)
    (posted,) = slack_server.arguments("chat.postMessage")
    assert posted["reply_broadcast"] is True
    assert posted["text"].startswith("<@UASKER> changed this channel's defaults: `agent=codex`.")
    await slack.replies.tell_change(run, dataclasses.replace(change, said="reset"), resumed=False)
    assert "reset this channel's defaults." in slack_server.arguments("chat.postMessage")[1]["text"]


@pytest.mark.parametrize(
    ("status", "word", "may_pass"), [(200, "restricted_action", False), (503, "http_503", True)]
)
async def test_files_that_are_not_shared_are_no_secret(
    slack: SlackConnection,
    slack_server: SlackServer,
    run: Run,
    answer: type[Answer],
    *,
    status: int,
    word: str,
    may_pass: bool,
) -> None:
    """Slack's no is for good, its absence may pass; the thread is told once, also after a crash, and nobody is mentioned."""
    slack_server.fail(SHARE_METHOD, *[answer(status=status, error=word)] * 9)
    files = [SharedFile(id="F1", name="a.txt", size=1)]
    shared = await slack.replies.share(run, files, resumed=False)
    assert (shared.failure, shared.may_pass) == (word, may_pass)
    for resumed in (False, True):
        await slack.replies.tell_unshared(run, "Not shared: <!channel>.txt", resumed=resumed)
    (posted,) = slack_server.arguments("chat.postMessage")
    assert posted["text"] == "Not shared: &lt;!channel&gt;.txt"
    slack_server.script[SHARE_METHOD].clear()
    assert await slack.replies.share(run, files, resumed=False) == Delivery()


async def test_who_has_lost_its_lease_writes_nothing(
    slack_options: SlackOptions, slack_server: SlackServer, run: Run
) -> None:
    """Neither the thinking message nor progress nor the answer; what is only read is read."""
    asked = 0

    async def may_write() -> None:
        nonlocal asked
        asked += 1
        raise LeaseLostError

    async with open_slack(slack_options, may_write=may_write) as slack:
        with pytest.raises(LeaseLostError):
            await slack.replies.place(run, position=FREE, maybe_posted=True)
        placed = dataclasses.replace(run, reply_ts="1795302364.000200")
        async with slack.replies.live(placed) as live:
            live.show(Progress(phase="Working", elapsed_s=1))
            await asyncio.sleep(0.2)
        with pytest.raises(LeaseLostError):
            await slack.replies.finish(placed, DONE, resumed=False)
        await slack.replies.announce(placed, DONE)
        with pytest.raises(LeaseLostError):
            await slack.replies.attach(placed, name="a.patch", content="x", resumed=False)
    assert asked >= 4
    assert {method for method, _, _ in slack_server.calls} <= {"conversations.replies"}


async def test_news_of_a_pull_request_stand_once(
    slack: SlackConnection, slack_server: SlackServer, run: Run, answer: type[Answer]
) -> None:
    """Looked for where an earlier process may have posted it; Slack's no is for good, its absence is not."""
    pull, notice = make_pull(), Notice(number=1, kind=NoticeKind.CLOSED, run_id=run.id, head="a")
    show = partial(slack.replies.show_notice, run, pull)
    ts = await show(notice, maybe_posted=False)
    assert ts in slack_server.messages
    assert await show(notice, maybe_posted=True) == ts
    second = dataclasses.replace(notice, number=2)
    assert await show(second, maybe_posted=True) not in (ts, None, NOWHERE)
    assert len(slack_server.messages) == 2
    slack_server.fail("chat.postMessage", answer(error="is_archived"))
    assert await show(dataclasses.replace(notice, number=3), maybe_posted=False) == NOWHERE
    slack_server.fail("conversations.replies", *[answer(status=503)] * 50)
    assert await show(notice, maybe_posted=True) is None
