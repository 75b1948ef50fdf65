# short looks at the host, in tests
"""How Docker sandboxes end and are found again: crashes, cancellations, namespaces on one engine."""

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sandbox_runtime import (
    ExecOutput,
    Sandbox,
    SandboxError,
    SandboxErrorCode,
    SandboxId,
    SandboxLimits,
    SandboxSpec,
    SandboxStats,
    open_sandbox,
)
from sandbox_runtime.providers.docker import DockerSettings
from sandbox_runtime.providers.docker.provider import DockerProvider
from sandbox_runtime.task_group import open_task_group
from tests.contract.sandbox_runtime.docker_engine import count, sh

pytestmark = pytest.mark.docker

_REPOSITORY = Path(__file__).parents[3]


_VICTIM = """
import asyncio, sys
from sandbox_runtime import SandboxSpec
from sandbox_runtime.providers.docker import DockerSettings
from sandbox_runtime.providers.docker.provider import DockerProvider

async def main():
    async with DockerProvider(DockerSettings(name=sys.argv[1], image=sys.argv[2], docker_host=sys.argv[3])) as provider:
        sandbox = await provider.create(SandboxSpec(env={"TOKEN": "of the spec"}, labels={"run": "r1"}))
        await sandbox.write_file("file", b"kept")
        process = await sandbox.spawn(["sh", "-c", "while :; do echo >> beat; sleep 0.02; done"])
        print(sandbox.id, flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.fixture
def orphan(docker_settings: DockerSettings) -> SandboxId:
    """A sandbox whose service was killed by SIGKILL, with a command that beats."""
    settings = (docker_settings.name, docker_settings.image or "", docker_settings.docker_host)
    argv = [sys.executable, "-c", _VICTIM, *settings]
    env = {"PYTHONPATH": str(_REPOSITORY), "PATH": os.defpath}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=env, cwd=_REPOSITORY) as victim:
        assert victim.stdout is not None
        sandbox_id = victim.stdout.readline().decode().strip()
        victim.kill()
    return SandboxId(sandbox_id)


@pytest.mark.long
async def test_attach_after_a_crash(provider: DockerProvider, orphan: SandboxId) -> None:
    """Another process finds the sandbox, its files, its variables and the command that still runs in it."""
    (info,) = await provider.list({"run": "r1"})
    assert (info.id, info.running) == (orphan, True)
    sandbox = await provider.attach(orphan)
    assert await provider.attach(orphan) is sandbox
    assert await sandbox.read_file("file") == b"kept"
    assert await sh(sandbox, "echo $TOKEN") == "of the spec\n"
    before = int(await sh(sandbox, "wc -l < beat"))
    await asyncio.sleep(0.3)
    assert int(await sh(sandbox, "wc -l < beat")) > before
    ref = await sandbox.snapshot()
    assert await sh(sandbox, "cat /proc/[0-9]*/comm | grep -c sleep; true") == "0\n"
    await sandbox.destroy()
    async with open_sandbox(provider, SandboxSpec(snapshot_id=ref.id)) as restored:
        assert await restored.read_file("file") == b"kept"


async def test_other_names_are_not_seen(
    docker_settings: DockerSettings, provider: DockerProvider, orphan: SandboxId
) -> None:
    """Two services on one engine neither list, attach to, nor sweep each other's sandboxes."""
    async with DockerProvider(replace(docker_settings, name="test-other")) as other:
        assert list(await other.list()) == []
        with pytest.raises(SandboxError) as caught:
            await other.attach(orphan)
        assert caught.value.code is SandboxErrorCode.NOT_FOUND
        await other.remove(orphan)
        assert await other.sweep() == 0
    (info,) = await provider.list()
    assert info.id == orphan
    await provider.remove(orphan)
    assert list(await provider.list()) == []


async def test_sweep(
    docker_settings: DockerSettings, provider: DockerProvider, orphan: SandboxId
) -> None:
    """What a dead process left goes, but for what is to be kept; a living one's sandboxes stay."""
    async with open_sandbox(provider, SandboxSpec()) as mine:
        async with DockerProvider(docker_settings) as second:
            assert await second.sweep(keep=[orphan]) == 0
            assert {info.id for info in await second.list()} == {mine.id, orphan}
            assert await second.sweep() == 1
            assert {info.id for info in await second.list()} == {mine.id}
        assert await sh(mine, "echo alive") == "alive\n"
    assert count(docker_settings, "volume", "ls") == 0


