"""What a click of each of Orion's buttons asks for."""

from typing import Any

import pytest

from app.runs.testing import Fix, Pick, RetryIntent, RunId
from app.slack.actions import ACTIONS, Action, Feedback, ShowLog, StopRun, parse_click
from app.slack.payloads import Ignored

RUN = RunId("run_1")


def click(action_id: str, value: str, *, user_team: str = "T1", **action: str) -> dict[str, Any]:
    return {
        "type": "block_actions",
        "user": {"id": "U1", "team_id": user_team},
        "team": {"id": "T1"},
        "channel": {"id": "C1"},
        "actions": [
            {"action_id": action_id, "value": value, "action_ts": "1800000000.000100", **action}
        ],
    }


@pytest.mark.parametrize(
    ("action_id", "value", "intent"),
    [
        ("orion_stop", "run_1", StopRun(run_id=RUN, user="U1")),
        ("orion_show_log", "run_1", ShowLog(run_id=RUN, user="U1")),
        (
            "orion_retry",
            "run_1",
            RetryIntent(run_id=RUN, user="U1", click_ts="1800000000.000100"),
        ),
        (
            "orion_pick_9",
            "run_1",
            Pick(run_id=RUN, number=9, user="U1", click_ts="1800000000.000100"),
        ),
        (
            "orion_fix",
            "pr_1:2",
            Fix(pull_id="pr_1", number=2, user="U1", click_ts="1800000000.000100"),
        ),
        ("orion_feedback", "up:run_1", Feedback(run_id=RUN, user="U1", is_positive=True)),
        ("orion_feedback", "down:run_1", Feedback(run_id=RUN, user="U1", is_positive=False)),
    ],
)
def test_each_button_names_its_run_and_who_clicked(
    action_id: str, value: str, intent: object
) -> None:
    """And a retry the click, so that one that is delivered twice is one run."""
    assert parse_click(click(action_id, value)) == (ACTIONS[action_id], intent)


def test_a_new_button_is_an_entry() -> None:
    """Any click is heard; what it means is found by its action's id."""
    thanks = Action(
        lambda clicked: clicked.user,
        lambda intake, user: intake.feedback(RUN, user=user, is_positive=True),
    )
    known = {**ACTIONS, "orion_thanks": thanks}
    assert parse_click(click("orion_thanks", "run_1"), known) == (thanks, "U1")


def test_a_click_from_another_company_is_marked() -> None:
    """Whether it may ask is for the core to say."""
    parsed = parse_click(click("orion_retry", "run_1", user_team="T2"))
    assert not isinstance(parsed, Ignored)
    assert parsed[1].is_external


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "incomplete"),
        (click("orion_stop", "not an id"), "incomplete"),
        (click("orion_show_log", ""), "incomplete"),
        (click("orion_retry", "run_1", action_ts=""), "incomplete"),
        (click("orion_feedback", "maybe:run_1"), "incomplete"),
        (click("orion_fix", "pr_1"), "incomplete"),
        (click("orion_fix", "pr_1:-2"), "incomplete"),
        (click("orion_fix", f"pr_1:{'9' * 20}"), "incomplete"),
        (click("else", "run_1"), "unknown_action"),
    ],
)
def test_other_clicks_are_ignored(body: dict[str, Any], reason: str) -> None:
    """With the reason for the log."""
    assert parse_click(body) == Ignored(reason=reason)
