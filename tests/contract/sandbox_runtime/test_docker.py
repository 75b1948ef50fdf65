# ruff: noqa: ASYNC240  # short looks at the host, in tests
"""What only the Docker provider promises: hardening as seen from inside, re-attachment, namespaces on one engine."""

import asyncio
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sandbox_runtime import (
    BrokeredNetwork,
    ExecOutput,
    OpenNetwork,
    Sandbox,
    SandboxError,
    SandboxErrorCode,
    SandboxId,
    SandboxSpec,
    open_sandbox,
)
from sandbox_runtime.providers.docker import DockerProvider, DockerSettings
from sandbox_runtime.providers.docker.base import BaseImage
from sandbox_runtime.providers.docker.engine import open_engine
from sandbox_runtime.providers.docker.images import Images
from sandbox_runtime.task_group import open_task_group

pytestmark = pytest.mark.docker

_REPOSITORY = Path(__file__).parents[3]

_VICTIM = """
import asyncio, sys
from sandbox_runtime import SandboxSpec
from sandbox_runtime.providers.docker import DockerProvider, DockerSettings

async def main():
    async with DockerProvider(DockerSettings(name=sys.argv[1], image=sys.argv[2])) as provider:
        sandbox = await provider.create(SandboxSpec(env={"TOKEN": "of the spec"}, labels={"run": "r1"}))
        await sandbox.write_file("file", b"kept")
        process = await sandbox.spawn(["sh", "-c", "while :; do echo >> beat; sleep 0.02; done"])
        print(sandbox.id, flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.fixture
async def provider(docker_settings: DockerSettings) -> AsyncIterator[DockerProvider]:
    async with DockerProvider(docker_settings) as provider:
        yield provider


@pytest.fixture
def orphan(docker_settings: DockerSettings) -> SandboxId:
    """A sandbox whose service was killed by SIGKILL, with a command that beats."""
    argv = [sys.executable, "-c", _VICTIM, docker_settings.name, docker_settings.image or ""]
    env = {"PYTHONPATH": str(_REPOSITORY), "PATH": os.defpath}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=env, cwd=_REPOSITORY) as victim:
        assert victim.stdout is not None
        sandbox_id = victim.stdout.readline().decode().strip()
        victim.kill()
    return SandboxId(sandbox_id)


async def _sh(sandbox: Sandbox, script: str) -> str:
    return (await sandbox.exec(["sh", "-c", script], timeout_s=20)).text


def _inspect(name: str) -> dict[str, object]:
    argv = ["docker", "inspect", name]
    found = subprocess.run(argv, capture_output=True, check=True).stdout
    return dict(json.loads(found)[0])


def _count(docker_settings: DockerSettings, *kind: str) -> int:
    argv = ["docker", *kind, "--quiet", "--filter", f"label=orion.name={docker_settings.name}"]
    return len(subprocess.run(argv, capture_output=True, check=True).stdout.split())


async def test_probe_says_what_holds(provider: DockerProvider) -> None:
    """The probe really runs a sandbox and names what holds."""
    found = await provider.probe()
    assert "Docker Engine" in found
    assert "no capabilities" in found


async def test_hardening_from_inside(provider: DockerProvider) -> None:
    """Nobody's user, no capability to have or to gain, a filter of system calls, and a read-only root."""
    async with open_sandbox(provider, SandboxSpec()) as sandbox:
        status = await _sh(sandbox, "id -u; id -G; grep -E '^(Cap|NoNew|Seccomp:)' /proc/1/status")
        mounts = await _sh(sandbox, "cat /proc/self/mounts")
        writable = await _sh(
            sandbox, "for d in / /usr /etc /env /var /sys /proc/sys /root; do touch $d/x 2>/dev/null && echo $d; done; true"
        )  # fmt: skip
        unreachable = await _sh(
            sandbox, "ls /var/run/docker.sock /run/docker.sock /dev/kmsg /dev/mem /dev/vda 2>/dev/null; echo none"
        )  # fmt: skip
    uid, groups, *lines = status.split("\n")
    assert (uid, groups) == ("10001", "10001")
    found = dict(line.split(":\t") for line in lines if line)
    assert (found.pop("NoNewPrivs"), found.pop("Seccomp")) == ("1", "2")
    assert set(found.values()) == {"0000000000000000"}
    assert writable == ""
    assert unreachable == "none\n"
    root = next(line for line in mounts.splitlines() if line.split()[1] == "/")
    assert root.split()[3].split(",")[0] == "ro"


