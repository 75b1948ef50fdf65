"""A message that its events tell in parts, and posts of other apps; on the real core with a sandbox of its own."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from app.errors import ErrorCode
from app.runs.testing import AttachedFile, MessageContent, RunState
from tests.building import make_request
from tests.faults.building import POLICY, core_of, ended, request_of
from tests.faults.plan_agent import ANSWER
from tests.waiting import until

REPORT = MessageContent(
    shared=(json.dumps(ANSWER),), files=(AttachedFile(id="F1", name="report.csv"),)
)
CARD = MessageContent(shared=("> Disk full",), left_out=("the last 7 characters",))


async def test_a_mention_whose_event_lacks_its_file_is_answered(tmp_path: Path) -> None:
    """It seems to ask nothing; Slack is asked, and its file is named below the answer as not read."""
    async with core_of(tmp_path) as core:
        core.reader.content = REPORT
        request = request_of(ANSWER).model_copy(update={"text": ""})
        await core.intake.accept(request)
        run = await ended(core, request.run_id)
        assert run.request.content == REPORT
        note = "Not read, of what came with your message: report.csv (it is not on the shelf)."
        assert run.result.answer == f"the answer\n\n{note}"


async def test_what_is_not_taken_is_told_by_a_run_without_an_answer(tmp_path: Path) -> None:
    """It may be why there is none."""
    async with core_of(tmp_path) as core:
        request = request_of([{"exit": 3}]).model_copy(update={"content": CARD})
        await core.intake.accept(request)
        run = await ended(core, request.run_id)
        note = "Not read, of what came with your message: the last 7 characters."
        assert (run.state, run.result.answer) == (RunState.FAILED, note)


async def test_a_mention_without_anything_is_refused_all_the_same(tmp_path: Path) -> None:
    """Neither its event nor Slack shows more than the mention."""
    async with core_of(tmp_path) as core:
        request = make_request(text="")
        await core.intake.accept(request)
        run = await ended(core, request.run_id)
        assert (run.result.error_code, run.attempt) == (ErrorCode.REQUEST_INVALID, 0)


async def test_what_the_second_event_brings_joins_the_run(tmp_path: Path) -> None:
    """While it waits; what is not taken is told below the answer, and the record has all of it."""
    async with core_of(tmp_path) as core:
        first = request_of([{"text": "a"}, {"sleep": 1}, {"final": "one"}])
        second = request_of(ANSWER, ts="1795302365.000100", thread_ts=first.message_ts)
        for request in (first, second):
            await core.intake.accept(request)
        await until(lambda: len(core.replies.placed) == 2)
        for content in (REPORT, CARD, REPORT):
            await core.intake.accept(second.model_copy(update={"content": content}))
        run = await ended(core, second.run_id)
        assert run.request.content == REPORT.merged(CARD)
        assert len(await core.store.of_thread(run.thread)) == 2
        missing = "the last 7 characters, report.csv (it is not on the shelf)"
        note = f"Not read, of what came with your message: {missing}."
        assert run.result.answer.endswith(note)


@pytest.mark.long
async def test_apps_that_answer_each_other_come_to_an_end(tmp_path: Path) -> None:
    """After so many runs in a thread; whoever does not understand a refusal is told none."""
    async with core_of(tmp_path, replace(POLICY, bot_turns=2)) as core:
        root = "1795302364.000100"
        asked = [
            request_of(ANSWER, ts=f"1795302364.{n:06d}", thread_ts=root).model_copy(
                update={"is_bot": True, "user": "B2"}
            )
            for n in (100, 101, 102)
        ]
        states = []
        for request in asked:
            await core.intake.accept(request)
            states.append((await ended(core, request.run_id)).state)
        assert states == [RunState.SUCCEEDED, RunState.SUCCEEDED, RunState.FAILED]
        assert core.replies.refused == []
