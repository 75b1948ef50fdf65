"""`orion doctor` on an install that works, and on ones that are broken in one way each: the part is named, with what to do."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from app.aio import open_task_group
from app.playground.slack.types import FakeSlackConfig
from app.slack.manifest import manifest
from tests.e2e.broken_installs import BROKEN, NOWHERE, BrokenInstall
from tests.e2e.conftest import OpenOrion
from tests.e2e.harness import Stage, open_world
from tests.e2e.orion_process import run_cli

pytestmark = [pytest.mark.e2e, pytest.mark.bubblewrap, pytest.mark.timeout(120)]

WITHIN_S = 10.0


async def lines_of(stage: Stage, **changes: str) -> tuple[int, Mapping[str, str]]:
    """Exit code and lines by their parts, of a doctor that takes no longer than it may."""
    began_s = time.monotonic()
    code, said = await stage.cli("doctor", **changes)
    assert time.monotonic() - began_s < WITHIN_S, said
    return code, {line[5:].split("  ")[0].strip(): line for line in said.splitlines()}


@asynccontextmanager
async def answering(status: int, *, date: str = "") -> AsyncIterator[str]:
    """A server that answers whatever it is asked so."""

    async def answer(_request: web.Request) -> web.Response:
        headers = {"Date": date} if date else {}
        return web.json_response({"ok": True, "error": "x"}, status=status, headers=headers)

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


async def test_an_install_that_works(shared: Stage) -> None:
    """Each part was used; nothing of it is left but a trace of that name."""
    url = f"http://127.0.0.1:{shared.orion.port}"
    code, lines = await lines_of(shared, ORION_PUBLIC_URL=url)
    assert code == 0, lines
    assert not [line for line in lines.values() if line.startswith("FAIL")]
    assert "a synced write takes" in lines["disk"]
    assert f"{url}/slack/events takes what Slack signs" in lines["events"]
    assert "as Slack's" in lines["clock"]
    assert "open files" in lines["machine"]
    assert "anthropic: " in lines["model"]
    assert lines["model"].count(": the key is taken") == 3
    assert "a trace was sent, and read back after" in lines["langfuse"]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.name)
async def test_a_broken_install(shared: Stage, broken: BrokenInstall) -> None:
    """The part is named, with what to do; exit code 1, and no secret of the settings."""
    code, lines = await lines_of(shared, **broken.changes)
    assert code == 1, lines
    line = lines[broken.part]
    assert line.startswith("FAIL")
    assert broken.says in line
    assert f"->  {broken.fix}" in line
    assert "hunter2" not in str(lines)


async def test_a_manifest_that_is_orions(start_orion: OpenOrion) -> None:
    """The app's is asked for and compared."""
    url = "https://orion.acme.example"
    config = FakeSlackConfig(
        rate_limits="off", manifest=manifest(public_url=url, socket_mode=False)
    )
    async with open_world(config) as world, start_orion(world) as stage:
        changes = {"ORION_PUBLIC_URL": url, "SLACK_CONFIG_TOKEN": config.config_token}
        _, lines = await lines_of(stage, **changes)
    assert lines["manifest"].endswith("the app has what `orion manifest` says")


async def test_before_the_first_start(shared: Stage) -> None:
    """Nobody can answer at the public address yet, which is said and is no failure."""
    code, lines = await lines_of(shared, ORION_PUBLIC_URL=NOWHERE, ORION_PORT="9")
    assert code == 0, lines
    assert lines["events"].startswith(f"warn events     {NOWHERE}/slack/events: ConnectError")
    assert lines["events"].endswith("no Orion runs on this machine yet")


async def test_a_key_that_is_not_taken(shared: Stage) -> None:
    async with answering(401) as url:
        code, lines = await lines_of(shared, ANTHROPIC_BASE_URL=url)
    assert code == 1
    assert f"anthropic: {url} does not take the key (HTTP 401)" in lines["model"]


async def test_a_signing_secret_of_another_app(shared: Stage) -> None:
    url = f"http://127.0.0.1:{shared.orion.port}"
    changes = {"ORION_PUBLIC_URL": url, "SLACK_SIGNING_SECRET": "0" * 32}
    code, lines = await lines_of(shared, **changes)
    assert code == 1
    assert "answers a signed delivery with HTTP 401" in lines["events"]
    assert "check SLACK_SIGNING_SECRET" in lines["events"]


async def test_a_clock_that_is_off(shared: Stage) -> None:
    async with answering(200, date="Sat, 01 Jan 2000 00:00:00 GMT") as url:
        code, lines = await lines_of(shared, SLACK_API_URL=f"{url}/")
    assert code == 1
    assert "s ahead of Slack's" in lines["clock"]


async def test_nothing_is_set(shared: Stage, tmp_path: Path) -> None:
    """All that is missing is said at once, and the rest is tried."""
    empty = dict.fromkeys(
        (
            "SLACK_BOT_TOKEN",
            "SLACK_SIGNING_SECRET",
            "ANTHROPIC_API_KEY",
            "LANGFUSE_PUBLIC_KEY",
            "LANGFUSE_SECRET_KEY",
        ),
        "",
    )
    code, lines = await lines_of(shared, **empty, ORION_STATE_DIR=str(tmp_path / "new"))
    assert code == 1
    failed = {part for part, line in lines.items() if line.startswith("FAIL")}
    assert failed >= {"settings", "slack", "events", "model"}
    assert "SLACK_BOT_TOKEN" in lines["settings"]
    assert "ANTHROPIC_API_KEY" in lines["model"]


async def test_a_store_that_is_none(shared: Stage, tmp_path: Path) -> None:
    """Also where rules would be looked up in it: each part is told."""
    state = tmp_path / "state"
    state.mkdir()
    (state / "orion.db").write_bytes(b"no database" * 1000)
    (tmp_path / "orion.toml").write_text('[[permissions]]\nwho = "everyone"\nagents = "*"\n')
    code, said = await run_cli(
        "doctor",
        environment=shared.orion.environment | {"ORION_STATE_DIR": str(state)},
        directory=tmp_path,
    )
    assert code == 1
    assert "Traceback" not in said
    assert "FAIL database" in said
    assert "FAIL rules of permissions" in said
    assert "ok   langfuse" in said


async def test_a_mention_is_followed_to_its_answer(shared: Stage) -> None:
    """From Slack to the thread, with how long each part took."""

    before = len(await shared.client.calls("users.conversations"))

    async def say_when_asked() -> None:
        while len(await shared.client.calls("users.conversations")) == before:
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.5)
        await shared.client.say("@Orion hello")

    async with open_task_group() as group:
        group.create_task(say_when_asked())
        code, said = await shared.cli("doctor", "--mention", "general")
    (line,) = [one for one in said.splitlines() if one[5:].startswith("mention")]
    assert (code, line[:2]) == (0, "ok"), said
    assert "in #general: heard after " in line
    assert "answered after " in line


@pytest.mark.parametrize("channel", ["nowhere", "C0NOWHERE"])
async def test_a_channel_that_is_none(shared: Stage, channel: str) -> None:
    """Nobody is waited for."""
    code, said = await shared.cli("doctor", "--mention", channel)
    assert code == 1
    assert "FAIL mention" in said