async def test_limits_are_the_engines(provider: DockerProvider) -> None:
    """Memory without swap, processors, processes; nothing is logged, and nothing is left when it ends."""
    async with open_sandbox(provider, SandboxSpec(labels={"orion.run": "r7"})) as sandbox:
        found = _inspect(f"orion-{provider.namespace}-{sandbox.id}")
    host, config = found["HostConfig"], found["Config"]
    assert isinstance(host, dict)
    assert isinstance(config, dict)
    assert host["Memory"] == host["MemorySwap"] == SandboxSpec().limits.memory_bytes
    assert host["PidsLimit"] == SandboxSpec().limits.max_processes + 2
    assert 0 < host["NanoCpus"] <= 4e9
    assert (host["Privileged"], host["CapDrop"], host["ReadonlyRootfs"]) == (False, ["ALL"], True)
    assert (host["NetworkMode"], host["AutoRemove"]) == ("none", True)
    assert config["Labels"]["orion.run"] == "r7"


async def test_canary(docker_settings: DockerSettings) -> None:
    """Secrets of the service show in no process, file or label inside; nothing of the host answers."""
    secret = secrets.token_hex(16)
    os.environ["ORION_CANARY"] = secret  # noqa: TID251  # planted to be looked for
    settings = replace(docker_settings, host_env={"ANTHROPIC_API_KEY": secret, "PATH": "/bin"})
    script = (
        "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline /proc/self/mountinfo 2>/dev/null; env; "
        f"grep -rlsI '[{secret[0]}]{secret[1:]}' / --exclude-dir=proc --exclude-dir=sys; echo searched"
    )
    connect = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 2)"
    try:
        async with (
            DockerProvider(settings) as other,
            open_sandbox(other, SandboxSpec()) as sandbox,
        ):
            found = await sandbox.exec(["sh", "-c", script], timeout_s=25)
            with socket.create_server(("0.0.0.0", 0)) as listener:  # noqa: S104  # on every address of the host
                port = str(listener.getsockname()[1])
                for host in ("127.0.0.1", "172.17.0.1", "169.254.169.254", "1.1.1.1"):
                    argv = ["python3", "-c", connect, host, port]
                    assert (await sandbox.exec(argv, timeout_s=10)).exit_code == 1
            inspected = json.dumps(_inspect(f"orion-{settings.name}-{sandbox.id}"))
    finally:
        del os.environ["ORION_CANARY"]  # noqa: TID251
    assert "searched" in found.text
    assert secret not in found.text
    assert secret not in inspected


@pytest.fixture
def broker_directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as parent:
        directory = Path(parent, "broker")
        directory.mkdir()
        directory.chmod(0o755)
        Path(parent).chmod(0o755)
        yield directory


async def test_broker_directory_is_read_only(
    provider: DockerProvider, broker_directory: Path
) -> None:
    """The sandbox cannot put a socket of its own in the broker's place."""
    spec = SandboxSpec(network=BrokeredNetwork(endpoint=f"{broker_directory}/socket"))
    async with open_sandbox(provider, spec) as sandbox:
        assert sandbox.paths.broker_socket == "/broker/socket"
        assert await _sh(sandbox, "touch /broker/x 2>/dev/null || echo refused") == "refused\n"