async def test_leaving_destroys_what_is_left(docker_settings: DockerSettings) -> None:
    """Leaving the provider removes containers and volumes that nobody destroyed."""
    async with DockerProvider(docker_settings) as provider:
        sandbox = await provider.create(SandboxSpec())
        await sandbox.spawn(["sleep", "60"])
        assert count(docker_settings, "volume", "ls") == 3
    assert count(docker_settings, "ps", "--all") == 0
    assert count(docker_settings, "volume", "ls") == 0


@pytest.mark.long
async def test_maximum_age(docker_settings: DockerSettings) -> None:
    """A sandbox that nobody destroys ends itself, and the engine removes it with its volumes."""
    async with DockerProvider(replace(docker_settings, max_age_s=1.5)) as provider:
        sandbox = await provider.create(SandboxSpec())
        with pytest.raises(SandboxError) as caught:
            await sandbox.exec(["sleep", "20"], timeout_s=20)
        assert caught.value.code is SandboxErrorCode.UNAVAILABLE
        with pytest.raises(SandboxError) as caught:
            await sandbox.exec(["true"], timeout_s=20)
        assert caught.value.code is SandboxErrorCode.UNAVAILABLE
        async with asyncio.timeout(10):
            while count(docker_settings, "volume", "ls"):
                await asyncio.sleep(0.05)


async def test_cancelled_create_leaves_nothing(
    docker_settings: DockerSettings, provider: DockerProvider
) -> None:
    """Whenever a creation is cancelled, no container stays."""

    async def create() -> None:
        await provider.create(SandboxSpec())

    for delay_s in (0.0, 0.01, 0.03, 0.06, 0.12):
        async with open_task_group() as group:
            task = group.create_task(create())
            await asyncio.sleep(delay_s)
            task.cancel()
    assert count(docker_settings, "ps", "--all") == 0


async def test_cancelled_destroy_is_finished(provider: DockerProvider) -> None:
    """A cancellation that hits the destruction itself comes after it."""
    sandbox = await provider.create(SandboxSpec(labels={"of": "cancelled-destroy"}))
    async with open_task_group() as group:
        task = group.create_task(sandbox.destroy())
        await asyncio.sleep(0.005)
        task.cancel()
    assert list(await provider.list({"of": "cancelled-destroy"})) == []
    assert sandbox.id not in provider._sandboxes


@pytest.mark.long
async def test_destroyed_while_a_command_starts(provider: DockerProvider) -> None:
    """However far its start has come, a command under which the sandbox is destroyed counts as killed."""
    for delay_s in (0.0, 0.01, 0.02, 0.04, 0.08):
        sandbox = await provider.create(SandboxSpec())
        async with open_task_group() as group:
            waiting = group.create_task(sandbox.exec(["sleep", "60"], timeout_s=60))
            await asyncio.sleep(delay_s)
            await sandbox.destroy()
        assert waiting.result().exit_code == 137


@pytest.mark.long
async def test_killed_runner_leaves_nothing(provider: DockerProvider) -> None:
    """A command that kills what runs it, and leaves something behind, gains nothing."""
    script = "setsid sh -c 'while :; do echo >> /work/beat; sleep 0.02; done' & sleep 0.2; kill -9 $PPID; sleep 5"
    async with open_sandbox(provider, SandboxSpec()) as sandbox:
        result = await sandbox.exec(["sh", "-c", script], timeout_s=20)
        assert result.exit_code == 137
        before = int(await sh(sandbox, "wc -l < beat"))
        assert before > 0
        await asyncio.sleep(0.3)
        assert int(await sh(sandbox, "wc -l < beat")) == before


async def test_init_cannot_be_killed_from_inside(provider: DockerProvider) -> None:
    """No signal from inside ends the container."""
    script = "for n in $(seq 1 31); do [ $n = 10 ] || kill -$n 1; done; sleep 0.2; echo alive"
    async with open_sandbox(provider, SandboxSpec()) as sandbox:
        assert await sh(sandbox, script) == "alive\n"


