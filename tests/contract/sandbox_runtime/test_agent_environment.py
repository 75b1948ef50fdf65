"""What an operator adds to an agent's environment, over the real providers: one rule for all of them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.runs.testing import AddedFile, Additions, AgentEnvironment
from sandbox_runtime import (
    Sandbox,
    SandboxError,
    SandboxErrorCode,
    SandboxProvider,
    SandboxSpec,
    open_sandbox,
)
from sandbox_runtime.providers.docker.provider import DockerProvider
from sandbox_runtime.providers.local.provider import LocalProvider
from tests.faults.plan_agent import PlanAdapter

_TOOL = AddedFile(path="bin/greet", data=b"#!/bin/sh\necho hello\n", executable=True)
_PYTHON = ("python3", "-m", "venv", "--without-pip", "tools")
_LINK = ("ln", "-s", "../tools/bin/python", "bin/own-python")
_KEPT = ("tools/bin/python", "-c", "import os; open('home', 'w').write(os.environ['HOME'])")


@pytest.fixture(
    params=[
        pytest.param("local", marks=pytest.mark.bubblewrap),
        pytest.param("docker", marks=pytest.mark.docker),
    ]
)
async def provider(
    tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[SandboxProvider]:
    made: SandboxProvider = (
        DockerProvider(request.getfixturevalue("docker_settings"))
        if request.param == "docker"
        else LocalProvider(tmp_path / "state")
    )
    async with made as provider:
        yield provider


async def _sh(sandbox: Sandbox, script: str) -> str:
    result = await sandbox.exec(["sh", "-c", script], timeout_s=20)
    assert result.exit_code == 0, result.error_text
    return result.text


async def test_what_is_added_is_there_and_nothing_else(provider: SandboxProvider) -> None:
    """Files and what the commands made lie in their own place; work and home are as empty as without."""
    additions = Additions(files=(_TOOL,), commands=(_PYTHON, _LINK, _KEPT))
    environment = AgentEnvironment(provider, PlanAdapter(), additions)
    steps: list[str] = []
    made = await environment.prepare(steps.append)
    assert steps[-3:] == ["snapshotting", "cleaning up", "done"]
    async with open_sandbox(provider, SandboxSpec(snapshot_id=made.id)) as sandbox:
        root = sandbox.paths.environment
        assert await _sh(sandbox, f"cat {root}/marker") == "plan"
        bin_path = f"{root}/added/bin"
        assert await _sh(
            sandbox, f"PATH={bin_path}:$PATH; greet; own-python -c 'print(6 * 7)'"
        ) == ("hello\n42\n")
        assert await _sh(sandbox, f"cat {root}/added/home") == f"{sandbox.paths.run}/home"
        left = await _sh(sandbox, f"ls -A {sandbox.paths.work} {sandbox.paths.home}")
        assert [line for line in left.splitlines() if line and not line.endswith(":")] == []
        assert (await sandbox.exec(["touch", f"{root}/added/x"], timeout_s=9)).exit_code != 0
    assert await environment.prepare() == made


@pytest.mark.long
@pytest.mark.parametrize("place", ["work", "home"])
async def test_what_would_be_lost_is_refused(provider: SandboxProvider, place: str) -> None:
    """A command that writes into the agent's work directory or home fails the preparation, and says what is there."""
    path = {"work": "/work/notes", "home": "/home/agent/.rc"}[place]
    environment = AgentEnvironment(provider, PlanAdapter(), Additions(commands=(("touch", path),)))
    with pytest.raises(SandboxError, match=path) as caught:
        await environment.prepare()
    assert caught.value.code is SandboxErrorCode.SETUP_FAILED
    assert await provider.find_snapshot(environment.name) is None
    assert await provider.list() == ()


async def test_a_failing_command_leaves_nothing(provider: SandboxProvider) -> None:
    """Its index and the end of its stderr are told; no sandbox, no environment."""
    failing = ("sh", "-c", "echo first >&2; echo last words >&2; exit 3")
    additions = Additions(commands=(("true",), failing), origin="mine")
    environment = AgentEnvironment(provider, PlanAdapter(), additions)
    with pytest.raises(SandboxError, match=r"(?s)^mine\[1\] \(sh\) exited with 3: .*last words$"):
        await environment.prepare()
    assert await provider.find_snapshot(environment.name) is None
    assert await provider.list() == ()