async def test_attach_after_a_crash(provider: DockerProvider, orphan: SandboxId) -> None:
    """Another process finds the sandbox, its files, its variables and the command that still runs in it."""
    (info,) = await provider.list({"run": "r1"})
    assert (info.id, info.running) == (orphan, True)
    sandbox = await provider.attach(orphan)
    assert await provider.attach(orphan) is sandbox
    assert await sandbox.read_file("file") == b"kept"
    assert await _sh(sandbox, "echo $TOKEN") == "of the spec\n"
    before = int(await _sh(sandbox, "wc -l < beat"))
    await asyncio.sleep(0.3)
    assert int(await _sh(sandbox, "wc -l < beat")) > before
    ref = await sandbox.snapshot()
    assert await _sh(sandbox, "cat /proc/[0-9]*/comm | grep -c sleep; true") == "0\n"
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
        assert await _sh(mine, "echo alive") == "alive\n"
    assert _count(docker_settings, "volume", "ls") == 0


async def test_leaving_destroys_what_is_left(docker_settings: DockerSettings) -> None:
    """Leaving the provider removes containers and volumes that nobody destroyed."""
    async with DockerProvider(docker_settings) as provider:
        sandbox = await provider.create(SandboxSpec())
        await sandbox.spawn(["sleep", "60"])
        assert _count(docker_settings, "volume", "ls") == 3
    assert _count(docker_settings, "ps", "--all") == 0
    assert _count(docker_settings, "volume", "ls") == 0


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
            while _count(docker_settings, "volume", "ls"):
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
    assert _count(docker_settings, "ps", "--all") == 0


async def test_cancelled_destroy_is_finished(provider: DockerProvider) -> None:
    """A cancellation that hits the destruction itself comes after it."""
    sandbox = await provider.create(SandboxSpec(labels={"of": "cancelled-destroy"}))
    async with open_task_group() as group:
        task = group.create_task(sandbox.destroy())
        await asyncio.sleep(0.005)
        task.cancel()
    assert list(await provider.list({"of": "cancelled-destroy"})) == []
    assert sandbox.id not in provider._sandboxes


async def test_destroyed_while_a_command_starts(provider: DockerProvider) -> None:
    """However far its start has come, a command under which the sandbox is destroyed counts as killed."""
    for delay_s in (0.0, 0.01, 0.02, 0.04, 0.08):
        sandbox = await provider.create(SandboxSpec())
        async with open_task_group() as group:
            waiting = group.create_task(sandbox.exec(["sleep", "60"], timeout_s=60))
            await asyncio.sleep(delay_s)
            await sandbox.destroy()
        assert waiting.result().exit_code == 137


async def test_killed_runner_leaves_nothing(provider: DockerProvider) -> None:
    """A command that kills what runs it, and leaves something behind, gains nothing."""
    script = "setsid sh -c 'while :; do echo >> /work/beat; sleep 0.02; done' & sleep 0.2; kill -9 $PPID; sleep 5"
    async with open_sandbox(provider, SandboxSpec()) as sandbox:
        result = await sandbox.exec(["sh", "-c", script], timeout_s=20)
        assert result.exit_code == 137
        before = int(await _sh(sandbox, "wc -l < beat"))
        assert before > 0
        await asyncio.sleep(0.3)
        assert int(await _sh(sandbox, "wc -l < beat")) == before


async def test_init_cannot_be_killed_from_inside(provider: DockerProvider) -> None:
    """No signal from inside ends the container."""
    script = "for n in $(seq 1 31); do [ $n = 10 ] || kill -$n 1; done; sleep 0.2; echo alive"
    async with open_sandbox(provider, SandboxSpec()) as sandbox:
        assert await _sh(sandbox, script) == "alive\n"


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
    assert _count(docker_settings, "volume", "ls") == 3
    await provider.sweep()
    assert _count(docker_settings, "volume", "ls") == 0


