"""The modal that asks what was wrong: the real Bolt app, a Slack that refuses or hangs, payloads of any shape."""

import json
from typing import Any

import pytest
from slack_bolt.async_app import AsyncApp

from app.slack.actions import FEEDBACK_ACTION
from app.slack.connection import SlackConnection
from app.slack.modals import FEEDBACK_VIEW
from tests.unit.slack.building import RecordingIntake, deliver_form, make_app
from tests.unit.slack.conftest import Answer, SlackServer

PERSON = {"user": {"id": "U1", "team_id": "T1"}, "team": {"id": "T1"}}
THUMB = ("feedback", "run_1", "U1", False)


@pytest.fixture
def app(slack: SlackConnection, intake: RecordingIntake) -> AsyncApp:
    return make_app(intake, feedback=slack.feedback_modal(intake))


async def press(app: AsyncApp, verdict: str = "down", **fields: Any) -> int:
    action = {"type": "feedback_buttons", "action_id": FEEDBACK_ACTION, "value": f"{verdict}:run_1"}
    payload = {"type": "block_actions", "trigger_id": "1.2", "actions": [action], **PERSON}
    return (await deliver_form(app, {"payload": json.dumps(payload | fields)}))[0]


async def send(app: AsyncApp, value: object, *, run_id: object = "run_1", **fields: Any) -> int:
    values = {"reason": {"reason": {"type": "plain_text_input", "value": value}}}
    view = {
        "type": "modal",
        "callback_id": FEEDBACK_VIEW,
        "private_metadata": run_id,
        "state": {"values": values},
    }
    payload = {"type": "view_submission", "view": view, **PERSON, **fields}
    return (await deliver_form(app, {"payload": json.dumps(payload)}))[0]


async def test_a_thumb_down_asks_why(
    app: AsyncApp, intake: RecordingIntake, slack_server: SlackServer
) -> None:
    """It counts at once; what is written then goes with it, also when it is sent twice. A thumb up asks nothing."""
    assert await press(app) == 200
    (call,) = slack_server.arguments("views.open")
    assert (call["trigger_id"], call["view"]["private_metadata"]) == ("1.2", "run_1")
    for _ in range(2):
        assert await send(app, "  it was late \n") == 200
    assert intake.heard == [THUMB, *[(*THUMB, "it was late")] * 2]
    assert await press(app, "up") == 200
    assert len(slack_server.arguments("views.open")) == 1


@pytest.mark.parametrize("value", [None, "", "  ", 7, {}])
async def test_no_word_is_none(app: AsyncApp, intake: RecordingIntake, value: object) -> None:
    """The thumb stands as it is."""
    assert await send(app, value) == 200
    assert intake.heard == []


@pytest.mark.parametrize("run_id", [None, "", 7, "a b", "x" * 300])
async def test_a_modal_of_no_run_is_none(
    app: AsyncApp, intake: RecordingIntake, run_id: object
) -> None:
    """Forged, or of a form of later."""
    assert await send(app, "words", run_id=run_id) == 200
    assert intake.heard == []


async def test_people_of_other_companies_say_nothing(
    app: AsyncApp, intake: RecordingIntake
) -> None:
    """As they may not ask either."""
    assert await send(app, "words", user={"id": "U9", "team_id": "T9"}) == 200
    assert intake.heard == []


async def test_what_is_written_is_bounded(app: AsyncApp, intake: RecordingIntake) -> None:
    """Whatever the modal that was sent says of itself."""
    assert await send(app, "x" * 10_000) == 200
    assert intake.heard == [(*THUMB, "x" * 500)]


@pytest.mark.parametrize("word", ["expired_trigger_id", "ratelimited"])
async def test_a_modal_that_cannot_be_shown_costs_nothing(
    app: AsyncApp,
    intake: RecordingIntake,
    slack_server: SlackServer,
    answer: type[Answer],
    word: str,
) -> None:
    """The thumb is acknowledged all the same."""
    slack_server.fail("views.open", answer(error=word))
    assert await press(app) == 200
    assert intake.heard == [THUMB]


async def test_what_is_not_durable_is_not_acknowledged(
    app: AsyncApp, intake: RecordingIntake
) -> None:
    """The person sees that it did not work, and may send it again."""
    intake.error = TimeoutError("the database is sick")
    assert await send(app, "words") == 500
