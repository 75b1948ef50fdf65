"""The command line beside a running service, and starts that must not succeed."""

import asyncio
import json
import time
from collections.abc import Callable

import pytest

from app.playground.slack.types import YOU
from app.runs.testing import RunId
from tests.e2e.harness import WITH_POOL, Stage, has_stop_button, run_of, text_of
from tests.e2e.orion_process import run_cli

pytestmark = [pytest.mark.e2e, pytest.mark.bubblewrap, pytest.mark.timeout(180)]

FAILED, USAGE = 1, 2


@pytest.mark.long
@pytest.mark.alone
async def test_runs_are_listed_shown_and_stopped(
    shared: Stage, record_property: Callable[[str, object], None]
) -> None:
    """`orion runs` reads the running service's records, and a stop reaches it within two seconds."""
    ts = await shared.client.say("@Orion !slow 40")
    message = await shared.client.wait_for_reply(ts, lambda r: "model and I write" in text_of(r))
    run_id = shared.run_id(ts)
    code, listed = await shared.cli("runs", "list", "--json")
    assert code == 0
    assert json.loads(listed)[0] | {"id": run_id, "state": "running"} == json.loads(listed)[0]
    code, shown = await shared.cli("runs", "show", run_id[:12])
    assert code == 0
    assert "claude-sonnet-5-5" in shown
    code, said = await shared.cli("runs", "stop", run_id)
    asked = time.time()
    assert (code, said) == (0, "asked to stop\n")
    record = await shared.ended(ts, timeout_s=5)
    assert record.ended_at is not None
    took_s = record.ended_at.timestamp() - asked
    record_property("orion runs stop to ended run [s]", round(took_s, 2))
    assert took_s < 2
    assert "Stopped by operator" in text_of((await shared.bot_messages(ts))[0])
    assert message["ts"] == (await shared.bot_messages(ts))[0]["ts"]
    code, said = await shared.cli("runs", "stop", run_id)
    assert code == FAILED
    assert "over" in said
    assert (await shared.cli("runs", "show", "run_nosuch"))[0] == FAILED


async def test_a_failed_run_is_asked_again(shared: Stage) -> None:
    """From the command line, as Retry in Slack would: as its asker, in its thread, once for each; what has not failed is not."""
    ts = await shared.client.say("@Orion !context")
    await shared.answer(ts)
    run_id = shared.run_id(ts)
    code, said = await shared.cli("runs", "retry", run_id)
    assert code == 0, said
    again = said.strip()
    answer = await shared.client.wait_for_reply(
        ts, lambda reply: run_of(reply) == again and not has_stop_button(reply), timeout_s=60
    )
    assert "too long for the model" in str(answer["blocks"])
    record = await shared.orion.run(RunId(again))
    assert record is not None
    assert (record.request.retry_of, record.request.user) == (run_id, YOU)
    well = await shared.client.say("@Orion hello")
    await shared.answer(well)
    code, said = await shared.cli("runs", "retry", shared.run_id(well))
    assert (code, "has not failed: it is succeeded" in said) == (FAILED, True)


async def test_verify_and_doctor_work_beside_the_service(shared: Stage) -> None:
    """`orion verify` makes one real run; `orion doctor` has a good word for every part, and a fix for a bad one."""
    code, said = await shared.cli("verify")
    assert code == 0, said
    assert "agent: anthropic, anthropic 2." in said
    for step in ("restore-environment", "sandbox-create", "write-script", "execute-agent"):
        assert f"ok   {step}" in said
    code, said = await shared.cli("doctor", "--json")
    findings = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert code == 0, said
    parts = ["machine", "settings", "disk", "database", "engine", "sandbox", "pool"]
    parts += ["slack", "events", "clock", "model", "own keys", "agents", "langfuse"]
    assert [finding["part"] for finding in findings] == parts
    code, said = await shared.cli(
        "doctor", SLACK_BOT_TOKEN="xoxb-wrong", ORION_PORT="1", **WITH_POOL
    )
    assert code == FAILED
    assert "sandboxes prepared: 1 on this machine, 1 at clouds" in said
    assert " wait; taken" not in said  # nobody answers at that port
    assert "FAIL slack      auth.test: invalid_auth  ->  check the token" in said
    nowhere = {"ORION_SANDBOX": "docker", "DOCKER_HOST": "unix:///nowhere.sock"}
    code, said = await shared.cli("doctor", **nowhere)
    (line,) = (line for line in said.splitlines() if line.startswith("FAIL sandbox"))
    assert line.endswith("->  start the engine, or set ORION_SANDBOX=local")
    code, said = await shared.cli("verify", "--agent", "cursor")
    assert (code, said.splitlines()[-1]) == (
        FAILED,
        "FAIL CURSOR_API_KEY: missing; the agent cursor asks its maker's own servers",
    )