async def test_restoring_an_environment_copies_nothing(provider: DockerProvider) -> None:
    """A sandbox on an environment of 24 MB writes next to nothing, and so does its own snapshot."""
    async with open_sandbox(provider, SandboxSpec(environment_writable=True)) as sandbox:
        await sandbox.write_file("/env/large", os.urandom(24_000_000))
        ref = await sandbox.snapshot()
    async with open_sandbox(provider, SandboxSpec(snapshot_id=ref.id)) as sandbox:
        size = await sandbox.exec(["stat", "-c", "%s", "/env/large"], timeout_s=20)
        assert size.text == "24000000\n"
        argv = ["docker", "inspect", "--size", "-f", "{{.SizeRw}}"]
        name = f"orion-{provider.namespace}-{sandbox.id}"
        written = subprocess.run([*argv, name], capture_output=True, check=True)  # noqa: ASYNC221  # short
        assert int(written.stdout) < 100_000
        session = await sandbox.snapshot()
    sizes = []
    for snapshot in (ref, session):
        found = _inspect(f"orion-snapshot/{provider.namespace}:{snapshot.id}")
        size_bytes = found["Size"]
        assert isinstance(size_bytes, int)
        sizes.append(size_bytes)
    assert sizes[1] - sizes[0] < 1_000_000
    await provider.delete_snapshot(ref.id)
    async with open_sandbox(provider, SandboxSpec(snapshot_id=session.id)) as sandbox:
        assert (await sandbox.exec(["stat", "/env/large"], timeout_s=20)).exit_code == 0
        again = await sandbox.snapshot()
    await provider.delete_snapshot(session.id)
    await provider.delete_snapshot(again.id)


async def test_a_replaced_snapshot_goes_with_its_last_sandbox(
    docker_settings: DockerSettings, provider: DockerProvider
) -> None:
    """Its image stays as long as a container runs from it, and no longer: nobody waits for the next sweep."""
    nameless = ("images", "--filter", "dangling=true")
    name = f"session-{secrets.token_hex(4)}"
    before = _count(docker_settings, *nameless)
    async with open_sandbox(provider, SandboxSpec()) as sandbox:
        ref = await sandbox.snapshot(name=name)
    async with open_sandbox(provider, SandboxSpec(snapshot_id=ref.id)) as sandbox:
        await sandbox.write_file("more", b"x")
        newer = await sandbox.snapshot(name=name)
        assert _count(docker_settings, *nameless) == before + 1
    assert _count(docker_settings, *nameless) == before
    await provider.delete_snapshot(newer.id)


async def test_deleted_files_stay_deleted(provider: DockerProvider) -> None:
    """A session's snapshot holds what is there then, not what an earlier one or the environment's making had."""
    async with open_sandbox(provider, SandboxSpec(environment_writable=True)) as sandbox:
        await sandbox.write_files({"of-the-making": b"1", "/env/tool": b"1"})
        ref = await sandbox.snapshot()
    for gone, kept in (("of-the-making", "first"), ("first", "second")):
        async with open_sandbox(provider, SandboxSpec(snapshot_id=ref.id)) as sandbox:
            await sandbox.exec(["rm", gone], timeout_s=20)
            await sandbox.write_file(kept, b"1")
            ref = await sandbox.snapshot()
        async with open_sandbox(provider, SandboxSpec(snapshot_id=ref.id)) as sandbox:
            assert await _sh(sandbox, "ls; ls /env") == f"{kept}\ntool\n"


async def test_snapshots_hold_no_variables(
    docker_settings: DockerSettings, provider: DockerProvider
) -> None:
    """Neither an environment nor a session keeps what its sandbox had in its environment."""
    secret = secrets.token_hex(16)
    spec = SandboxSpec(env={"TOKEN": secret}, environment_writable=True)
    async with open_sandbox(provider, spec) as sandbox:
        assert await _sh(sandbox, "echo $TOKEN") == f"{secret}\n"
        environment = await sandbox.snapshot()
    spec = SandboxSpec(env={"TOKEN": secret}, snapshot_id=environment.id)
    async with open_sandbox(provider, spec) as sandbox:
        session = await sandbox.snapshot()
    for ref in (environment, session):
        found = json.dumps(_inspect(f"orion-snapshot/{docker_settings.name}:{ref.id}"))
        assert secret not in found


