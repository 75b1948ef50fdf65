"""Many sandboxes at once, all of them at work."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox_runtime import Sandbox, SandboxSpec, open_sandbox
from sandbox_runtime.provider import SandboxProvider
from sandbox_runtime.providers.docker.provider import DockerProvider
from sandbox_runtime.providers.local.provider import LocalProvider
from sandbox_runtime.task_group import open_task_group

WITHIN_S = 30.0
WORK = """
import hashlib, pathlib, sys
digest = b""
for _ in range(20_000):
    digest = hashlib.sha256(digest + sys.argv[1].encode()).digest()
pathlib.Path("result").write_text(f"{sys.argv[1]} {digest.hex()[:8]}")
"""


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        pytest.param("local", 20, marks=pytest.mark.bubblewrap),
        pytest.param("docker", 10, marks=(pytest.mark.docker, pytest.mark.long)),
    ],
)
@pytest.mark.timeout(60)
async def test_a_crowd_works_at_once(
    kind: str,
    count: int,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    record_property: Callable[[str, object], None],
) -> None:
    """None begins before all are there, each finds its own file and nobody else's, and none is left."""
    made: SandboxProvider = LocalProvider(tmp_path / "state")
    if kind == "docker":
        made = DockerProvider(request.getfixturevalue("docker_settings"))
    results: list[str] = []
    there = asyncio.Barrier(count)

    async def live(provider: SandboxProvider, number: int) -> None:
        async with open_sandbox(provider, SandboxSpec(labels={"of": "crowd"})) as sandbox:
            async with there:
                pass
            results.append(await _work(sandbox, str(number)))
            async with there:
                pass  # nobody leaves before all have answered

    started = time.monotonic()
    async with asyncio.timeout(WITHIN_S), made as provider:
        async with open_task_group() as group:
            for number in range(count):
                group.create_task(live(provider, number))
        assert list(await provider.list({"of": "crowd"})) == []
    record_property(f"{count} {kind} sandboxes at once [s]", round(time.monotonic() - started, 1))
    assert sorted(int(result.split()[0]) for result in results) == list(range(count))


async def _work(sandbox: Sandbox, name: str) -> str:
    listed = await sandbox.exec(["ls", "-A"], timeout_s=20)
    assert (listed.exit_code, listed.text) == (0, "")
    done = await sandbox.exec(["python3", "-c", WORK, name], timeout_s=20)
    assert done.exit_code == 0, done.error_text
    return (await sandbox.read_file("result")).decode()
