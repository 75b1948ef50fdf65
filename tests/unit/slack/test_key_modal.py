"""The modal for people's own keys: the real Bolt app, a Slack that refuses or hangs, payloads of any shape."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from slack_bolt.async_app import AsyncApp
from structlog.testing import capture_logs
from typing_extensions import override

from app.audit.records import Act, AuditQuery
from app.slack.actions import KEYS_ACTION
from app.slack.connection import SlackConnection, SlackOptions, open_slack
from app.slack.key_modal import KEYS_VIEW, Vendor
from app.store.audit import MemoryAuditLog
from app.store.memory import MemoryOwnKeyStore
from tests.unit.slack.building import RecordingIntake, deliver_form, make_app
from tests.unit.slack.conftest import Answer, SlackServer

PERSON = {"user": {"id": "U1", "team_id": "T1"}, "team": {"id": "T1"}}
VENDORS = {
    "openai": Vendor(name="OpenAI", find_problem=lambda key: "" if key[0] == "s" else "not one"),
    "gemini": Vendor(name="Gemini", find_problem=lambda _key: ""),
}


@pytest.fixture
def store() -> MemoryOwnKeyStore:
    return MemoryOwnKeyStore()


@pytest.fixture
def audit() -> MemoryAuditLog:
    return MemoryAuditLog()


@pytest.fixture
def app(
    slack: SlackConnection,
    store: MemoryOwnKeyStore,
    audit: MemoryAuditLog,
    intake: RecordingIntake,
) -> AsyncApp:
    return make_app(intake, keys=slack.key_modal(store, VENDORS, audit=audit))


async def _press(app: AsyncApp, **fields: Any) -> tuple[int, str]:
    action = {"type": "button", "action_id": KEYS_ACTION, "block_id": "b", "value": "run_1"}
    payload = {"type": "block_actions", "trigger_id": "1.2", "actions": [action], **PERSON}
    return await deliver_form(app, {"payload": json.dumps(payload | fields)})


async def _send(app: AsyncApp, values: object, **fields: Any) -> tuple[int, Mapping[str, Any]]:
    view = {"type": "modal", "id": "V1", "callback_id": KEYS_VIEW, "state": {"values": values}}
    payload = {"type": "view_submission", "view": view, **PERSON, **fields}
    status, body = await deliver_form(app, {"payload": json.dumps(payload)})
    return status, json.loads(body or "{}")


def _written(key: str, *, block: str = "openai") -> dict[str, Any]:
    return {block: {"key": {"type": "plain_text_input", "value": key}}}


def _taken_back(*names: object) -> dict[str, Any]:
    options = [{"value": name} for name in names]
    return {"forget": {"forget": {"type": "checkboxes", "selected_options": options}}}


async def test_the_modal_tells_what_is_kept_and_no_more(
    app: AsyncApp, store: MemoryOwnKeyStore, slack_server: SlackServer
) -> None:
    """With the trigger of the press; of a key its last characters."""
    await store.change("T1", "U1", {"openai": "sk-secret-9876"})
    assert (await _press(app))[0] == 200
    (call,) = slack_server.arguments("views.open")
    assert call["trigger_id"] == "1.2"
    blocks = {block.get("block_id"): block for block in call["view"]["blocks"]}
    assert blocks["openai"]["hint"]["text"].startswith("There is one that ends in 9876")
    assert "hint" not in blocks["gemini"]
    offered = [option["value"] for option in blocks["forget"]["element"]["options"]]
    assert offered == ["openai"]
    assert "secret" not in json.dumps(call)


async def test_what_is_written_is_kept_or_corrected(
    app: AsyncApp, store: MemoryOwnKeyStore
) -> None:
    """All or nothing; what is written wins over what is taken back, and what is empty stays."""
    await store.change("T1", "U1", {"gemini": "g-1"})
    assert await _send(app, _written("xx")) == (
        200,
        {"response_action": "errors", "errors": {"openai": "Not one."}},
    )
    assert await _send(app, _written(" sk-1\n") | _taken_back("openai")) == (200, {})
    assert await store.of("T1", "U1") == {"gemini": "g-1", "openai": "sk-1"}
    assert await _send(app, _written("") | _taken_back("gemini", "openai", "nothing")) == (200, {})
    assert await store.of("T1", "U1") == {}


@pytest.mark.parametrize(
    "values",
    [
        *(None, [], "x", 1, {"openai": None}, {"openai": []}, {"openai": {"key": "sk-1"}}),
        *({"openai": {"key": {"value": None}}}, {"forget": {"forget": {"selected_options": 3}}}),
        _taken_back(None, 1, {}, "openai"),
    ],
)
async def test_values_of_any_shape_are_borne(
    app: AsyncApp, store: MemoryOwnKeyStore, values: object
) -> None:
    """Nothing is kept of them, and nothing fails."""
    assert (await _send(app, values))[0] == 200
    assert await store.of("T1", "U1") == {}


@pytest.mark.parametrize(
    "fields",
    [
        {"user": {"id": "U1", "team_id": "T2"}},
        {"user": {"id": "U1", "team_id": "T2"}, "team": {"id": "T2"}},
        {"user": {"id": "U 1", "team_id": "T1"}},
    ],
)
async def test_only_members_of_the_workspace_give_keys(
    app: AsyncApp, store: MemoryOwnKeyStore, slack_server: SlackServer, fields: dict[str, Any]
) -> None:
    """Others see no modal, and one that they send is refused."""
    assert (await _press(app, **fields))[0] == 200
    assert slack_server.arguments("views.open") == []
    _status, answer = await _send(app, _written("sk-1"), **fields)
    assert answer["errors"] == {"openai": "This is for members of this workspace."}
    assert await store.of("T1", "U1") == {}


@pytest.mark.parametrize(
    "answer",
    [Answer(error="expired_trigger_id"), Answer(delay_s=9), Answer(cut=True), Answer(status=503)],
)
async def test_a_modal_that_does_not_open_is_no_failure(
    app: AsyncApp, slack_server: SlackServer, answer: Answer
) -> None:
    """The press is acknowledged in time; the person may press again."""
    slack_server.fail("views.open", answer)
    assert (await _press(app))[0] == 200
    assert len(slack_server.arguments("views.open")) == 1


async def test_what_opens_the_modal_has_one_deadline(
    slack_options: SlackOptions, slack_server: SlackServer, intake: RecordingIntake
) -> None:
    """A slow database leaves Slack less of it, so that both together are within what Slack allows."""

    class Slow(MemoryOwnKeyStore):
        @override
        async def of(self, team: str, person: str) -> Mapping[str, str]:
            await asyncio.sleep(0.4)
            return await super().of(team, person)

    slack_server.fail("views.open", Answer(delay_s=0.4))
    options = replace(slack_options, modal_timeout_s=0.5)
    with capture_logs() as logged:
        async with open_slack(options) as slack:
            assert (
                await _press(
                    make_app(intake, keys=slack.key_modal(Slow(), VENDORS, audit=MemoryAuditLog()))
                )
            )[0] == 200
    (failed,) = (one for one in logged if one["event"] == "slack.update_failed")
    assert (failed["operation"], failed["error"]) == ("modal", "timeout")


async def test_a_press_without_a_trigger_opens_nothing(
    app: AsyncApp, slack_server: SlackServer
) -> None:
    """It is acknowledged."""
    assert (await _press(app, trigger_id=None))[0] == 200
    assert slack_server.arguments("views.open") == []


async def test_what_is_not_kept_is_not_acknowledged(
    slack: SlackConnection, intake: RecordingIntake
) -> None:
    """The person sees that it did not work, and the modal stays."""

    class Sick(MemoryOwnKeyStore):
        @override
        async def change(self, team: str, person: str, keys: Mapping[str, str]) -> None:
            raise OSError("locked")

    app = make_app(intake, keys=slack.key_modal(Sick(), VENDORS, audit=MemoryAuditLog()))
    assert (await _send(app, _written("sk-1")))[0] == 500


async def test_without_own_keys_nothing_is_taken(bolt: AsyncApp, slack_server: SlackServer) -> None:
    """Button and modal are acknowledged as unknown ones are."""
    assert (await _press(bolt))[0] == 200
    assert await _send(bolt, _written("sk-1")) == (200, {})
    assert slack_server.calls == []


async def test_what_was_given_and_taken_back_is_in_the_audit_log(
    app: AsyncApp, audit: MemoryAuditLog
) -> None:
    """Once, by the vendors' names and never a key; nothing of what was wrong or changes nothing."""
    for _ in range(2):
        await _send(app, _written("sk-secret") | _taken_back("gemini"))
    await _send(app, _written("x-wrong"))
    await _send(app, {})
    (entry,) = await audit.find(AuditQuery())
    assert (entry.user, entry.act, entry.target) == (
        "U1",
        Act.OWN_KEYS,
        "gave openai; took back gemini",
    )
