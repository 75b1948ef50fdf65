"""What a sandbox's container is made of, without an engine."""

from dataclasses import replace
from pathlib import Path

import pytest

from sandbox_runtime import BrokeredNetwork, Network, OpenNetwork, SandboxSpec
from sandbox_runtime.command import Command
from sandbox_runtime.host import HostView
from sandbox_runtime.providers.docker.containers import (
    Hosting,
    broker_path,
    container_config,
    sandbox_env,
)
from sandbox_runtime.providers.docker.processes import encode
from sandbox_runtime.providers.seccomp import engine_profile
from sandbox_runtime.types import ClosedNetwork, SandboxLimits

_HOSTING = Hosting(
    runtime="runsc",
    cpus=1.5,
    ca_bundle=Path("/ca.pem"),
    view=HostView(
        env={"PIP_INDEX_URL": "https://index"}, files=(Path("/opt/wheels"), Path("/work/x"))
    ),
    max_age_s=60.0,
    has_seccomp=True,
)


def _host_config(spec: SandboxSpec) -> dict[str, object]:
    config = container_config(spec, _HOSTING, image="image", env={}, labels={"a": "b"})
    host = config["HostConfig"]
    assert isinstance(host, dict)
    return host


def _binds(spec: SandboxSpec) -> dict[str, str]:
    mounts = _host_config(spec)["Mounts"]
    assert isinstance(mounts, list)
    binds = [mount for mount in mounts if mount["Type"] == "bind"]
    assert all(mount["ReadOnly"] for mount in binds)
    return {mount["Target"]: mount["Source"] for mount in binds}


@pytest.mark.parametrize(
    "network", [ClosedNetwork(), OpenNetwork(), BrokeredNetwork(endpoint="/run/b/s.sock")]
)
@pytest.mark.parametrize("writable", [False, True])
def test_hardening_is_always_on(network: Network, writable: bool) -> None:
    """Whatever is asked for, capabilities, privileges and limits are the same."""
    spec = SandboxSpec(network=network, environment_writable=writable)
    config = container_config(spec, _HOSTING, image="image", env={}, labels={})
    host = _host_config(spec)
    assert config["User"] == "10001:10001"
    profile = f"seccomp={engine_profile()}"
    assert (host["CapDrop"], host["SecurityOpt"]) == (["ALL"], ["no-new-privileges:true", profile])
    assert host["ReadonlyRootfs"] is not writable
    assert host["NetworkMode"] == ("bridge" if isinstance(network, OpenNetwork) else "none")
    assert host["Memory"] == host["MemorySwap"] == spec.limits.memory_bytes
    assert (host["NanoCpus"], host["Runtime"]) == (1_500_000_000, "runsc")
    assert "Privileged" not in host
    assert "Devices" not in host


def test_binds() -> None:
    """Closed: the CA bundle. Brokered: the socket's directory too. Open: the installers' files, outside of its own places."""
    closed = {"/etc/ssl/ca-bundle.pem": "/ca.pem"}
    assert _binds(SandboxSpec()) == closed
    brokered = SandboxSpec(network=BrokeredNetwork(endpoint="/run/b/s.sock"))
    assert _binds(brokered) == {**closed, "/broker": "/run/b"}
    assert broker_path(brokered) == "/broker/s.sock"
    opened = {**closed, "/opt/wheels": "/opt/wheels"}
    assert _binds(SandboxSpec(network=OpenNetwork())) == opened
    both = SandboxSpec(network=OpenNetwork(endpoint="/run/b/s.sock"))
    assert _binds(both) == {**opened, "/broker": "/run/b"}
    assert broker_path(both) == "/broker/s.sock"


def test_env() -> None:
    """Installers' settings only with an open network; the caller's own variables win."""
    closed = sandbox_env(SandboxSpec(env={"HOME": "/elsewhere", "A": "1"}), _HOSTING)
    assert (closed["HOME"], closed["A"]) == ("/elsewhere", "1")
    assert closed["SSL_CERT_FILE"] == "/etc/ssl/ca-bundle.pem"
    assert "PIP_INDEX_URL" not in closed
    opened = sandbox_env(SandboxSpec(network=OpenNetwork(), environment_writable=True), _HOSTING)
    assert opened["PIP_INDEX_URL"] == "https://index"
    assert opened["npm_config_cache"].startswith("/tmp/")  # noqa: S108  # the sandbox's


def test_command_encoding() -> None:
    """Lengths first, then the fields, then the input: nothing needs escaping."""
    command = Command(
        argv=["a b", "", "ü\n"],
        env={"N": "v=1"},
        cwd="/work",
        stdin=b"\0in",
        merge_output=True,
    )
    limits = SandboxLimits(max_file_bytes=5, max_open_files=6)
    options = "FSIZE=5 NOFILE=6 window=0 merged=True"
    body = f"{options}\0/work\0003\0a b\0\0ü\n\0N=v=1".encode()
    assert encode(command, limits) == b"%012d%012d" % (len(body), 3) + body + b"\0in"


def test_engine_without_filter() -> None:
    """One that cannot filter system calls is not asked to: it would refuse every container, and `probe` tells of it."""
    hosting = replace(_HOSTING, has_seccomp=False)
    config = container_config(SandboxSpec(), hosting, image="image", env={}, labels={})
    host = config["HostConfig"]
    assert isinstance(host, dict)
    assert host["SecurityOpt"] == ["no-new-privileges:true"]
