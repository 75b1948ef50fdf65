# ruff: noqa: PTH208  # short looks at the host, in tests
"""`orion snapshots …` and `orion.toml`, with the real agent in real sandboxes."""

import asyncio
import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from sandbox_runtime.providers.local.provider import LocalProvider
from tests.e2e.harness import open_orion, open_world, text_of
from tests.e2e.orion_process import (
    new_state_dir,
    put_environments,
    run_cli,
    scrubbed_environment,
)

pytestmark = [pytest.mark.e2e, pytest.mark.bubblewrap, pytest.mark.timeout(180)]

_TOML = """
[agents.anthropic]
files = { "bin/greet" = "greet.sh" }
commands = [["sh", "-c", "echo from the command > greeting"]]
"""
_TOOL = '#!/bin/sh\ncat "${0%/*}/../greeting"\n'


@pytest.fixture
def directory(tmp_path: Path, prepared: Path) -> Path:
    """With an `orion.toml`, and a state directory `made` that holds the environment without additions."""
    (tmp_path / "orion.toml").write_text(_TOML)
    (tmp_path / "greet.sh").write_text(_TOOL)
    (tmp_path / "greet.sh").chmod(0o755)
    put_environments(prepared, tmp_path / "made")
    return tmp_path


def _environment(directory: Path) -> dict[str, str]:
    return scrubbed_environment() | {"ORION_STATE_DIR": str(directory / "made")}


@pytest.mark.long
async def test_built_found_by_the_agent_and_removed(directory: Path) -> None:
    """Every step is told; the agent finds the tool by its name; the older environment stays until it is removed."""
    code, said = await run_cli(
        "snapshots", "build", environment=_environment(directory), directory=directory
    )
    assert code == 0, said
    name, *steps = [re.sub(r"^ *\d+\.\d\d s  ", "", line) for line in said.splitlines()]
    used = name.removesuffix(", on local")
    assert [step for step in steps if not step.startswith(("base: ", "ready: "))] == [
        *("checking", "creating", "booting"),
        *("installing python3 (1/7)", "installing python (2/7)", "installing python (3/7)"),
        *("installing python (4/7)", "installing mkdir (5/7)", "installing sh (6/7)"),
        *("installing sh (7/7)", "snapshotting", "cleaning up", "done"),
    ]
    async with (
        open_world() as world,
        open_orion(world, new_state_dir(directory), directory / "made") as stage,
    ):
        ts = await stage.client.say("@Orion run: greet")
        assert "from the command" in text_of(await stage.answer(ts))
        assert stage.orion.log_lines("environment.preparing") == []
        assert (await stage.record(ts)).result.changes is None
        code, said = await stage.cli("snapshots", "list", "--json")
        rows = json.loads(said)
        assert [(row["agent"], row["in_use"]) for row in rows] == [
            *(("anthropic", False), ("anthropic", True)),
        ]
        old = rows[0]["name"]
        assert used == rows[1]["name"] == f"{old}-{used[-8:]}"
        assert all(row["size_bytes"] > 1_000_000 for row in rows)
        assert await stage.cli("snapshots", "rm", "--old") == (0, f"{old}: removed\n")


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGINT, id="cancelled", marks=pytest.mark.long),
        pytest.param(signal.SIGKILL, id="killed"),
    ],
)
async def test_a_build_that_ends_early_leaves_nothing(
    directory: Path, number: signal.Signals
) -> None:
    """Cancelled it cleans up by itself; after a crash whoever comes next does."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "app.cli", "snapshots", "build"),
        env=_environment(directory),
        cwd=directory,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    said = []
    async with asyncio.timeout(30):
        async for line in process.stdout:
            said.append(line.decode().strip())
            if "(1/7)" in said[-1]:
                process.send_signal(number)
        await process.wait()
    assert process.returncode != 0
    sandboxes = directory / "made" / "sandboxes"
    if number == signal.SIGINT:
        assert [line.split("  ")[-1] for line in said[-2:]] == ["cleaning up", "error"]
        assert os.listdir(sandboxes) == []
    async with LocalProvider(directory / "made") as provider:
        assert len(await provider.list_snapshots()) == 2  # the base and the plain one
    assert os.listdir(sandboxes) == []
    assert len(os.listdir(directory / "made" / "environments")) == 2


async def test_a_machine_without_sandboxes_is_an_error(directory: Path) -> None:
    """The code and the reason in a line, exit code 1, no traceback."""
    environment = _environment(directory) | {"PATH": "/nowhere"}
    code, said = await run_cli("snapshots", "build", environment=environment, directory=directory)
    assert code == 1
    assert "FAIL SANDBOX_CREATION_FAILED: " in said.splitlines()[-1]
    assert "Traceback" not in said