async def test_a_second_service_on_the_same_state_is_refused(shared: Stage) -> None:
    """One clear line that names the owner, exit code 1; the first goes on."""
    code, said = await shared.cli("serve", ORION_PORT="0")
    assert code == FAILED
    assert said.count("\n") == 1, said
    assert f"in use by another Orion process (pid {shared.orion.pid})" in said
    assert "still here" in await shared.ask("@Orion still here")


async def test_bad_settings_are_named_all_together(shared: Stage) -> None:
    """Exit code 2, a line for each, and no secret's value."""
    bad = {
        "ORION_PORT": "many",
        "ORION_MAX_CONCURRENT_RUNS": "0",
        "ORION_AGENT": "hal9000",
        "SLACK_API_URL": "ftp://example.com",
    }
    code, said = await shared.cli("serve", **bad)
    assert code == USAGE
    for name in bad:
        assert f"{name}: " in said
    wanted = ("SLACK_BOT_TOKEN", "SLACK_SIGNING_SECRET", "ANTHROPIC_API_KEY")
    bare = {k: v for k, v in shared.orion.environment.items() if k not in wanted}
    code, said = await run_cli("serve", environment=bare)
    assert code == USAGE
    assert all(name in said for name in wanted)
    code, said = await shared.cli("serve", SLACK_APP_TOKEN="not-an-app-token-3141")
    assert code == USAGE
    assert "SLACK_APP_TOKEN" in said
    assert "3141" not in said


async def test_a_run_is_shown_once_more_in_a_channel(shared: Stage) -> None:
    """In a thread of its own, by its record alone: no model is asked, no sandbox made, and it looks as it did."""
    ts = await shared.client.say("@Orion run: echo replayed")
    before = text_of(await shared.answer(ts))
    run_id = shared.run_id(ts)
    asked = len(await shared.world.model_requests())
    channel = shared.channel_id("general")
    code, said = await shared.cli("runs", "replay", run_id, "--channel", channel, "--speed", "0")
    assert code == 0, said
    assert said.startswith("sent: http")
    root = (await shared.client.messages())[-1]
    assert root["text"] == f"Replay of {run_id}: run: echo replayed"
    (shown,) = await shared.client.replies(root["ts"])
    assert text_of(shown).splitlines()[:-1] == before.splitlines()[:-1]
    assert len(await shared.world.model_requests()) == asked
    code, said = await shared.cli("runs", "replay", "run_nosuch", "--channel", channel)
    assert (code, said.count("\n")) == (FAILED, 1)
    code, said = await shared.cli("runs", "replay", run_id, "--channel", "C0NOSUCH")
    assert code == FAILED
    assert "channel_not_found" in said


async def test_langfuse_is_asked_for_the_last_traces(shared: Stage) -> None:
    """Each that is there, one that was left out, and a Langfuse that has none."""
    run = await shared.ended(await shared.client.say("@Orion hello"))
    async with asyncio.timeout(10):  # it is told in the background
        while True:
            code, said = await shared.cli("traces", "check", "--limit", "1")
            if code == 0:
                break
    assert said.startswith(f"ok   {run.id}  {run.trace_id}  ")
    code, said = await shared.cli("traces", "check", "--limit", "1", "--json")
    (row,) = json.loads(said)
    assert (code, row["ok"], row["run_id"], row["missing_steps"]) == (0, True, run.id, 0)
    assert row["observations"] > 1
    code, said = await shared.cli("traces", "check", LANGFUSE_SAMPLE_RATE="0")
    assert code == 0
    assert f"-    {run.id}  left out by LANGFUSE_SAMPLE_RATE" in said
    code, said = await shared.cli("traces", "check", LANGFUSE_SECRET_KEY="sk-wrong")
    assert code == FAILED
    assert "does not show traces (HTTP 401)" in said
    code, said = await shared.cli("traces", "check", LANGFUSE_PUBLIC_KEY="", LANGFUSE_SECRET_KEY="")
    assert (code, said.partition(":")[0]) == (FAILED, "there are no traces")
