"""The modal that takes an answer in words: the real Bolt app, a Slack that refuses, payloads of any shape."""

import json
from typing import Any

import pytest
from slack_bolt.async_app import AsyncApp

from app.runs.testing import Press
from app.slack.actions import CHOOSE_ACTIONS, WRITE_ACTION
from app.slack.connection import SlackConnection
from app.slack.modals import ANSWER_VIEW, NOT_OPENED
from tests.unit.slack.building import RecordingIntake, deliver_form, make_app
from tests.unit.slack.conftest import Answer, SlackServer

PERSON = {"user": {"id": "U1", "team_id": "T1"}, "team": {"id": "T1"}}
WRITTEN = Press(approval_id="apv_1", user="U1", is_allowed=True, text="the second\nof both")


@pytest.fixture
def app(slack: SlackConnection, intake: RecordingIntake) -> AsyncApp:
    return make_app(intake, answer=slack.answer_modal(intake))


async def press(app: AsyncApp, name: str, value: object = "apv_1", **fields: Any) -> int:
    action = {"type": "button", "action_id": name, "value": value}
    payload = {"type": "block_actions", "trigger_id": "1.2", "actions": [action], **PERSON}
    return (await deliver_form(app, {"payload": json.dumps(payload | fields)}))[0]


async def send(
    app: AsyncApp, value: object, *, approval_id: object = "apv_1", **fields: Any
) -> tuple[int, str]:
    values = {"answer": {"answer": {"type": "plain_text_input", "value": value}}}
    view = {
        "type": "modal",
        "callback_id": ANSWER_VIEW,
        "private_metadata": approval_id,
        "state": {"values": values},
    }
    payload = {"type": "view_submission", "view": view, **PERSON, **fields}
    return await deliver_form(app, {"payload": json.dumps(payload)})


async def test_an_answer_is_written(
    app: AsyncApp, intake: RecordingIntake, slack_server: SlackServer
) -> None:
    """The button opens the modal and says nothing yet; sent twice it is told twice, which the desk knows."""
    assert await press(app, WRITE_ACTION) == 200
    (call,) = slack_server.arguments("views.open")
    assert (call["trigger_id"], call["view"]["private_metadata"]) == ("1.2", "apv_1")
    assert intake.heard == []
    for _ in range(2):
        assert (await send(app, " the second\nof both "))[0] == 200
    assert intake.heard == [WRITTEN] * 2


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        (
            {
                "message": {
                    "blocks": [{"type": "section", "text": {"text": "*I need to know:* x?"}}]
                }
            },
            ["*I need to know:* x?"],
        ),
        ({"message": {"blocks": []}}, []),
        ({"view": {"type": "home"}}, []),
    ],
)
async def test_the_question_stands_above(
    app: AsyncApp, slack_server: SlackServer, fields: dict[str, Any], asked: list[str]
) -> None:
    """Whoever writes has not to remember it."""
    await press(app, WRITE_ACTION, **fields)
    (call,) = slack_server.arguments("views.open")
    *above, field = call["view"]["blocks"]
    assert [block["text"]["text"] for block in above] == asked
    assert field["type"] == "input"


async def test_an_option_is_chosen(app: AsyncApp, intake: RecordingIntake) -> None:
    assert await press(app, CHOOSE_ACTIONS[1]) == 200
    assert intake.heard == [Press(approval_id="apv_1", user="U1", is_allowed=True, option=1)]


@pytest.mark.parametrize("value", [None, "", " \n", 7, {}])
async def test_an_empty_answer_is_told(
    app: AsyncApp, intake: RecordingIntake, value: object
) -> None:
    status, body = await send(app, value)
    assert (status, json.loads(body)["errors"]) == (200, {"answer": "Please write an answer."})
    assert intake.heard == []


@pytest.mark.parametrize("approval_id", [None, "", 7, "a b", "x" * 300])
async def test_a_forged_one_says_nothing(
    app: AsyncApp, intake: RecordingIntake, slack_server: SlackServer, approval_id: object
) -> None:
    assert (await send(app, "words", approval_id=approval_id))[0] == 200
    assert await press(app, WRITE_ACTION, approval_id) in (200, 400)
    assert intake.heard == []
    assert slack_server.arguments("views.open") == []


@pytest.mark.parametrize("team", [{"id": "T1"}, {"id": "T9"}, None])
async def test_people_of_other_companies_are_told_by_the_desk(
    app: AsyncApp, intake: RecordingIntake, team: object
) -> None:
    """Which knows to whom the question is; wherever they look at it, in a channel that is shared with them."""
    theirs = {"user": {"id": "U9", "team_id": "T9"}, "team": team}
    status, body = await send(app, "words", **theirs)
    assert (status, json.loads(body)["errors"]) == (
        200,
        {"answer": "This is for an operator to answer."},  # and their words stay in the form
    )
    assert await press(app, CHOOSE_ACTIONS[1], **theirs) == 200
    assert [one.is_external for one in intake.heard if isinstance(one, Press)] == [True, True]


async def test_what_cannot_be_shown_or_kept(
    app: AsyncApp, intake: RecordingIntake, slack_server: SlackServer, answer: type[Answer]
) -> None:
    """A modal that Slack refuses is acknowledged, and told to whoever pressed, alone; an answer that is not durable is not, and may be sent again."""
    slack_server.fail("views.open", answer(error="expired_trigger_id"))
    assert await press(app, WRITE_ACTION, channel={"id": "C1"}) == 200
    (told,) = slack_server.arguments("chat.postEphemeral")
    assert (told["channel"], told["user"], told["text"]) == ("C1", PERSON["user"]["id"], NOT_OPENED)
    intake.error = TimeoutError("the database is sick")
    assert (await send(app, "words"))[0] == 500


async def test_what_is_written_is_bounded(app: AsyncApp, intake: RecordingIntake) -> None:
    await send(app, "x" * 10_000)
    (heard,) = intake.heard
    assert isinstance(heard, Press)
    assert len(heard.text) == 2_000
