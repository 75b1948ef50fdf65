"""What an agent asks people in mid-run: an answer, what it would do without one, or why there is none."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.approvals.questions import MAX_QUESTIONS, Question
from app.approvals.records import (
    ApprovalState,
)
from app.approvals.rules import (
    CHANNEL,
)
from app.runs.testing import (
    NotApprovedError,
    RunState,
)
from tests.faults.approval_scene import LOCAL_S, Scene, scene_of

QUESTION = Question(
    text="Which name? hunter2", options=("old", "hunter2"), otherwise="I keep the old one."
)


async def ask(scene: Scene, question: Question = QUESTION) -> str:
    """What the agent is told; or why it has no answer."""
    try:
        return await scene.desk.ask_person(scene.run.id, question)
    except NotApprovedError as exc:
        return str(exc)


@pytest.mark.parametrize(
    ("press", "told"),
    [
        ({"option": 0}, "U1 answered: old"),
        ({"text": "neither, please"}, "U1 answered: neither, please"),
        ({"says": False}, "They leave that to you"),
    ],
)
async def test_a_question_is_answered(tmp_path: Path, press: dict[str, Any], told: str) -> None:
    """Once; asked again, it is known. People see no secret of it."""
    async with scene_of(tmp_path, asks_people=True) as scene:
        asking = scene.group.create_task(ask(scene))
        card = await scene.card()
        assert (card.target, card.options) == ("Which name? [redacted]", ("old", "[redacted]"))
        await scene.press(scene.run.request.user, **press)
        assert (await asking).startswith(told)
        assert (await ask(scene)).startswith(told)
        assert len(await scene.store.approvals.of_run(scene.run.id)) == 1
        late = await scene.press(scene.run.request.user, option=0)
        assert "its answer already" in late
        assert scene.replies.ephemerals[-1][2] == late
        told_so_far = len(scene.replies.ephemerals)
        assert await scene.press(scene.run.request.user, text="too late") == late
        assert len(scene.replies.ephemerals) == told_so_far  # the form says it


async def test_an_option_is_answered_as_people_saw_it(tmp_path: Path) -> None:
    """One that there is not is no answer of anybody's."""
    async with scene_of(tmp_path, asks_people=True) as scene:
        asking = scene.group.create_task(ask(scene))
        await scene.press(scene.run.request.user, option=1)
        assert await asking == "U1 answered: [redacted]"


async def test_a_question_that_nobody_answers(tmp_path: Path) -> None:
    """The agent goes on waiting, and is told in the end what it said that it would do."""
    async with scene_of(tmp_path, hold_s=LOCAL_S, asks_people=True, approval_timeout_s=1) as scene:
        assert "call ask_person with exactly the same arguments again" in await ask(scene)
        await asyncio.sleep(1)
        await scene.desk.keep()
        assert "Do what you said you would do then: I keep the old one." in await ask(scene)
        assert (await scene.card()).state is ApprovalState.EXPIRED


async def test_whose_question_it_is(tmp_path: Path) -> None:
    """The asker's, or anybody's in the channel who may use Orion."""
    async with scene_of(tmp_path, asks_people=True) as scene:
        own = scene.group.create_task(ask(scene))
        await scene.press("U2", option=0)
        assert "for whoever asked the question to answer" in scene.replies.ephemerals[-1][2]
        assert not own.done()
        for_all = scene.group.create_task(ask(scene, replace(QUESTION, who=CHANNEL)))
        await scene.press("U2", option=0, number=2)
        assert await for_all == "U2 answered: old"
        await scene.press(scene.run.request.user, option=0)
        await own


async def test_questions_are_bounded(tmp_path: Path) -> None:
    """The same one is always the same."""
    async with scene_of(tmp_path, hold_s=0.01, asks_people=True) as scene:
        for number in range(MAX_QUESTIONS):
            assert "call ask_person" in await ask(scene, replace(QUESTION, text=str(number)))
        assert f"asked {MAX_QUESTIONS} times" in await ask(scene, replace(QUESTION, text="more"))
        assert "call ask_person" in await ask(scene, replace(QUESTION, text="0"))


async def test_channels_say_whether_agents_ask(tmp_path: Path) -> None:
    """Where they do not, and there are no rules, nothing is held up."""
    async with scene_of(tmp_path, channels_asking={"C2": True}) as scene:
        request = scene.run.request
        elsewhere = replace(scene.run, request=request.model_copy(update={"channel": "C2"}))
        asking = scene.desk.of(elsewhere)
        assert asking is not None
        assert asking.ask_person is not None
        here = scene.desk.of(scene.run)
        assert here is not None
        assert here.ask_person is None


async def test_a_question_of_a_run_that_is_over(tmp_path: Path) -> None:
    async with scene_of(tmp_path, asks_people=True) as scene:
        asking = scene.group.create_task(ask(scene))
        await scene.card()
        await scene.store.update(scene.run.id, state=RunState.STOPPED)
        await scene.desk.keep()
        assert await asking == "the run is over"
        assert (await scene.card()).state is ApprovalState.WITHDRAWN