async def test_sandbox_lost_under_a_command(
    docker_settings: DockerSettings, provider: DockerProvider
) -> None:
    """A container removed by somebody else is an error, not a failed command, and soon."""
    async with open_sandbox(provider, SandboxSpec()) as sandbox:
        process = await sandbox.spawn(["sh", "-c", "echo up; sleep 60"])
        events = process.events()
        async with asyncio.timeout(10):
            assert isinstance(await anext(events), ExecOutput)
            argv = ["docker", "rm", "-f", f"orion-{provider.namespace}-{sandbox.id}"]
            subprocess.run(argv, check=True, capture_output=True)  # noqa: ASYNC221  # short
            with pytest.raises(SandboxError) as caught:
                await anext(events)
        assert caught.value.code is SandboxErrorCode.UNAVAILABLE
    # Removed without its volumes: they go with the next sweep.
    assert count(docker_settings, "volume", "ls") == 3
    await provider.sweep()
    assert count(docker_settings, "volume", "ls") == 0


@pytest.mark.long
async def test_a_released_sandbox_outlives_its_provider(docker_settings: DockerSettings) -> None:
    """It goes on when its maker is closed; another one finds it by its container's name, and ends it."""
    async with DockerProvider(docker_settings) as maker:
        sandbox = await maker.create(SandboxSpec())
        await sandbox.write_file("file", b"kept")
        maker.release(sandbox.id)
    async with DockerProvider(docker_settings) as other:
        found = await other.attach(sandbox.id)
        assert found.container_name == sandbox.container_name
        assert sandbox.id in found.container_name
        assert await found.read_file("file") == b"kept"
    async with DockerProvider(docker_settings) as last:
        assert await last.find(sandbox.id) is None  # the second one owned it


@pytest.mark.long
async def test_how_a_sandbox_ended_is_known(docker_settings: DockerSettings) -> None:
    """The exit code of one that ended by itself, though its container is gone; nothing of one that was ended."""
    settings = replace(docker_settings, max_age_s=1.0)
    async with DockerProvider(settings) as provider:
        aged = await provider.create(SandboxSpec())
        found = await provider.find(aged.id)
        assert found is not None
        assert (found.running, found.exit_code) == (True, None)
        async with asyncio.timeout(15):
            while found is None or found.running:
                await asyncio.sleep(0.1)
                found = await provider.find(aged.id)
        assert found.exit_code == 0
    async with DockerProvider(docker_settings) as provider:
        ended = await provider.create(SandboxSpec())
        await ended.destroy()
        assert await provider.find(ended.id) is None


@pytest.mark.long
async def test_no_descriptor_stays(provider: DockerProvider) -> None:
    """Execs, kills and timeouts leave no open files."""
    async with open_sandbox(provider, SandboxSpec()) as sandbox:
        await _use(sandbox)
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        for _ in range(3):
            await _use(sandbox)
        assert len(os.listdir("/proc/self/fd")) <= before  # noqa: PTH208


async def _use(sandbox: Sandbox) -> None:
    await sandbox.exec(["cat"], timeout_s=20, stdin=b"x" * 100_000)
    process = await sandbox.spawn(["yes"])
    async for _ in process.events():
        break
    await process.kill()
    with pytest.raises(SandboxError):
        await sandbox.exec(["sleep", "9"], timeout_s=0.05)


async def test_what_a_sandbox_uses_is_told(
    docker_settings: DockerSettings, provider: DockerProvider
) -> None:
    """Memory that is written counts, and processor time grows; nothing is told of one that is gone or another service's."""
    spec = SandboxSpec(limits=SandboxLimits(memory_bytes=512 * 1024 * 1024))
    async with open_sandbox(provider, spec) as sandbox:
        before = await provider.stats(sandbox.id)
        await sandbox.exec(["python3", "-c", _BUSY], timeout_s=60)
        holding = await sandbox.spawn(["python3", "-c", _HOLDING])
        async with asyncio.timeout(30):
            while ((await provider.stats(sandbox.id)).memory_bytes or 0) < _HELD_BYTES:
                await asyncio.sleep(0.1)
        after = await provider.stats(sandbox.id)
        assert before.cpu_s is not None
        assert after.cpu_s is not None
        assert after.cpu_s - before.cpu_s >= 0.5
        assert after.memory_limit_bytes == 512 * 1024 * 1024
        assert after.ends_at is None
        await holding.kill()
        async with DockerProvider(replace(docker_settings, name="test-other")) as other:
            assert await other.stats(sandbox.id) == SandboxStats()
    assert await provider.stats(sandbox.id) == SandboxStats()
    assert await provider.stats(SandboxId("../x")) == SandboxStats()


_HELD_BYTES = 60 * 1024 * 1024
_BUSY = "import time; t = time.process_time()\nwhile time.process_time() - t < 0.6: pass"
_HOLDING = f"held = b'x' * {_HELD_BYTES + 8 * 1024 * 1024}; import time; time.sleep(60)"
