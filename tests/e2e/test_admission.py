"""Who may not ask is told so alone; nobody else sees anything, and no sandbox is made."""

import pytest

from app.playground.slack.types import COLLEAGUE, EXTERNAL, YOU
from app.runs.testing import RunState
from app.slack.actions import STOP_ACTION
from tests.e2e.conftest import OpenOrion
from tests.e2e.harness import Stage, World

pytestmark = [pytest.mark.e2e, pytest.mark.bubblewrap, pytest.mark.timeout(180)]


@pytest.mark.long
async def test_lists_outsiders_and_the_hourly_limit(world: World, start_orion: OpenOrion) -> None:
    """Each refusal is an ephemeral message to the asker that names the reason."""
    async with start_orion(
        world,
        ORION_ALLOWED_USERS=f"{YOU},{EXTERNAL}",
        ORION_ALLOWED_CHANNELS="C0GENERAL, C0PARTNERS",
        ORION_RUNS_PER_USER_HOUR="2",
    ) as stage:
        await _assert_refused(stage, "not switched on in this channel", channel="random")
        await _assert_refused(stage, "not on the list", user=COLLEAGUE)
        await _assert_refused(stage, "other organisations", user=EXTERNAL, channel="partners")
        await _assert_refused(stage, "other organisations", user=EXTERNAL, channel=EXTERNAL)
        assert "allowed" in await stage.ask("@Orion allowed")
        await _assert_cannot_stop(stage, user=COLLEAGUE)
        await _assert_refused(stage, "used your 2 runs")
        given = [stage.orion.log_lines(f"sandbox.{how}") for how in ("created", "taken")]
        assert sum(map(len, given)) == 2


async def _assert_cannot_stop(stage: Stage, *, user: str) -> None:
    """The word, the button and Slack's own Stop of somebody off the list change nothing."""
    ts = await stage.client.say("@Orion !slow 3")
    message = await stage.thinking(ts)
    await stage.client.say("stop", thread_ts=ts, user=user)
    await stage.client.press(message, STOP_ACTION, user=user)
    await stage.client.stop(ts, user=user)
    await stage.answer(ts)
    assert (await stage.record(ts)).state is RunState.SUCCEEDED


async def _assert_refused(
    stage: Stage, reason: str, *, user: str = YOU, channel: str = "general"
) -> None:
    ts = await stage.client.say("@Orion may I?", user=user, channel=channel)
    record = await stage.ended(ts, channel=channel)
    assert record.state is RunState.FAILED
    shown = await stage.client.messages(channel=channel)
    found = [message for message in shown if message["is_bot"] and message["ts"] > ts]
    assert [message["ephemeral_to"] for message in found] == [user], found
    assert reason in found[0]["text"]
    assert await stage.client.replies(ts, channel=channel) == []
    assert record.sandbox_id is None
    assert record.attempt == 0