async def test_environment_of_another_base_is_not_found(
    docker_settings: DockerSettings, provider: DockerProvider
) -> None:
    """When the base image changes, environments made on the old one are made again; sessions stay."""
    name = secrets.token_hex(4)
    async with open_sandbox(provider, SandboxSpec(environment_writable=True)) as sandbox:
        await sandbox.snapshot(name=name)
    async with open_sandbox(provider, SandboxSpec()) as sandbox:
        session = await sandbox.snapshot(name=f"{name}-session")
    other = f"orion-test-other:{name}"
    argv = ["docker", "build", "--quiet", "--tag", other, "-"]
    subprocess.run(  # noqa: ASYNC221  # short
        argv,
        input=f"FROM {docker_settings.image}\nLABEL other={name}\n".encode(),
        check=True,
        capture_output=True,
        env={"PATH": f"{os.defpath}:/usr/local/bin", "DOCKER_BUILDKIT": "0"},
    )
    try:
        async with DockerProvider(replace(docker_settings, image=other)) as second:
            assert await second.find_snapshot(name) is None
            assert await second.find_snapshot(f"{name}-session") == session
        assert await provider.find_snapshot(name) is not None
    finally:
        argv = ["docker", "rmi", other]
        subprocess.run(argv, check=True, capture_output=True)  # noqa: ASYNC221  # short


async def test_base_image_is_built_once(docker_settings: DockerSettings) -> None:
    """It is named by what goes into it, tells its steps, and a failing step is quoted."""
    # Labelled first, so that the layers which a failed build leaves as a cache are known as ours.
    dockerfile = (
        f"ARG BASE\nFROM ${{BASE}}\nLABEL orion.name={docker_settings.name}\n"
        "ARG GIT_NAME\nRUN echo of ${GIT_NAME} > /work/built\n"
    ).encode()
    settings = replace(docker_settings, image=None, base=docker_settings.image, git_name="Ada")
    async with open_engine(settings.docker_host) as engine:
        base = BaseImage(Images(engine), settings, dockerfile=dockerfile)
        renamed = BaseImage(
            Images(engine), replace(settings, git_name="Eve"), dockerfile=dockerfile
        )
        assert base.reference != renamed.reference
        steps: list[str] = []
        try:
            made = await base.ensure(steps.append)
            again: list[str] = []
            assert (await base.ensure(again.append)).id == made.id
        finally:
            await Images(engine).remove(base.reference)
        assert (steps[:2], steps[-1]) == (["checking", "creating"], "done")
        assert any(step.startswith("installing, step ") for step in steps)
        assert again == ["checking", "exists"]
        broken = BaseImage(
            Images(engine), settings, dockerfile=dockerfile + b"RUN echo why; exit 7\n"
        )
        with pytest.raises(SandboxError, match="why") as caught:
            await broken.ensure(steps.append)
        assert caught.value.code is SandboxErrorCode.SETUP_FAILED
        assert steps[-1] == "error"
    exited = ["docker", "ps", "--all", "--quiet", "--filter", "exited=7"]
    left = subprocess.run(exited, capture_output=True, check=True).stdout  # noqa: ASYNC221  # short
    assert left == b""


async def test_missing_images_are_named(docker_settings: DockerSettings) -> None:
    """An operator's image that the engine does not have is an error with its fix, before anything runs."""
    async with DockerProvider(replace(docker_settings, image="orion-test-none:1")) as provider:
        with pytest.raises(SandboxError, match="pull it") as caught:
            await provider.ensure_ready()
        assert caught.value.code is SandboxErrorCode.SETUP_FAILED
        with pytest.raises(SandboxError, match="pull it"):
            await provider.probe()
        with pytest.raises(SandboxError) as caught:
            await provider.create(SandboxSpec())
        assert caught.value.code is SandboxErrorCode.CREATE_FAILED


async def test_missing_runtime_is_named(docker_settings: DockerSettings) -> None:
    """A runtime that the engine does not know is an error that says so."""
    async with DockerProvider(replace(docker_settings, runtime="no-such")) as provider:
        with pytest.raises(SandboxError, match="no-such") as caught:
            await provider.probe()
        assert caught.value.code is SandboxErrorCode.ISOLATION_UNAVAILABLE
        with pytest.raises(SandboxError) as caught:
            await provider.create(SandboxSpec())
        assert caught.value.code is SandboxErrorCode.CREATE_FAILED


