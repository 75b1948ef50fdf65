"""The real Bolt app behind the request check, as the web room calls them."""

import json
import time
from typing import Any

import pytest
from slack_bolt.async_app import AsyncApp
from structlog.testing import capture_logs

from app.aio import open_task_group
from app.runs.testing import RunRequest, StoppingError
from tests.unit.slack.building import (
    RecordingIntake,
    deliver,
    deliver_form,
    deliver_json,
    make_app,
    mention,
    signed,
)


def action(action_id: str, value: str) -> dict[str, Any]:
    return {
        "type": "block_actions",
        "user": {"id": "U1"},
        "team": {"id": "T1"},
        "channel": {"id": "C1"},
        "container": {"message_ts": "1800000000.000200", "thread_ts": "1800000000.000100"},
        "actions": [{"type": "button", "action_id": action_id, "block_id": "b", "value": value}],
    }


async def test_a_mention_is_taken_in_before_the_200(
    bolt: AsyncApp, intake: RecordingIntake
) -> None:
    """A signed mention reaches intake and is acknowledged."""
    assert (await deliver_json(bolt, mention()))[0] == 200
    (request,) = intake.heard
    assert isinstance(request, RunRequest)
    assert request.text == "hi"


@pytest.mark.parametrize(
    ("error", "level", "reason"),
    [
        (OSError("disk full"), "error", "not_durable"),
        (StoppingError("the service is stopping"), "info", "stopping"),
    ],
)
async def test_what_is_not_durable_is_not_acknowledged(
    bolt: AsyncApp, intake: RecordingIntake, error: OSError, level: str, reason: str
) -> None:
    """When intake fails Slack gets a 500, so that it delivers again; a process that stops is not sick."""
    intake.error = error
    with capture_logs() as logs:
        assert (await deliver_json(bolt, mention()))[0] == 500
    (line,) = (one for one in logs if one["event"] == "event.rejected")
    assert (line["log_level"], line["reason"]) == (level, reason)
    intake.error = None
    assert (await deliver_json(bolt, mention()))[0] == 200


async def test_an_unknown_identity_loses_no_event(intake: RecordingIntake) -> None:
    """Before auth.test has answered, events are taken in all the same, and no call goes out."""
    app = make_app(intake, identity=None)
    assert (await deliver_json(app, mention(type="message")))[0] == 200
    assert len(intake.heard) == 1


async def test_environment_does_not_change_the_app(
    intake: RecordingIntake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SLACK_* variables switch Bolt neither to other tokens nor to OAuth."""
    for name in (
        "SLACK_CLIENT_ID",
        "SLACK_CLIENT_KEY",
        "SLACK_BOT_TOKEN",
        "SLACK_SIGNING_KEY",
    ):
        monkeypatch.setenv(name, "from-the-environment")
    app = make_app(intake)
    assert (await deliver_json(app, mention()))[0] == 200
    assert len(intake.heard) == 1


@pytest.mark.parametrize(
    ("payload", "heard"),
    [
        (
            mention(type="agent_session_stopped", thread_ts="1.0", event_ts="2.0"),
            ("stop_thread", "1.0", "U1", "2.0"),
        ),
        (
            mention(text="stop", thread_ts="1.0", ts="2.0", type="message"),
            ("stop_thread", "1.0", "U1", "2.0"),
        ),
        (
            mention(text="stop", channel="D1", ts="2.0", type="message"),
            ("stop_channel", "T1", "D1", "U1", "2.0"),
        ),
    ],
)
async def test_stops_of_a_thread(
    bolt: AsyncApp, intake: RecordingIntake, payload: dict[str, Any], heard: tuple[str, ...]
) -> None:
    """Slack's own Stop and the word end in the same call; at the top of a direct message the word means all of it."""
    assert (await deliver_json(bolt, payload))[0] == 200
    assert intake.heard == [heard]


async def test_buttons_are_acknowledged_after_intake(
    bolt: AsyncApp, intake: RecordingIntake
) -> None:
    """Stop, feedback and unknown buttons get a 200; a failing intake gets none."""
    for action_id, value in (
        ("orion_stop", "run_1"),
        ("orion_feedback", "down:run_1"),
        ("other", "x"),
    ):
        assert (await deliver_form(bolt, {"payload": json.dumps(action(action_id, value))}))[
            0
        ] == 200
    assert intake.heard == [("stop_run", "run_1", "U1"), ("feedback", "run_1", "U1", False)]
    intake.error = OSError("disk full")
    assert (await deliver_form(bolt, {"payload": json.dumps(action("orion_stop", "run_1"))}))[
        0
    ] == 500


@pytest.mark.parametrize(
    "payload",
    [
        mention(type="app_home_opened", tab="messages"),
        mention(type="team_join", user={"id": "U9"}),
        mention(type="message", subtype="message_changed", message={"user": "U1"}),
        {"type": "app_rate_limited", "team_id": "T1", "minute_rate_limited": 1, "api_app_id": "A"},
        {"type": "view_submission", "team": {"id": "T1"}, "view": {"id": "V"}},
        {"type": "shortcut", "callback_id": "x"},
        {"type": "workflow_step_edit", "callback_id": "x"},
    ],
)
async def test_everything_else_is_acknowledged(
    bolt: AsyncApp, intake: RecordingIntake, payload: dict[str, Any]
) -> None:
    """What Orion does not handle gets a 200, so that Slack does not repeat it, and reaches nobody."""
    assert (await deliver_json(bolt, payload))[0] == 200
    assert intake.heard == []


async def test_slash_commands_are_acknowledged(bolt: AsyncApp) -> None:
    """A command form, which has no payload field, gets a 200."""
    assert (await deliver_form(bolt, {"command": "/orion", "text": "x", "team_id": "T1"}))[0] == 200


@pytest.mark.alone
async def test_acknowledging_takes_little(bolt: AsyncApp) -> None:
    """Check, parse and acknowledge together take under 10 ms in the median, so 50 a second leave room."""
    body = json.dumps(mention()).encode()
    headers = signed(body)
    durations = []
    for _ in range(200):
        started = time.perf_counter()
        assert (await deliver(bolt, body, headers))[0] == 200
        durations.append(time.perf_counter() - started)
    durations.sort()
    print(f"median {durations[100] * 1e3:.2f} ms, p99 {durations[197] * 1e3:.2f} ms")  # noqa: T201 - a figure for the reader
    assert durations[100] < 0.010


async def test_muting_is_told_behind_the_acknowledgement(intake: RecordingIntake) -> None:
    """Once, though Slack tells of a mention twice; what is not durable is not acknowledged."""
    root, ts = "1800000000.000001", "1800000000.000100"
    said = {"thread_ts": root, "text": "<@UBOT> mute"}
    async with open_task_group() as group:
        app = make_app(intake, group=group)
        intake.error = TimeoutError()
        assert (await deliver_json(app, mention(**said)))[0] == 500
        intake.error = None
        for kind in ("message", "app_mention"):
            assert (await deliver_json(app, mention(type=kind, **said)))[0] == 200
        muted = ("mute", root, "U1", ts, True, True)
        assert intake.heard == [muted, muted]
        intake.may_tell.set()
    assert intake.heard == [muted, muted, ("tell_muted", root, "U1", True)]
