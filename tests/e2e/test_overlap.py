"""Second thoughts: a question that waits may be changed or taken back, a failed one tried again."""

from itertools import pairwise

import pytest

from app.playground.slack.types import COLLEAGUE
from app.runs.testing import RunId
from app.slack.actions import LOG_ACTION, RETRY_ACTION, STOP_ACTION
from tests.e2e.harness import (
    RUN_TIMEOUT_S,
    Stage,
    has_retry_button,
    has_stop_button,
    run_of,
    text_of,
)

pytestmark = [pytest.mark.e2e, pytest.mark.bubblewrap, pytest.mark.timeout(180)]

SLOW_WORDS = "offline model and I write"
AT_ONCE_S = 3.0
"""For the end of a question that waits; the one before it takes longer."""


async def _busy_thread(stage: Stage, seconds: int) -> str:
    ts = await stage.client.say(f"@Orion !slow {seconds}")
    await stage.client.wait_for_reply(
        ts, lambda reply: SLOW_WORDS in text_of(reply), timeout_s=RUN_TIMEOUT_S
    )
    return ts


async def test_a_waiting_question_is_answered_as_it_was_edited(shared: Stage) -> None:
    """An edit counts until the run begins; the answer is to the words that stand there."""
    root = await _busy_thread(shared, 6)
    second = await shared.client.say("@Orion tell me of cats", thread_ts=root)
    await shared.thinking(second, thread_ts=root)
    await shared.client.edit(second, "<@U0ORION> tell me of dogs")
    await shared.client.edit(root, "<@U0ORION> something else")
    answer = text_of(await shared.answer(second, thread_ts=root))
    assert "tell me of dogs" in answer
    assert "cats" not in answer
    assert (await shared.record(root)).request.text == "!slow 6"


@pytest.mark.long
async def test_a_waiting_question_is_withdrawn_by_deleting_it(shared: Stage) -> None:
    """It ends at once and never runs; the questions before and behind it are answered in turn."""
    root = await _busy_thread(shared, 8)
    second = await shared.client.say("@Orion run: echo forget this", thread_ts=root)
    third = await shared.client.say("@Orion but this", thread_ts=root)
    await shared.thinking(second, thread_ts=root)
    await shared.client.delete(second)
    ended = await shared.answer(second, thread_ts=root, timeout_s=AT_ONCE_S)
    assert text_of(ended) == "Stopped by <@U0YOU> before it began"
    assert not (await shared.record(root)).state.is_final
    answer = text_of(await shared.answer(third, thread_ts=root))
    assert "but this" in answer
    assert "forget this" not in answer, "it was carried out by the next question"
    assert (await shared.record(second)).attempt == 0
    assert (await shared.record(root)).state == "succeeded"


@pytest.mark.long
async def test_stop_takes_a_waiting_question_out_at_once(shared: Stage) -> None:
    """Not when its turn comes; and the one behind it does not wait for it."""
    root = await _busy_thread(shared, 8)
    second = await shared.client.say("@Orion never mind", thread_ts=root)
    third = await shared.client.say("@Orion go on", thread_ts=root)
    waiting = await shared.thinking(second, thread_ts=root)
    await shared.client.press(waiting, STOP_ACTION)
    ended = await shared.answer(second, thread_ts=root, timeout_s=AT_ONCE_S)
    assert "Stopped by" in text_of(ended)
    assert (await shared.record(second)).attempt == 0
    assert not (await shared.record(root)).state.is_final
    await shared.answer(third, thread_ts=root)
    assert (await shared.record(root)).state == "succeeded"


@pytest.mark.long
async def test_stop_from_the_command_line_takes_a_waiting_question_out(shared: Stage) -> None:
    """Another process writes the wish into the record."""
    root = await _busy_thread(shared, 8)
    second = await shared.client.say("@Orion never mind", thread_ts=root)
    await shared.thinking(second, thread_ts=root)
    code, output = await shared.cli("runs", "stop", shared.run_id(second))
    assert code == 0, output
    await shared.answer(second, thread_ts=root, timeout_s=AT_ONCE_S)
    assert not (await shared.record(root)).state.is_final
    await shared.client.stop(root)
    await shared.answer(root)


@pytest.mark.long
async def test_a_deleted_root_withdraws_its_question(shared: Stage) -> None:
    """Slack leaves a tombstone where a message with replies was; a run that has begun goes on."""
    root = await _busy_thread(shared, 3)
    await shared.client.delete(root)
    assert (await shared.answer(root))["thread_ts"] == root
    assert (await shared.record(root)).state == "succeeded"


