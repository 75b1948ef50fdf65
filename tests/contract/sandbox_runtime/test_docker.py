# ruff: noqa: ASYNC240  # short looks at the host, in tests
"""What only the Docker provider promises: hardening as seen from inside, the network, an engine that is sick."""

import asyncio
import json
import os
import secrets
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sandbox_runtime import (
    BrokeredNetwork,
    OpenNetwork,
    SandboxError,
    SandboxErrorCode,
    SandboxSpec,
    open_sandbox,
)
from sandbox_runtime.providers.docker import DockerSettings
from sandbox_runtime.providers.docker.provider import DockerProvider
from tests.contract.sandbox_runtime.docker_engine import inspect, sh

pytestmark = pytest.mark.docker


async def test_probe_says_what_holds(provider: DockerProvider) -> None:
    """The probe really runs a sandbox and names what holds."""
    found = await provider.probe()
    assert "Docker Engine" in found
    assert "no capabilities" in found


async def test_hardening_from_inside(provider: DockerProvider) -> None:
    """Nobody's user, no capability to have or to gain, a filter of system calls, and a read-only root."""
    async with open_sandbox(provider, SandboxSpec()) as sandbox:
        status = await sh(sandbox, "id -u; id -G; grep -E '^(Cap|NoNew|Seccomp:)' /proc/1/status")
        mounts = await sh(sandbox, "cat /proc/self/mounts")
        writable = await sh(
            sandbox, "for d in / /usr /etc /env /var /sys /proc/sys /root; do touch $d/x 2>/dev/null && echo $d; done; true"
        )  # fmt: skip
        unreachable = await sh(
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
        found = inspect(f"orion-{provider.namespace}-{sandbox.id}")
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
            inspected = json.dumps(inspect(f"orion-{settings.name}-{sandbox.id}"))
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
        assert sandbox.paths.broker == "/broker/socket"
        assert await sh(sandbox, "touch /broker/x 2>/dev/null || echo refused") == "refused\n"


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
                found = await sh(sandbox, script)
            async with open_sandbox(provider, SandboxSpec()) as sandbox:
                closed = await sh(sandbox, script)
        assert os.listdir(wheels) == ["demo.whl"]  # noqa: PTH208
    assert found.startswith("wheelcertificate")
    assert "HTTPS_PROXY=http://127.0.0.1:9" in found
    assert "eth0" in found
    assert "secret" not in found
    assert closed.startswith("certificate")
    assert "HTTPS_PROXY" not in closed
    assert "eth0" not in closed


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


@pytest.mark.long
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
