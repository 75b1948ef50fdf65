"""Generated requests, all of them signed: none makes Bolt fail."""

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from slack_bolt.async_app import AsyncApp

from tests.unit.slack.building import deliver, deliver_form, deliver_json, signed

KEYS = st.sampled_from(
    ["type", "event", "team_id", "team", "user", "channel", "authorizations", "view", "message", "item", "actions",
     "enterprise", "enterprise_id", "is_ext_shared_channel", "thread_ts", "text", "ts", "subtype", "files", "command",
     "response_urls", "response_url", "callback_id", "function_data", "assistant_thread", "previous_message", "challenge",
     "id", "action_id", "value", "container", "user_team", "workflow_step", "function_execution_id", "bot_id", "name"]
)  # fmt: skip
VALUES = st.sampled_from(
    ["event_callback", "block_actions", "url_verification", "view_submission", "message", "app_mention", "workflow_step",
     "function_executed", "workflow_step_edit", "workflow_step_execute", "interactive_message", "agent_session_stopped",
     "orion_stop", "orion_feedback", "U1", "C1", "1800000000.000100", "im", "stop", ""]
)  # fmt: skip
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | VALUES | st.text(max_size=5),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(KEYS, children, max_size=6),
    max_leaves=25,
)
BODIES = st.builds(
    lambda kind, event_type, junk, event: {
        **junk,
        "type": kind,
        "event": {**event, "type": event_type},
    },
    VALUES,
    VALUES,
    st.dictionaries(KEYS, JUNK, max_size=8),
    st.dictionaries(KEYS, JUNK, max_size=8),
) | st.dictionaries(KEYS, JUNK, max_size=8)


@given(body=BODIES)
@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
async def test_no_signed_json_makes_bolt_fail(bolt: AsyncApp, body: dict[str, Any]) -> None:
    """Generated payloads end in 200 or 400, never in a 5xx."""
    status, text = await deliver_json(bolt, body)
    assert status in (200, 400), (status, text)


@given(
    payload=st.text(max_size=40) | BODIES.map(json.dumps),
    extra=st.dictionaries(KEYS, st.text(max_size=10), max_size=4),
)
@settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
async def test_no_signed_form_makes_bolt_fail(
    bolt: AsyncApp, payload: str, extra: dict[str, str]
) -> None:
    """Generated forms, with a payload or as commands, end in 200 or 400, never in a 5xx."""
    for fields in ({"payload": payload, **extra}, extra):
        status, text = await deliver_form(
            bolt, {name: value.replace("\ud800", "") for name, value in fields.items()}
        )
        assert status in (200, 400), (status, text)


@given(
    body=st.binary(max_size=300),
    content_type=st.sampled_from(
        ["application/json", "Application/JSON; charset=utf-8", "application/x-www-form-urlencoded"]
    ),
)
@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
async def test_no_signed_bytes_make_bolt_fail(
    bolt: AsyncApp, body: bytes, content_type: str
) -> None:
    """Arbitrary bytes end in 200 or 400."""
    status, text = await deliver(bolt, body, signed(body, content_type=content_type))
    assert status in (200, 400), (status, text)