@pytest.mark.long
async def test_the_next_question_starts_after_a_stop_and_never_beside_the_old_one(
    shared: Stage,
) -> None:
    """The stopped run's sandbox is gone before the next one's is made."""
    root = await _busy_thread(shared, 60)
    second = await shared.client.say("@Orion next", thread_ts=root)
    await shared.thinking(second, thread_ts=root)
    await shared.client.stop(root)
    await shared.answer(second, thread_ts=root, timeout_s=RUN_TIMEOUT_S)
    first, then = await shared.record(root), await shared.record(second)
    assert first.ended_at is not None
    assert then.started_at is not None
    assert 0 <= (then.started_at - first.ended_at).total_seconds() < AT_ONCE_S


@pytest.mark.long
async def test_two_messages_in_the_same_moment_keep_their_order(shared: Stage) -> None:
    """Milliseconds apart in an idle thread, they are answered in the order in which they were written."""
    root = await shared.client.say("@Orion one")
    others = [
        await shared.client.say(f"@Orion {word}", thread_ts=root) for word in ("two", "three")
    ]
    for ts in (root, *others):
        await shared.answer(ts, thread_ts=root)
    records = [await shared.record(ts) for ts in (root, *others)]
    for before, after in pairwise(records):
        assert before.ended_at is not None
        assert after.started_at is not None
        assert before.ended_at <= after.started_at


@pytest.mark.long
async def test_try_again_answers_a_failed_question(shared: Stage) -> None:
    """A new run of the same message with a message of its own, linked in record and trace; pressed twice it is one."""
    ts = await shared.client.say("@Orion !529 3 of its own")
    failed = await shared.answer(ts)
    assert has_retry_button(failed)
    assert (await shared.record(ts)).result.error_code == "MODEL_OVERLOADED"
    await shared.client.press(failed, RETRY_ACTION, user=COLLEAGUE)
    answer = await shared.client.wait_for_reply(
        ts,
        lambda reply: reply["ts"] > failed["ts"] and not has_stop_button(reply),
        timeout_s=RUN_TIMEOUT_S,
    )
    assert "offline model" in text_of(answer)
    assert not has_retry_button(answer)
    run = await shared.orion.run(RunId(run_of(answer) or ""))
    assert run is not None
    assert run.request.retry_of == shared.run_id(ts)
    assert (run.request.user, run.request.message_ts) == (COLLEAGUE, ts)
    assert has_retry_button((await shared.bot_messages(ts))[0])
    code, shown = await shared.cli("runs", "show", run.id)
    assert code == 0
    assert shared.run_id(ts) in shown


@pytest.mark.long
async def test_the_log_of_a_failed_answer_is_shown_to_whoever_asks(shared: Stage) -> None:
    """Its last lines, to that person alone."""
    ts = await shared.client.say("@Orion !529 3 with a log")
    failed = await shared.answer(ts)
    await shared.client.press(failed, LOG_ACTION, user=COLLEAGUE)
    shown = await shared.client.wait_for_reply(ts, lambda reply: bool(reply["ephemeral_to"]))
    assert shown["ephemeral_to"] == COLLEAGUE
    assert "model_overloaded" in text_of(shown)
    assert len(text_of(shown)) < 1000


@pytest.mark.long
async def test_try_again_is_refused_kindly_while_one_is_going(shared: Stage) -> None:
    """Whoever presses in the meantime is told so, alone; and only one answer comes."""
    ts = await shared.client.say("@Orion !529 3\nrun: sleep 4")
    failed = await shared.answer(ts)
    await shared.client.press(failed, RETRY_ACTION)
    await shared.client.wait_for_reply(ts, lambda reply: reply["ts"] > failed["ts"])
    await shared.client.press(failed, RETRY_ACTION, user=COLLEAGUE)
    refusal = await shared.client.wait_for_reply(
        ts, lambda reply: "tried again already" in text_of(reply)
    )
    assert refusal["ephemeral_to"] == COLLEAGUE
    await shared.client.wait_for_reply(
        ts,
        lambda reply: (
            reply["ts"] > failed["ts"]
            and reply["ts"] != refusal["ts"]
            and not has_stop_button(reply)
        ),
        timeout_s=RUN_TIMEOUT_S,
    )
    replies = await shared.client.replies(ts)
    assert len([reply for reply in replies if reply["is_bot"]]) == 3
