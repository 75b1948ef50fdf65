"""The playground and the Orion that it starts, as processes."""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from app.playground.slack.types import FakeSlackConfig
from tests.browser.playground_process import run_playground
from tests.e2e.orion_process import (
    OrionProcess,
    new_state_dir,
    put_environments,
    scrubbed_environment,
)
from tests.fake_slack_client import open_client
from tests.ports import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.bubblewrap, pytest.mark.timeout(120)]


async def test_killed_it_takes_its_orion_along_which_has_nothing_of_the_operators(
    tmp_path: Path,
) -> None:
    """Nobody else would end that one, and the next start would be refused. The offline model needs no gateway's key, and its runs are nobody's records."""
    command = ("-m", "app.cli", "playground", "--port", str(free_port()))
    playground = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        "--state-dir",
        str(tmp_path / "state"),
        env=scrubbed_environment()
        | {
            "AI_GATEWAY_API_KEY": "vck_dummy_of_a_gateway",
            "ORION_DATABASE_URL": "postgresql://orion:geheim@127.0.0.1:1/of_the_operator",
        },
        cwd=tmp_path,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    orion = 0
    try:
        async with asyncio.timeout(60):
            while not orion:
                await asyncio.sleep(0.2)
                orion = _serving_child(playground.pid)
        assert b"AI_GATEWAY" not in _environment(orion)
        assert b"ORION_DATABASE_URL" not in _environment(orion)
        playground.kill()
        await playground.wait()
        async with asyncio.timeout(40):
            await until_gone(orion)
    finally:
        for pid in (playground.pid, orion):
            with suppress(ProcessLookupError):
                if pid:
                    os.kill(pid, signal.SIGKILL)


async def test_its_orion_goes_by_the_env_file_and_the_orion_toml_of_where_it_was_started(
    tmp_path: Path,
) -> None:
    """The environment wins over the file; of that one's Slack it has nothing, whose socket it would open."""
    (tmp_path / ".env").write_text(
        f"ORION_MODEL=of-the-file\nORION_SANDBOX=docker\nORION_MCP_CONFIG_FILE=mcp.json\n"
        f"SLACK_APP_TOKEN={FakeSlackConfig().app_token}\nslack_app_token={FakeSlackConfig().app_token}\n"
    )
    (tmp_path / "mcp.json").write_text('{"mcpServers": {}}')
    (tmp_path / "orion.toml").write_text('[channels.C0RANDOM]\nmodel = "of-the-toml"\n')
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__init__.py").write_text("raise AssertionError('not the app of Orion')")
    # Starting blocks; nothing else goes on here.
    with run_playground(tmp_path, ORION_SANDBOX="local") as url:
        async with open_client(url) as person:
            in_general = (await person.command("/orion settings"))["text"]
            in_random = (await person.command("/orion settings", channel="random"))["text"]
            assert await person.disconnect_sockets("warning") == 0
    assert "model: `of-the-file` (setting)" in in_general
    assert "sandbox: `local` (setting)" in in_general
    assert "model: `of-the-toml` (orion.toml)" in in_random


async def until_gone(pid: int) -> None:
    while _is_there(pid):
        await asyncio.sleep(0.2)


def _is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _environment(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


@pytest.mark.long
@pytest.mark.parametrize("way", ["socket", "http"])
async def test_alone_it_serves_processes_of_ones_own(
    tmp_path: Path, prepared: Path, way: str
) -> None:
    """By the settings that it prints; they need nothing else."""
    port = free_port()
    options = ("--events-url", f"http://127.0.0.1:{port}/slack/events") if way == "http" else ()
    playground = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "app.cli", "playground", "--without-orion", *options),
        env=scrubbed_environment(),
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(60):
            settings = await _printed_settings(playground)
        assert ("SLACK_SIGNING_SECRET" in settings) is (way == "http")
        assert ("SLACK_APP_TOKEN" in settings) is (way == "socket")
        directory = new_state_dir(tmp_path)
        put_environments(prepared, directory)
        orion = OrionProcess(state_dir=directory, settings={**settings, "ORION_PORT": str(port)})
        async with open_client(settings["LANGFUSE_BASE_URL"]) as person:
            try:
                await orion.start()
                root = await person.say("@Orion hello")
                await person.wait_for_reply(root, lambda reply: "hello" in str(reply["blocks"]))
            finally:
                await orion.reap()
        playground.terminate()
        assert await playground.wait() == 0
    finally:
        with suppress(ProcessLookupError):
            playground.kill()
        await playground.wait()


async def _printed_settings(playground: asyncio.subprocess.Process) -> Mapping[str, str]:
    assert playground.stdout is not None
    found: dict[str, str] = {}
    async for line in playground.stdout:
        name, separator, value = line.decode().strip().partition("=")
        if separator:
            found[name] = value
        if name == "LANGFUSE_BASE_URL":  # the last one
            break
    return found


def _serving_child(parent: int) -> int:
    """The pid of the `serve` that this process started; 0 = not yet."""
    for path in Path(f"/proc/{parent}/task").glob("*/children"):
        for child in path.read_text().split():
            if b"\0serve\0" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
    return 0
