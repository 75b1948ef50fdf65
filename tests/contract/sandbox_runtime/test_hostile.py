# ruff: noqa: ASYNC240  # short looks at the host, in tests
"""Hostile workloads, each bounded by itself too: contained, reported, and the sandbox and its host go on, also with a network that is open to one host."""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from app.aio import open_task_group
from app.egress.hosts import HostEntry
from app.egress.proxy import EgressGrant, EgressProxy
from app.egress.tally import Tally
from sandbox_runtime import (
    BrokeredNetwork,
    ClosedNetwork,
    ExecOutput,
    Sandbox,
    SandboxError,
    SandboxErrorCode,
    SandboxLimits,
    SandboxSpec,
    open_sandbox,
)
from sandbox_runtime.provider import SandboxProvider
from sandbox_runtime.providers.docker.provider import DockerProvider
from sandbox_runtime.providers.local.provider import LocalProvider
from sandbox_runtime.types import Network

_MIB = 1024 * 1024
_LIMITS = SandboxLimits(memory_bytes=512 * _MIB, max_processes=128, max_file_bytes=256 * _MIB)

_KINDS = [
    pytest.param("local", marks=pytest.mark.bubblewrap),
    pytest.param("docker", marks=(pytest.mark.docker, pytest.mark.long)),
]

_FORK_BOMB = """
import os, sys, time
end = time.monotonic() + 20
made = 0
while made < 2000 and time.monotonic() < end:
    try:
        pid = os.fork()
    except OSError:
        time.sleep(0.001)
        continue
    made += 1
    if pid == 0:
        try:
            os.setsid()
        except OSError:
            pass
"""
_ALLOCATE = """
import mmap
kept = []
for _ in range(64):
    block = mmap.mmap(-1, 64 << 20)
    for offset in range(0, len(block), 4096):
        block[offset] = 1
    kept.append(block)
print("all")
"""
_DAEMON = """
import os, sys, time
for _ in range(2):
    if os.fork():
        os._exit(0)
    os.setsid()
os.execve("/bin/sh", ["sh", "-c", "while [ ! -e /work/stop ]; do echo >> /work/beat; sleep 0.02; done"], {})
"""