async def test_open_network_shares_installer_settings(
    docker_settings: DockerSettings, tmp_path: Path
) -> None:
    """An open sandbox gets proxies, indexes and CA files of the host, read-only, and a network; others the CA bundle."""
    bundle = tmp_path / "ca.pem"
    bundle.write_text("certificate")
    with tempfile.TemporaryDirectory(
        dir="/var/tmp"
    ) as wheels:  # outside of what is the sandbox's own
        Path(wheels).chmod(0o755)
        Path(wheels, "demo.whl").write_text("wheel")
        host_env = {
            "HTTPS_PROXY": "http://127.0.0.1:9",
            "PIP_FIND_LINKS": wheels,
            "SLACK_BOT_TOKEN": "xoxb-secret",
        }
        settings = replace(docker_settings, ca_bundle=bundle, host_env=host_env)
        script = (
            'cat "$PIP_FIND_LINKS/demo.whl" "$SSL_CERT_FILE"; touch "$PIP_FIND_LINKS/x"; '
            "env; cut -d: -f1 /proc/net/dev"
        )
        async with DockerProvider(settings) as provider:
            spec = SandboxSpec(network=OpenNetwork(), environment_writable=True)
            async with open_sandbox(provider, spec) as sandbox:
                found = await _sh(sandbox, script)
            async with open_sandbox(provider, SandboxSpec()) as sandbox:
                closed = await _sh(sandbox, script)
        assert os.listdir(wheels) == ["demo.whl"]  # noqa: PTH208
    assert found.startswith("wheelcertificate")
    assert "HTTPS_PROXY=http://127.0.0.1:9" in found
    assert "eth0" in found
    assert "secret" not in found
    assert closed.startswith("certificate")
    assert "HTTPS_PROXY" not in closed
    assert "eth0" not in closed


async def test_stats(provider: DockerProvider) -> None:
    """What a sandbox uses."""
    async with open_sandbox(provider, SandboxSpec()) as sandbox:
        await sandbox.spawn(["sleep", "20"])
        stats = await provider.stats(sandbox.id)
    assert 0 < stats.memory_bytes < stats.memory_limit_bytes == SandboxSpec().limits.memory_bytes
    assert stats.processes == 3
    assert stats.cpu_s > 0
    with pytest.raises(SandboxError) as caught:
        await provider.stats(sandbox.id)
    assert caught.value.code is SandboxErrorCode.NOT_FOUND


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


async def test_dead_engine(docker_settings: DockerSettings, tmp_path: Path) -> None:
    """An engine that is not there is UNAVAILABLE at once, with the fix."""
    host = f"unix://{tmp_path}/none.sock"
    async with DockerProvider(replace(docker_settings, docker_host=host)) as provider:
        started = time.monotonic()
        for ask in (provider.probe, provider.list, provider.ensure_ready):
            with pytest.raises(SandboxError, match="set DOCKER_HOST") as caught:
                await ask()
            assert (caught.value.code, caught.value.retryable) == (
                SandboxErrorCode.UNAVAILABLE,
                True,
            )
        assert time.monotonic() - started < 2


async def test_silent_engine(docker_settings: DockerSettings, tmp_path: Path) -> None:
    """An engine that takes connections and never answers is UNAVAILABLE within the probe's bound."""
    held: list[asyncio.StreamWriter] = []

    async def hold(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(writer)

    path = tmp_path / "silent.sock"
    async with await asyncio.start_unix_server(hold, path):
        settings = replace(docker_settings, docker_host=f"unix://{path}")
        async with DockerProvider(settings) as provider:
            started = time.monotonic()
            with pytest.raises(SandboxError, match="no answer") as caught:
                await provider.probe()
            assert caught.value.code is SandboxErrorCode.UNAVAILABLE
            assert time.monotonic() - started < 11
        for writer in held:
            writer.close()


def test_settings_are_checked() -> None:
    """A name or address that could not work is refused before anything is asked."""
    for bad in ("", "Big", "a b", "-a", "a/b"):
        with pytest.raises(ValueError, match="not a name"):
            DockerSettings(name=bad)
    for bad in ("", "/var/run/docker.sock", "ftp://x", "ssh://elsewhere"):
        with pytest.raises(ValueError, match="not an address"):
            DockerSettings(docker_host=bad)