@pytest.fixture
async def provider(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[SandboxProvider]:
    if kind == "docker":
        made: SandboxProvider = DockerProvider(request.getfixturevalue("docker_settings"))
    else:
        made = LocalProvider(tmp_path / "state")
    async with made as provider:
        yield provider


@pytest.fixture(params=["closed", pytest.param("open", marks=pytest.mark.long)])
async def network(request: pytest.FixtureRequest) -> AsyncIterator[Network]:
    """None, or one of which nothing is used: what it wants of processes, sockets and memory is there beside the workload."""
    if request.param == "closed":
        yield ClosedNetwork()
        return
    tally = Tally()
    grant = EgressGrant(run_id="run_1", entries=[HostEntry(name="listed.example")], tally=tally)
    with TemporaryDirectory(prefix="hostile-") as name:
        door = Path(name, "door")
        for path in (door.parent, door):  # sandboxes, which do not run as root, reach through it
            path.mkdir(exist_ok=True)
            path.chmod(0o711)
        async with (
            open_task_group() as group,
            EgressProxy(group).listen(door / "egress", lambda: grant),
        ):
            yield BrokeredNetwork(endpoint=str(door / "sock"), hosts=("listed.example",))
    assert not tally.uses


@pytest.fixture
async def sandbox(provider: SandboxProvider, network: Network) -> AsyncIterator[Sandbox]:
    async with open_sandbox(provider, SandboxSpec(limits=_LIMITS, network=network)) as sandbox:
        yield sandbox
        assert (await sandbox.exec(["echo", "alive"], timeout_s=20)).text == "alive\n"


pytestmark = [pytest.mark.alone, pytest.mark.parametrize("kind", _KINDS)]


async def test_fork_bomb(sandbox: Sandbox) -> None:
    """2,000 forks that each fork on: ended at the timeout, quickly, and the next command runs."""
    started = time.monotonic()
    with pytest.raises(SandboxError) as caught:
        await sandbox.exec(["python3", "-c", _FORK_BOMB], timeout_s=3)
    assert caught.value.code is SandboxErrorCode.EXEC_TIMEOUT
    assert time.monotonic() - started < 3 + 5


async def test_fork_bomb_of_a_spawned_command(sandbox: Sandbox) -> None:
    """One that runs on in the background can still be killed, however full the sandbox is."""
    process = await sandbox.spawn(["python3", "-c", _FORK_BOMB])
    await asyncio.sleep(2)
    started = time.monotonic()
    await process.kill()
    assert time.monotonic() - started < 5


async def test_allocation(sandbox: Sandbox) -> None:
    """4 GiB of memory, touched, in a sandbox with half a GiB: the command fails."""
    result = await sandbox.exec(["python3", "-c", _ALLOCATE], timeout_s=20)
    assert result.exit_code != 0
    assert "all" not in result.text


async def test_disk_filler(sandbox: Sandbox) -> None:
    """1 GiB into one file stops at the bound of a file, and destroying gives the room back."""
    result = await sandbox.exec(
        ["sh", "-c", "head -c 1073741824 /dev/zero > /work/large; stat -c %s /work/large"],
        timeout_s=20,
    )
    assert result.text == f"{_LIMITS.max_file_bytes}\n"


async def test_room_is_given_back(provider: SandboxProvider) -> None:
    """Destroying a sandbox frees what it wrote."""
    before = shutil.disk_usage("/").free
    async with open_sandbox(provider, SandboxSpec(limits=_LIMITS)) as sandbox:
        await sandbox.exec(["sh", "-c", "head -c 200000000 /dev/zero > large; sync"], timeout_s=20)
    assert before - shutil.disk_usage("/").free < 150_000_000


async def test_endless_line(sandbox: Sandbox) -> None:
    """Output without a newline is cut at its bound, and the command ends at its timeout."""
    with pytest.raises(SandboxError) as caught:
        await sandbox.exec(
            ["sh", "-c", "tr '\\0' x < /dev/zero"], timeout_s=2, max_output_bytes=_MIB
        )
    assert caught.value.code is SandboxErrorCode.EXEC_TIMEOUT
    result = await sandbox.exec(
        ["sh", "-c", "head -c 50000000 /dev/zero | tr '\\0' x"],
        timeout_s=20,
        max_output_bytes=_MIB,
    )
    assert result.stdout_truncated
    assert len(result.stdout) < _MIB + 100


async def test_invalid_utf8(sandbox: Sandbox) -> None:
    """Bytes that are no text arrive as they are, and as text with replacement characters."""
    result = await sandbox.exec(["printf", "a\\377\\376b\\200"], timeout_s=20)
    assert result.stdout == b"a\xff\xfeb\x80"
    assert result.text == "a\ufffd\ufffdb\ufffd"


async def test_deaf_to_sigterm(sandbox: Sandbox) -> None:
    """A command that ignores every signal it can is dead within the kill's bound."""
    process = await sandbox.spawn(
        ["python3", "-c", "import signal, time\nfor n in range(1, 65):\n try: signal.signal(n, signal.SIG_IGN)\n except (OSError, ValueError): pass\nprint('up', flush=True)\ntime.sleep(20)"]
    )  # fmt: skip
    async with asyncio.timeout(20):
        async for event in process.events():
            if isinstance(event, ExecOutput):
                break
    started = time.monotonic()
    await process.kill()
    assert time.monotonic() - started < 5


async def test_detaching_daemon(sandbox: Sandbox) -> None:
    """A daemon of its own session, orphaned twice and without any variable, ends with the command that started it."""
    assert (await sandbox.exec(["python3", "-c", _DAEMON], timeout_s=20)).exit_code == 0
    count = ["sh", "-c", "cat /work/beat 2>/dev/null | wc -l"]
    before = (await sandbox.exec(count, timeout_s=20)).text
    await asyncio.sleep(0.3)
    assert (await sandbox.exec(count, timeout_s=20)).text == before


async def test_killing_everything_in_reach(sandbox: Sandbox) -> None:
    """A command that kills whatever it sees ends; what it could not kill goes on serving."""
    await sandbox.exec(["python3", "-c", "import os; os.kill(-1, 9)"], timeout_s=20)


async def test_paths_leaving_the_workspace(sandbox: Sandbox) -> None:
    """Dots and links lead where they lead inside, never to the host."""
    await sandbox.write_file("../../../../work/dots", b"inside")
    assert await sandbox.read_file("dots") == b"inside"
    marker = Path("/tmp", f"hostile-{time.monotonic_ns()}")  # noqa: S108  # the host's, to look for
    await sandbox.exec(["ln", "-s", str(marker.parent), "leaving"], timeout_s=20)
    await sandbox.write_file(f"leaving/{marker.name}", b"from inside")
    assert not marker.exists()
    with pytest.raises(PermissionError):
        await sandbox.write_file("/../etc/passwd", b"root::0:0::/:/bin/sh")


@pytest.mark.long
async def test_many_files(sandbox: Sandbox) -> None:
    """100,000 files are made, counted and removed with their sandbox."""
    script = "import os\nfor n in range(100_000): os.close(os.open(f'/work/{n}', os.O_CREAT))\nprint(len(os.listdir('/work')))"
    result = await sandbox.exec(["python3", "-c", script], timeout_s=20)
    assert result.text == "100000\n"
